"""The second look: candidates ranked by the cosine between the query's combined vector and their own column."""

import numpy as np
from numba.extending import overload

from suffuse.kernels.codes import BROKEN, HEAD, OUTSIDE, read_column
from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest
from suffuse.kernels.table import add_columns, clear, lies_inside, new_table, number, slot_of

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
