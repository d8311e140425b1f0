"""Sums of columns: the weighted one of a query in a hash table (Algorithm 1), the second look at it, and pooling.

Columns are as in `codes`, plain or coded.
"""

import numpy as np
from numba.extending import overload

from suffuse.core.kernels.codes import (
    BROKEN,
    EMPTY,
    HEAD,
    OUTSIDE,
    lies_inside,
    number,
    read,
    read_column,
    room,
)
from suffuse.core.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.core.kernels.select import key_of, write_largest


@helper
def new_table(query_ptr, seeds, columns, targets):
    """Room for the sum of any one query: slots of ids, their sums, which slots are in use; and for any one column."""
    largest, longest = u8(0), u8(0)
    for q in range(u8(query_ptr.shape[0] - 1)):
        entries = u8(0)
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            inside = lies_inside(columns[0], columns[1], columns[2], u8(seeds[s]))
            length = room(columns[0], columns[1], columns[2], u8(seeds[s])) if inside else u8(0)
            entries, longest = entries + length, max(longest, length)
        largest = max(largest, min(entries, u8(targets)))
    capacity = u8(16)
    while capacity < u8(2) * largest:
        capacity *= u8(2)
    slots, sums, used = (
        np.full(capacity, EMPTY, np.uint32),
        np.zeros(capacity, np.float64),
        np.empty(largest, np.uint32),
    )
    return slots, sums, used, np.empty(longest, np.uint32), np.empty(longest, np.float64)


@helper
def slot_of(id, slots, mask):
    """Where `id` is in the hash table, or the free slot where it belongs (linear probing)."""
    slot = (u8(id) * u8(0x9E3779B1)) & mask
    while slots[slot] != EMPTY and slots[slot] != id:
        slot = (slot + u8(1)) & mask
    return slot


@helper
def add_columns(first, last, seeds, weights, columns, owners, targets, table):
    """Add weight * column of seeds[first:last] to an empty table; returns how many slots it uses, or what is wrong.

    That is BROKEN, or OUTSIDE for a column that does not lie inside; the table is then empty again.
    """
    slots, sums, used, ids, numbers = table
    mask = u8(slots.shape[0] - 1)
    pooled = owners.shape[0] > 0
    # A larger id would overfill the table, or reach outside of `owners`.
    limit = u4(owners.shape[0]) if pooled else u4(targets)
    count, sound = u8(0), True
    for s in range(first, last):
        if not lies_inside(columns[0], columns[1], columns[2], u8(seeds[s])):
            clear(table, count)
            return OUTSIDE
        weight = weights[s]
        length = read(*columns, u8(seeds[s]), ids, numbers)
        sound = length != BROKEN
        for entry in range(length if sound else u8(0)):
            id = ids[entry]
            if pooled and id < limit:
                id = owners[u8(id)]
                sound = id < u4(targets)
            if not sound or id >= limit:
                sound = False
                break
            slot = slot_of(id, slots, mask)
            if slots[slot] == EMPTY:
                slots[slot] = id
                used[count] = u4(slot)
                count += u8(1)
            sums[slot] += weight * numbers[entry]
        if not sound:
            clear(table, count)
            return BROKEN
    return count


@helper
def clear(table, count):
    """Empty the slots that are in use."""
    slots, sums, used, _, _ = table
    for place in range(count):
        slot = u8(used[place])
        slots[slot], sums[slot] = EMPTY, f8(0.0)


_QUERIES = (readonly(i8), readonly(u4), readonly(f8))
_SPANS = (readonly(i8), readonly(i8))
_IMAGES = (readonly(u4), readonly(u1), i8)
_HITS = (writable(i8, 2), writable(f4, 2), writable(i8))


