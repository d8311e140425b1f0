"""The second look: candidates ranked by the cosine between the query's combined vector and their own column."""

import numpy as np
from numba.extending import overload

from suffuse.kernels.codes import BROKEN, HEAD, read_column
from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.table import add_columns, clear, new_table, number, slot_of

_SEEDS = (readonly(i8), readonly(u4), readonly(f8))
_CANDIDATES = (readonly(i8, 2), readonly(i8), i8, i8, i8, writable(f4, 2))
_CODED = (readonly(i8), readonly(u1), readonly(f4))
_PLAIN_2 = (readonly(i8), readonly(u4), readonly(u2))
_PLAIN_4 = (readonly(i8), readonly(u4), readonly(f4))


def compare(own_ptr, own_entries, own_values, candidates, depth, f, squared, out):
    """out[r] = cos(f, v_j) for j = candidates[r], as long as `out`; f is slots and sums of a hash table."""


@helper
def _cosine(product, own, squared):
    return f4(product / (own * squared) ** 0.5) if own * squared > f8(0.0) else f4(0.0)


@helper
def _compare_plain(own_ptr, own_entries, own_values, candidates, depth, f, squared, out):
    slots, sums = f
    mask = u8(slots.shape[0] - 1)
    for r in range(u8(out.shape[0])):
        first = u8(own_ptr[u8(candidates[r])])
        last = min(u8(own_ptr[u8(candidates[r]) + u8(1)]), first + u8(depth))
        product, own = f8(0.0), f8(0.0)
        for place in range(first, last):
            value = number(own_values[place])
            own += value * value
            # A free slot holds the sum 0, so an id that f does not reach adds nothing.
            product += value * sums[slot_of(own_entries[place], slots, mask)]
        out[r] = _cosine(product, own, squared)


@helper
def _compare_coded(own_ptr, own_entries, own_values, candidates, depth, f, squared, out):
    slots, sums = f
    mask = u8(slots.shape[0] - 1)
    ids, values = np.empty(HEAD, np.uint32), np.empty(HEAD, np.float64)
    for r in range(u8(out.shape[0])):
        start, stop = u8(own_ptr[u8(candidates[r])]), u8(own_ptr[u8(candidates[r]) + u8(1)])
        # The scale of a column does not change its direction.
        length = read_column(own_entries, start, stop, f8(1.0), True, ids, values)
        if length == BROKEN:
            out[r] = np.nan
            continue
        product, own = f8(0.0), f8(0.0)
        for entry in range(length):
            own += values[entry] * values[entry]
            product += values[entry] * sums[slot_of(ids[entry], slots, mask)]
        out[r] = _cosine(product, own, squared)


@overload(compare)
def _compare_compiled(own_ptr, own_entries, own_values, candidates, depth, f, squared, out):
    chosen = _compare_coded if own_entries.dtype == u1 else _compare_plain
    return lambda own_ptr, own_entries, own_values, candidates, depth, f, squared, out: chosen(
        own_ptr, own_entries, own_values, candidates, depth, f, squared, out
    )


@compiled(
    void(*_SEEDS, *_CODED, *_CODED, *_CANDIDATES),
    void(*_SEEDS, *_CODED, *_PLAIN_2, *_CANDIDATES),  # an index of regions, whose images have plain vectors
    void(*_SEEDS, *_PLAIN_2, *_PLAIN_2, *_CANDIDATES),
    void(*_SEEDS, *_PLAIN_4, *_PLAIN_4, *_CANDIDATES),
)
def refine_candidates(
    query_ptr, seeds, weights, indptr, entries, values, own_ptr, own_entries, own_values,
    candidates, counts, targets, depth, root, out,
):  # fmt: skip
    """out[q, r] = cos(f, v_j) for candidate j = candidates[q, r], r < counts[q]; NaN if a column is damaged.

    f = sum_j weights[j] * column[seeds[j]] over the seeds query_ptr[q]:query_ptr[q + 1], as in Algorithm 1, or the root
    of it, entry by entry, if `root` is not 0. The entries of columns are below `targets`. v_j, the candidate's own
    vector, is column j of own_ptr, own_entries and own_values; only its `depth` largest entries are read, or its head
    if it is coded.
    """
    table = new_table(query_ptr, seeds, (indptr, entries, values), targets)
    slots, sums, used, _, _ = table
    nobody = np.empty(0, np.uint32)
    for q in range(u8(query_ptr.shape[0] - 1)):
        first, last = u8(query_ptr[q]), u8(query_ptr[q + u8(1)])
        count = add_columns(first, last, seeds, weights, (indptr, entries, values), nobody, targets, table)
        if count == BROKEN:
            out[q] = np.nan
            continue
        squared = f8(0.0)
        for place in range(count):
            slot = u8(used[place])
            if root:
                sums[slot] = sums[slot] ** 0.5
            squared += sums[slot] * sums[slot]
        compare(
            own_ptr, own_entries, own_values, candidates[q], depth, (slots, sums), squared, out[q, : u8(counts[q])]
        )  # fmt: skip
        clear(table, count)
