"""The weights of seeds, the sum of their columns in a hash table (Algorithm 1), and the second look at it.

Columns are as in `codes`, plain or coded.
"""

import numpy as np
from numba.extending import overload

from suffuse.core.kernels import codes
from suffuse.core.kernels.codes import BROKEN, HEAD, OUTSIDE, lies_inside, number, read, read_column, room
from suffuse.core.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.core.kernels.select import EMPTY, key_of, slot_of, write_largest

# A seed counts (rank for the query * rank of the query)^-this (docs/lab/graph.md).
_SEED_POWER = 0.75
# Distances that differ by less are the same.
_SAME = 1e-6


@helper
def _rank_among(distance, marks, ranks, outside):
    """The rank of something at this distance in a list with the distances `marks` at `ranks`; between, by logarithm."""
    above = u8(0)
    while above < u8(ranks.shape[0]) and number(marks[above]) < distance - f8(_SAME):
        above += u8(1)
    if above == u8(0):
        return f8(1.0)
    if above == u8(ranks.shape[0]):
        return f8(outside)
    nearer, further = number(marks[above - u8(1)]), number(marks[above])
    share = min((distance - nearer) / max(further - nearer, f8(_SAME)), f8(1.0))
    return f8(ranks[above - u8(1)]) * (f8(ranks[above]) / f8(ranks[above - u8(1)])) ** share


@compiled(void(readonly(f4, 2), readonly(u2, 2), readonly(i8), i8, writable(f8, 2)))
def weigh_by_ranks(sims, marks, ranks, outside, out):
    """out = (r r')^-_SEED_POWER for seeds (m, s), the nearest first; 0 where the similarity is not above 0.

    r is the place of a seed, from 1 on, and r' that of the query in the list of the seed: `marks` (m * s, r) are the
    distances there at `ranks`, as bits of float16.
    """
    for q in range(u8(sims.shape[0])):
        for s in range(u8(sims.shape[1])):
            distance = f8(1.0) - f8(sims[q, s])
            theirs = _rank_among(distance, marks[q * u8(sims.shape[1]) + s], ranks, outside)
            weight = (f8(s + u8(1)) * theirs) ** -_SEED_POWER
            out[q, s] = weight if sims[q, s] > f4(0.0) else f8(0.0)


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
    slots, sums = np.full(capacity, EMPTY, np.uint32), np.zeros(capacity, np.float64)
    return slots, sums, np.empty(largest, np.uint32), np.empty(longest, np.uint32), np.empty(longest, np.float64)


@helper
def add_columns(q, queries, columns, owners, targets, table):
    """Add weight * column of all seeds of query q to an empty table; returns how many slots it uses, or what is wrong.

    That is BROKEN, or OUTSIDE for a column that does not lie inside; the table is then empty again.
    """
    query_ptr, seeds, weights = queries
    slots, sums, used, ids, numbers = table
    mask = u8(slots.shape[0] - 1)
    pooled = owners.shape[0] > 0
    # A larger id would overfill the table, or reach outside of `owners`.
    limit = u4(owners.shape[0]) if pooled else u4(targets)
    count, sound = u8(0), True
    for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
        if not lies_inside(columns[0], columns[1], columns[2], u8(seeds[s])):
            clear(table, count)
            return OUTSIDE
        weight = weights[s]
        length = read(*columns, u8(seeds[s]), False, ids, numbers)
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
_IMAGES = (readonly(u4), readonly(u1), i8)
_HITS = (writable(i8, 2), writable(f4, 2), writable(i8))