@compiled(
    void(*_QUERIES, *_SPANS, readonly(u1), readonly(f4), *_IMAGES, *_HITS),
    void(*_QUERIES, *_SPANS, readonly(u4), readonly(u2), *_IMAGES, *_HITS),
    void(*_QUERIES, *_SPANS, readonly(u4), readonly(f4), *_IMAGES, *_HITS),
)
def combine_columns(
    query_ptr, seeds, weights, starts, stops, entries, values, owners, hidden, targets, ids, scores, out
):  # fmt: skip
    """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1), its largest entries first, ties to the smaller id.

    Query q has the seeds query_ptr[q]:query_ptr[q + 1]. The columns are starts, stops, rows and values, or starts,
    stops, codes and scales (`table`). `owners` maps elements to images, whose scores are summed; empty where elements
    are images. `hidden` is 1 for images that are no hits; empty where all are. `targets` is the number of images.
    out[q] = number of entries written to ids[q] and scores[q]; -1 if a column is damaged, or columns or owners hold an
    id that does not exist; -2 if a column lies outside.
    The sum lives in a hash table, so that memory follows the seeds' columns and not the database.
    """
    columns = (starts, stops, entries, values)
    table = new_table(query_ptr, seeds, columns, targets)
    slots, sums, used, _, _ = table
    keys = np.empty(used.shape[0], np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        first, last = u8(query_ptr[q]), u8(query_ptr[q + u8(1)])
        count = add_columns(first, last, seeds, weights, columns, owners, targets, table)
        if count >= OUTSIDE:
            out[q] = i8(count)
            continue
        positive = u8(0)
        for place in range(count):
            slot = u8(used[place])
            score = f4(sums[slot])
            shown = hidden.shape[0] == 0 or hidden[u8(slots[slot])] == u1(0)
            if shown and score > f4(0.0):
                keys[positive] = key_of(score, slots[slot])
                positive += u8(1)
        clear(table, count)
        out[q] = i8(write_largest(keys, positive, ids[q], scores[q]))


_SEEDS = (readonly(i8), readonly(u4), readonly(f8))
_CANDIDATES = (readonly(i8), i8, i8, i8, writable(i8, 2), writable(f4, 2), writable(i8))
_CODED = (readonly(i8), readonly(i8), readonly(u1), readonly(f4))
_PLAIN_2 = (readonly(i8), readonly(i8), readonly(u4), readonly(u2))
_PLAIN_4 = (readonly(i8), readonly(i8), readonly(u4), readonly(f4))


def compare(own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room):
    """cos(f, v_j) for a candidate j whose vector lies inside; -1 if it is damaged. f is slots and sums of a table."""


@helper
def _cosine(product, own, squared):
    return f4(product / (own * squared) ** 0.5) if own * squared > f8(0.0) else f4(0.0)


@helper
def _compare_plain(own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room):
    slots, sums = f
    mask = u8(slots.shape[0] - 1)
    first = u8(own_starts[candidate])
    last = min(u8(own_stops[candidate]), first + u8(depth))
    product, own = f8(0.0), f8(0.0)
    for place in range(first, last):
        value = number(own_values[place])
        own += value * value
        # A free slot holds the sum 0, so an id that f does not reach adds nothing.
        product += value * sums[slot_of(own_entries[place], slots, mask)]
    return _cosine(product, own, squared)


@helper
def _compare_coded(own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room):
    slots, sums = f
    mask = u8(slots.shape[0] - 1)
    ids, values = room
    start, stop = u8(own_starts[candidate]), u8(own_stops[candidate])
    # The scale of a column does not change its direction.
    length = read_column(own_entries, start, stop, f8(1.0), True, ids, values)
    if length == BROKEN:
        return f4(-1.0)
    product, own = f8(0.0), f8(0.0)
    for entry in range(length):
        own += values[entry] * values[entry]
        product += values[entry] * sums[slot_of(ids[entry], slots, mask)]
    return _cosine(product, own, squared)


@overload(compare)
def _compare_compiled(own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room):
    chosen = _compare_coded if own_entries.dtype == u1 else _compare_plain
    return lambda own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room: chosen(
        own_starts, own_stops, own_entries, own_values, candidate, depth, f, squared, room
    )


@compiled(
    void(*_SEEDS, *_CODED, *_CODED, *_CANDIDATES),
    void(*_SEEDS, *_CODED, *_PLAIN_2, *_CANDIDATES),  # an index of regions, whose images have plain vectors
    void(*_SEEDS, *_PLAIN_2, *_PLAIN_2, *_CANDIDATES),
    void(*_SEEDS, *_PLAIN_4, *_PLAIN_4, *_CANDIDATES),
)
def refine_candidates(
    query_ptr, seeds, weights, starts, stops, entries, values, own_starts, own_stops, own_entries, own_values,
    counts, targets, depth, root, ids, scores, out,
):  # fmt: skip
    """Rank the candidates ids[q, :counts[q]] anew by scores[q] = cos(f, v_j), ties to the smaller id.

    f = sum_j weights[j] * column[seeds[j]] over the seeds query_ptr[q]:query_ptr[q + 1], as in Algorithm 1, or the root
    of it, entry by entry, if `root` is not 0. The entries of columns are below `targets`. v_j, the candidate's own
    vector, is column j of own_*; only its `depth` largest entries are read, or its head
    if it is coded. out[q] = counts[q]; -1 if a column is damaged, -2 if it lies outside.
    """
    columns = (starts, stops, entries, values)
    table = new_table(query_ptr, seeds, columns, targets)
    slots, sums, used, _, _ = table
    nobody = np.empty(0, np.uint32)
    room = (np.empty(HEAD, np.uint32), np.empty(HEAD, np.float64))
    keys = np.empty(ids.shape[1], np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        first, last = u8(query_ptr[q]), u8(query_ptr[q + u8(1)])
        count = add_columns(first, last, seeds, weights, columns, nobody, targets, table)
        if count >= OUTSIDE:
            out[q] = i8(count)
            continue
        squared = f8(0.0)
        for place in range(count):
            slot = u8(used[place])
            if root:
                sums[slot] = sums[slot] ** 0.5
            squared += sums[slot] * sums[slot]
        out[q] = counts[q]
        for r in range(u8(counts[q])):
            candidate = u8(ids[q, r])
            if not lies_inside(own_starts, own_stops, own_entries, candidate):
                out[q] = i8(-2)
                break
            cosine = compare(
                own_starts, own_stops, own_entries, own_values, candidate, depth, (slots, sums), squared, room
            )
            if cosine < f4(0.0):
                out[q] = i8(-1)
                break
            keys[r] = key_of(cosine, candidate)
        clear(table, count)
        if out[q] >= 0:
            write_largest(keys, u8(counts[q]), ids[q], scores[q])


# --- columns over regions summed to columns over images: sum pooling is linear, so it can be done before storing

_COLUMNS = (readonly(u4, 2), readonly(f4, 2), readonly(i8))
_POOLED = (writable(u4, 2), writable(f4, 2), writable(i8))


@compiled(void(*_COLUMNS, readonly(u4), i8, *_POOLED))
def pool_columns(rows, values, lengths, owners, images, pooled_rows, pooled_values, out):
    """The sum over an image's regions of each column, its largest entries first; out = how many of each are stored.

    rows, values  (b, L), the first lengths[c] entries of row c are column c
    owners        (n,), the image of each region
    """
    sums = np.zeros(images, np.float64)
    touched = np.empty(rows.shape[1], np.uint32)
    keys = np.empty(rows.shape[1], np.uint64)
    for column in range(u8(rows.shape[0])):
        count = u8(0)
        for place in range(u8(lengths[column])):
            image = owners[u8(rows[column, place])]
            if sums[u8(image)] == f8(0.0):  # stored entries are above zero, so a sum of zero is an image not yet seen
                touched[count] = image
                count += u8(1)
            sums[u8(image)] += f8(values[column, place])
        for t in range(count):
            keys[t] = key_of(sums[u8(touched[t])], touched[t])
            sums[u8(touched[t])] = f8(0.0)
        out[column] = i8(write_largest(keys, count, pooled_rows[column], pooled_values[column]))


_STORED = (readonly(i8), readonly(u4))
_GROUPS = (readonly(i8), readonly(i8), i8)


@compiled(
    void(*_STORED, readonly(u2), *_GROUPS, *_POOLED),
    void(*_STORED, readonly(f4), *_GROUPS, *_POOLED),
)
def pool_images(indptr, rows, values, group_ptr, members, images, pooled_rows, pooled_values, out):
    """The root of the sum of the pooled columns of an image's regions, largest first; out = how many are stored.

    Image g of this block has the regions members[group_ptr[g]:group_ptr[g + 1]]; rows are images, of which there are
    `images`. Roots, because a few repeated regions would drown the rest of an image's neighbourhood.
    """
    sums = np.zeros(images, np.float64)
    touched, keys = np.empty(images, np.uint32), np.empty(images, np.uint64)
    for group in range(u8(group_ptr.shape[0] - 1)):
        count = u8(0)
        for member in range(u8(group_ptr[group]), u8(group_ptr[group + u8(1)])):
            region = u8(members[member])
            for place in range(u8(indptr[region]), u8(indptr[region + u8(1)])):
                image = rows[place]
                if sums[u8(image)] == f8(0.0):
                    touched[count] = image
                    count += u8(1)
                sums[u8(image)] += number(values[place])
        for t in range(count):
            keys[t] = key_of(sums[u8(touched[t])] ** 0.5, touched[t])
            sums[u8(touched[t])] = f8(0.0)
        out[group] = i8(write_largest(keys, count, pooled_rows[group], pooled_values[group]))


@compiled(void(readonly(f4, 2), readonly(u4), writable(f4, 2)))
def raise_to_best(sims, owners, out):
    """out[owners[i], r] = max(out[owners[i], r], sims[i, r]).

    One row per gallery region: the inner loop runs over the query's regions, which lie together in both arrays,
    so owners may come in any order.
    """
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        image = u8(owners[i])
        for r in range(width):
            out[image, r] = max(out[image, r], sims[i, r])
