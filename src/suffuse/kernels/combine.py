"""The weighted sum of columns and its largest entries: the online half of Algorithm 1."""

import numpy as np
from numba.extending import overload

from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u2, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest

EMPTY = np.uint32(0xFFFFFFFF)


def number(stored):
    """A stored entry as float64: numba knows no float16, so those arrive as their bits."""


@overload(number)
def _number_compiled(stored):
    if stored == u2:
        # A positive float16, shifted into place, is a float32 whose exponent is 112 too small.
        return lambda stored: f8(np.uint32(u4(stored) << u4(13)).view(np.float32)) * f8(2.0**112)
    return lambda stored: f8(stored)


@helper
def slot_of(id, slots, mask):
    """Where `id` is in the hash table, or the free slot where it belongs (linear probing)."""
    slot = (u8(id) * u8(0x9E3779B1)) & mask
    while slots[slot] != EMPTY and slots[slot] != id:
        slot = (slot + u8(1)) & mask
    return slot


@helper
def _add_columns(first, last, seeds, weights, columns, owners, targets, table):
    """Add weight * column of seeds[first:last] into the hash table; False if an id is out of range."""
    indptr, rows, values = columns
    slots, sums, mask = table
    pooled = owners.shape[0] > 0
    # A larger id would overfill the table, or reach outside of `owners`.
    limit = u4(owners.shape[0]) if pooled else u4(targets)
    for s in range(first, last):
        weight, seed = weights[s], u8(seeds[s])
        for place in range(u8(indptr[seed]), u8(indptr[seed + u8(1)])):
            id = rows[place]
            if id >= limit:
                return False
            if pooled:
                id = owners[u8(id)]
                if id >= u4(targets):
                    return False
            slot = slot_of(id, slots, mask)
            slots[slot] = id
            sums[slot] += weight * number(values[place])
    return True


_QUERIES = (readonly(i8), readonly(u4), readonly(f8))
_IMAGES = (readonly(u4), i8)
_HITS = (writable(i8, 2), writable(f4, 2), writable(i8))


@compiled(
    void(*_QUERIES, readonly(i8), readonly(u4), readonly(u2), *_IMAGES, *_HITS),
    void(*_QUERIES, readonly(i8), readonly(u4), readonly(f4), *_IMAGES, *_HITS),
)
def combine_columns(query_ptr, seeds, weights, indptr, rows, values, owners, targets, ids, scores, out):
    """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1), its largest entries first, ties to the smaller id.

    Query q has the seeds query_ptr[q]:query_ptr[q + 1]. `owners` maps elements to images, whose scores are
    summed; empty where elements are images. `targets` is the number of images. out[q] = number of entries
    written to ids[q] and scores[q]; -1 if columns or owners hold an id that does not exist.
    The sum lives in a hash table, so that memory follows the seeds' columns and not the database.
    """
    largest = u8(0)
    for q in range(u8(query_ptr.shape[0] - 1)):
        entries = u8(0)
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            entries += u8(indptr[u8(seeds[s]) + u8(1)] - indptr[u8(seeds[s])])
        largest = max(largest, min(entries, u8(targets)))
    capacity = u8(16)
    while capacity < u8(2) * largest:
        capacity *= u8(2)
    slots, sums = np.full(capacity, EMPTY, np.uint32), np.zeros(capacity, np.float64)
    keys = np.empty(largest, np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        first, last = u8(query_ptr[q]), u8(query_ptr[q + u8(1)])
        sound = _add_columns(
            first, last, seeds, weights, (indptr, rows, values), owners, u8(targets), (slots, sums, capacity - u8(1))
        )
        count = u8(0)
        for slot in range(capacity):
            score = f4(sums[slot])
            if slots[slot] != EMPTY and score > f4(0.0):
                keys[count] = key_of(score, slots[slot])
                count += u8(1)
            slots[slot], sums[slot] = EMPTY, f8(0.0)
        found = write_largest(keys, count, ids[q], scores[q])
        out[q] = i8(found) if sound else i8(-1)