@compiled(*(void(*_QUERIES, *columns, *_IMAGES, *_HITS) for columns in codes.STORED))
def combine_columns(
    query_ptr, seeds, weights, starts, stops, entries, values, owners, hidden, targets, ids, scores, out
):  # fmt: skip
    """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1), its largest entries first, ties to the smaller id.

    Query q has the seeds query_ptr[q]:query_ptr[q + 1]. `owners` maps elements to images, whose scores are summed;
    empty where elements are images. `hidden` is 1 for images that are no hits; empty where all are. `targets` is the
    number of images. out[q] = number of entries written to ids[q] and scores[q]; -1 if a column is damaged, or columns
    or owners hold an id that does not exist; -2 if a column lies outside.
    The sum lives in a hash table, so that memory follows the seeds' columns and not the database.
    """
    columns = (starts, stops, entries, values)
    table = new_table(query_ptr, seeds, columns, targets)
    slots, sums, used, _, _ = table
    keys = np.empty(used.shape[0], np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        count = add_columns(q, (query_ptr, seeds, weights), columns, owners, targets, table)
        out[q], positive = i8(count), u8(0)
        if count >= OUTSIDE:
            continue
        for place in range(count):
            slot = u8(used[place])
            score = f4(sums[slot])
            shown = hidden.shape[0] == 0 or hidden[u8(slots[slot])] == u1(0)
            if shown and score > f4(0.0):
                keys[positive] = key_of(score, slots[slot])
                positive += u8(1)
        clear(table, count)
        out[q] = i8(write_largest(keys, positive, ids[q], scores[q]))


def compare(vectors, candidate, depth, f, squared, room):
    """cos(f, v_j) for a candidate j whose vector lies inside; -1 if it is damaged. f is slots and sums of a table."""


@helper
def _cosine(product, own, squared):
    return f4(product / (own * squared) ** 0.5) if own * squared > f8(0.0) else f4(0.0)


@helper
def _compare_plain(vectors, candidate, depth, f, squared, room):
    (starts, stops, rows, values), (slots, sums) = vectors, f
    product, own, mask = f8(0.0), f8(0.0), u8(slots.shape[0] - 1)
    first = u8(starts[candidate])
    for entry in range(first, min(u8(stops[candidate]), first + u8(depth))):
        value = number(values[entry])
        own += value * value
        # A free slot holds the sum 0, so an id that f does not reach adds nothing.
        product += value * sums[slot_of(rows[entry], slots, mask)]
    return _cosine(product, own, squared)


@helper
def _compare_coded(vectors, candidate, depth, f, squared, room):
    (starts, stops, entries, _), (slots, sums), (ids, values) = vectors, f, room
    product, own, mask = f8(0.0), f8(0.0), u8(slots.shape[0] - 1)
    # The scale of a column does not change its direction.
    length = read_column(entries, u8(starts[candidate]), u8(stops[candidate]), f8(1.0), True, ids, values)
    if length == BROKEN:
        return f4(-1.0)
    for entry in range(length):
        own += values[entry] * values[entry]
        product += values[entry] * sums[slot_of(ids[entry], slots, mask)]
    return _cosine(product, own, squared)


@overload(compare)
def _compare_compiled(vectors, candidate, depth, f, squared, room):
    chosen = _compare_coded if vectors[2].dtype == u1 else _compare_plain
    return lambda vectors, candidate, depth, f, squared, room: chosen(vectors, candidate, depth, f, squared, room)


@helper
def _square(table, count, root):
    """|f|^2 of the sum f in a table; with `root`, f becomes its root before, entry by entry."""
    _, sums, used, _, _ = table
    squared = f8(0.0)
    for place in range(count):
        slot = u8(used[place])
        if root:
            sums[slot] = sums[slot] ** 0.5
        squared += sums[slot] * sums[slot]
    return squared


_CANDIDATES = (readonly(i8), i8, i8, i8, *_HITS)
# Columns and vectors of one type; of an index of regions that is coded, the vectors of images are plain.
_PAIRS = (*((kind, kind) for kind in codes.STORED), (codes.CODED, codes.HALF))


@compiled(*(void(*_QUERIES, *columns, *vectors, *_CANDIDATES) for columns, vectors in _PAIRS))
def refine_candidates(
    query_ptr, seeds, weights, starts, stops, entries, values, own_starts, own_stops, own_entries, own_values,
    counts, targets, depth, root, ids, scores, out,
):  # fmt: skip
    """Rank the candidates ids[q, :counts[q]] anew by scores[q] = cos(f, v_j), ties to the smaller id.

    f = sum_j weights[j] * column[seeds[j]] over the seeds query_ptr[q]:query_ptr[q + 1], as in Algorithm 1, or the root
    of it, entry by entry, if `root` is not 0. The entries of columns are below `targets`. v_j, the candidate's own
    vector, is column j of own_*; only its `depth` largest entries are read, or its head if it is coded.
    out[q] = counts[q]; -1 if a column is damaged, -2 if it lies outside.
    """
    columns, vectors = (starts, stops, entries, values), (own_starts, own_stops, own_entries, own_values)
    table, nobody = new_table(query_ptr, seeds, columns, targets), np.empty(0, np.uint32)
    room = (np.empty(HEAD, np.uint32), np.empty(HEAD, np.float64))
    keys = np.empty(ids.shape[1], np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        count = add_columns(q, (query_ptr, seeds, weights), columns, nobody, targets, table)
        if count >= OUTSIDE:
            out[q] = i8(count)
            continue
        squared, out[q] = _square(table, count, root), counts[q]
        for r in range(u8(counts[q])):
            candidate = u8(ids[q, r])
            if not lies_inside(own_starts, own_stops, own_entries, candidate):
                out[q] = i8(-2)
                break
            cosine = compare(vectors, candidate, depth, table[:2], squared, room)
            if cosine < f4(0.0):
                out[q] = i8(-1)
                break
            keys[r] = key_of(cosine, candidate)
        clear(table, count)
        if out[q] >= 0:
            write_largest(keys, u8(counts[q]), ids[q], scores[q])
