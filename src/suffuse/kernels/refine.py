"""The second look: candidates ranked by the cosine between the query's combined vector and their own column."""

import numpy as np

from suffuse.kernels.combine import EMPTY, number, slot_of
from suffuse.kernels.jit import compiled, f4, f8, i8, readonly, u2, u4, u8, void, writable

_SEEDS = (readonly(i8), readonly(u4), readonly(f8))
_CANDIDATES = (readonly(i8, 2), readonly(i8), i8, i8, writable(f4, 2))
_COLUMNS_2 = (readonly(i8), readonly(u4), readonly(u2))
_COLUMNS_4 = (readonly(i8), readonly(u4), readonly(f4))


@compiled(
    void(*_SEEDS, *_COLUMNS_2, *_COLUMNS_2, *_CANDIDATES),
    void(*_SEEDS, *_COLUMNS_4, *_COLUMNS_4, *_CANDIDATES),
)
def refine_candidates(
    query_ptr, seeds, weights, indptr, rows, values, own_ptr, own_rows, own_values, candidates, counts, depth, root, out
):
    """out[q, r] = cos(f, v_j) for candidate j = candidates[q, r], r < counts[q].

    f = sum_j weights[j] * column[seeds[j]] over the seeds query_ptr[q]:query_ptr[q + 1], as in Algorithm 1, or the root
    of it, entry by entry, if `root` is not 0. v_j, the candidate's own vector, is column j of own_ptr, own_rows and
    own_values; only its `depth` largest entries are read, which stand first.
    """
    largest = u8(0)
    for q in range(u8(query_ptr.shape[0] - 1)):
        entries = u8(0)
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            entries += u8(indptr[u8(seeds[s]) + u8(1)] - indptr[u8(seeds[s])])
        largest = max(largest, entries)
    capacity = u8(16)
    while capacity < u8(2) * largest:
        capacity *= u8(2)
    mask = capacity - u8(1)
    slots, sums = np.empty(capacity, np.uint32), np.empty(capacity, np.float64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        slots[:] = EMPTY
        sums[:] = 0.0
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            seed, weight = u8(seeds[s]), weights[s]
            for place in range(u8(indptr[seed]), u8(indptr[seed + u8(1)])):
                slot = slot_of(rows[place], slots, mask)
                slots[slot] = rows[place]
                sums[slot] += weight * number(values[place])
        squared = f8(0.0)
        for slot in range(capacity):
            if root:
                sums[slot] = sums[slot] ** 0.5
            squared += sums[slot] * sums[slot]
        for r in range(u8(counts[q])):
            candidate = u8(candidates[q, r])
            first = u8(own_ptr[candidate])
            last = min(u8(own_ptr[candidate + u8(1)]), first + u8(depth))
            product, own = f8(0.0), f8(0.0)
            for place in range(first, last):
                value = number(own_values[place])
                own += value * value
                # A free slot holds the sum 0, so an id that f does not reach adds nothing.
                product += value * sums[slot_of(own_rows[place], slots, mask)]
            out[q, r] = f4(product / (own * squared) ** 0.5) if own * squared > f8(0.0) else f4(0.0)
