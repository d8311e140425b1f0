"""The second look: candidates ranked by the cosine between the query's combined vector and their own column."""

import numpy as np

from suffuse.kernels.combine import _EMPTY, _number, _slot_of
from suffuse.kernels.jit import compiled, f4, f8, i8, readonly, u2, u4, u8, void, writable

_SEEDS = (readonly(i8), readonly(u4), readonly(f8))
_CANDIDATES = (readonly(i8, 2), readonly(i8), i8, writable(f4, 2))


@compiled(
    void(*_SEEDS, readonly(i8), readonly(u4), readonly(u2), *_CANDIDATES),
    void(*_SEEDS, readonly(i8), readonly(u4), readonly(f4), *_CANDIDATES),
)
def refine_candidates(query_ptr, seeds, weights, indptr, rows, values, candidates, counts, depth, out):
    """out[q, r] = cos(f, c_j) for candidate j = candidates[q, r], r < counts[q].

    f = sum_j weights[j] * column[seeds[j]] over the seeds query_ptr[q]:query_ptr[q + 1], as in Algorithm 1; of the
    candidate's column only the `depth` largest entries are read, which stand first.
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
        slots[:] = _EMPTY
        sums[:] = 0.0
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            seed, weight = u8(seeds[s]), weights[s]
            for place in range(u8(indptr[seed]), u8(indptr[seed + u8(1)])):
                slot = _slot_of(rows[place], slots, mask)
                slots[slot] = rows[place]
                sums[slot] += weight * _number(values[place])
        squared = f8(0.0)
        for slot in range(capacity):
            squared += sums[slot] * sums[slot]
        for r in range(u8(counts[q])):
            candidate = u8(candidates[q, r])
            first = u8(indptr[candidate])
            last = min(u8(indptr[candidate + u8(1)]), first + u8(depth))
            product, own = f8(0.0), f8(0.0)
            for place in range(first, last):
                value = _number(values[place])
                own += value * value
                # A free slot holds the sum 0, so an id that f does not reach adds nothing.
                product += value * sums[_slot_of(rows[place], slots, mask)]
            out[q, r] = f4(product / (own * squared) ** 0.5) if own * squared > f8(0.0) else f4(0.0)
