"""Search of an HNSW graph (Malkov and Yashunin) by inner product: proposals, not yet similarities.

The graph comes from files that may be damaged, so every id and offset is compared with its range before it is used,
and every loop is bounded: an element is expanded at most once, and a descent only ever climbs to a larger similarity.
What cannot be seen from ids are links and features that are others than those that were written: the pages under each
row that is read are looked at once (`kernels.pages`), after the row, which has fetched them by then.
"""

import mmap

import numpy as np
from numba import types

from suffuse.core.kernels.checksums import PAGES, are_sound, rows_are_sound
from suffuse.core.kernels.jit import compiled, f4, helper, i8, readonly, u4, u8, void, writable
from suffuse.core.kernels.select import EMPTY, slot_of

_LARGEST_ID = np.uint64(0x7FFFFFFF)
_ZERO = np.uint32(0x80000000)
_NAN = np.uint32(0x7FC00000)

# Whether the system can be asked to read parts of a file beforehand.
CAN_FETCH = hasattr(mmap, "MADV_WILLNEED")

# Slots of the visited set for each candidate that is kept: 16 elements are looked at for one that is kept.
_SLOTS_PER_CANDIDATE = np.uint64(32)


@helper
def _candidate(sim, id):
    """A key that orders by similarity, which may be negative, then by smaller id; lowest bit: not yet expanded.

    What is not a number comes first, of whatever sign, so that damaged features are seen in the answer.
    """
    bits = np.float32(sim).view(np.uint32) if sim == sim else _NAN
    ordered = _ZERO - (bits - _ZERO) if bits >= _ZERO else _ZERO + bits
    return (u8(ordered) << u8(32)) | ((_LARGEST_ID - u8(id)) << u8(1)) | u8(1)


@helper
def _element(candidate):
    """The id in a candidate."""
    return u4(_LARGEST_ID - ((candidate >> u8(1)) & _LARGEST_ID))


if CAN_FETCH:
    _madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))

    @helper
    def _fetch(array, ids, count):
        """Ask the system for array[id] of all these ids at once: from a disk, one after the other takes ages."""
        size = u8(array.shape[1]) * u8(array.itemsize)
        for c in range(count):
            start = u8(array.ctypes.data) + u8(ids[c]) * size
            page = start - start % u8(mmap.PAGESIZE)
            _madvise(page, start + size - page, types.int32(mmap.MADV_WILLNEED))

else:

    @helper
    def _fetch(array, ids, count):
        """Nothing, where the system cannot be asked."""


@helper
def _dots(queries, q, features, ids, count, fetch, sims):
    """sims[c] = queries[q] . features[ids[c]] for c < count, in float32.

    Four rows at a time: they come from memory, and so the CPU waits for four at once instead of for one after another.
    """
    dimensions = u8(features.shape[1])
    if fetch:
        _fetch(features, ids, count)
    c = u8(0)
    while c + u8(4) <= count:
        i0, i1 = u8(ids[c]), u8(ids[c + u8(1)])
        i2, i3 = u8(ids[c + u8(2)]), u8(ids[c + u8(3)])
        s0, s1, s2, s3 = f4(0.0), f4(0.0), f4(0.0), f4(0.0)
        for t in range(dimensions):
            x = queries[q, t]
            s0 += x * features[i0, t]
            s1 += x * features[i1, t]
            s2 += x * features[i2, t]
            s3 += x * features[i3, t]
        sims[c], sims[c + u8(1)], sims[c + u8(2)], sims[c + u8(3)] = s0, s1, s2, s3
        c += u8(4)
    while c < count:
        i0, s0 = u8(ids[c]), f4(0.0)
        for t in range(dimensions):
            s0 += queries[q, t] * features[i0, t]
        sims[c] = s0
        c += u8(1)


@helper
def _starts_are_sound(pages, upper_start, id):
    """Whether upper_start[id] and the next one are what was written."""
    size = u8(upper_start.itemsize)
    return are_sound(pages, u8(id) * size, (u8(id) + u8(2)) * size)


@helper
def _descend(queries, q, features, upper_start, upper, entry, pages, fetch, fresh, sims):
    """From the entry point to the nearest element that greedy steps reach on each upper level; EMPTY if broken."""
    of_features, _, of_starts, of_upper = pages
    n, size = u4(features.shape[0]), u8(upper.shape[1]) * u8(upper.itemsize)
    row_size = u8(features.shape[1]) * u8(features.itemsize)
    fresh[0] = current = u4(entry)
    _dots(queries, q, features, fresh, u8(1), fetch, sims)
    if not rows_are_sound(of_features, row_size, fresh, u8(1)):
        return EMPTY
    nearest = sims[0]
    if upper_start[u8(entry) + u8(1)] < upper_start[u8(entry)] or not _starts_are_sound(of_starts, upper_start, entry):
        return EMPTY
    level = u8(upper_start[u8(entry) + u8(1)]) - u8(upper_start[u8(entry)])
    while level > u8(0):
        row = u8(upper_start[u8(current)]) + level - u8(1)
        if row >= u8(upper_start[u8(current) + u8(1)]) or row >= u8(upper.shape[0]):
            return EMPTY
        if not _starts_are_sound(of_starts, upper_start, current):
            return EMPTY
        if not are_sound(of_upper, row * size, (row + u8(1)) * size):
            return EMPTY
        count = u8(0)
        while count < u8(upper.shape[1]) and upper[row, count] != EMPTY:
            if upper[row, count] >= n:
                return EMPTY
            fresh[count] = upper[row, count]
            count += u8(1)
        _dots(queries, q, features, fresh, count, fetch, sims)
        if not rows_are_sound(of_features, row_size, fresh, count):
            return EMPTY
        moved = False
        for c in range(count):
            if sims[c] > nearest or (moved and sims[c] == nearest and fresh[c] < current):
                current, nearest, moved = fresh[c], sims[c], True
        if not moved:
            level -= u8(1)
    return current


@helper
def _insert(pool, size, candidate):
    """Where the candidate belongs in pool[:size], largest first; the smallest one falls out if the pool is full."""
    place = min(u8(size), u8(pool.shape[0]) - u8(1))
    while place > u8(0) and pool[place - u8(1)] < candidate:
        pool[place] = pool[place - u8(1)]
        place -= u8(1)
    pool[place] = candidate
    return place


@helper
def _doubled(slots):
    """The visited set in a table of twice the size."""
    capacity = u8(2) * u8(slots.shape[0])
    larger = np.full(capacity, EMPTY, np.uint32)
    for slot in range(u8(slots.shape[0])):
        if slots[slot] != EMPTY:
            larger[slot_of(slots[slot], larger, capacity - u8(1))] = slots[slot]
    return larger


@helper
def _write(pool, size, copies, n, ids, q):
    """Write the elements of pool[:size], each followed by its copies, to ids[q]; returns how many fit, -1 if broken."""
    count, room = u8(0), u8(ids.shape[1])
    for place in range(size):
        if count == room:
            break
        id = _element(pool[place])
        ids[q, count] = id
        count += u8(1)
        low, high = u8(0), u8(copies.shape[0])
        while low < high:
            middle = (low + high) // u8(2)
            if copies[middle, u8(0)] < id:
                low = middle + u8(1)
            else:
                high = middle
        while count < room and low < u8(copies.shape[0]) and copies[low, u8(0)] == id:
            if copies[low, u8(1)] >= n:
                return i8(-1)
            ids[q, count] = copies[low, u8(1)]
            count += u8(1)
            low += u8(1)
    return i8(count)


_GRAPH = (readonly(u4, 2), readonly(u4), readonly(u4, 2), readonly(u4, 2), i8)


@compiled(
    void(
        readonly(f4, 2), readonly(f4, 2), *_GRAPH, types.UniTuple(PAGES, 4),
        i8, types.boolean, writable(u4, 2), writable(i8),
    )
)  # fmt: skip
def search_hnsw(queries, features, links, upper_start, upper, copies, entry, pages, ef, fetch, ids, out):
    """Elements near each query, the nearest first by a float32 product, as many as found and as fit into ids[q].

    links[i] are the neighbours of element i on level 0; those on level l > 0 are upper[upper_start[i] + l - 1]. A list
    ends at EMPTY. copies[c] = (element, another with the same row, which has no neighbours), sorted. `entry` exists.
    Best-first search with `ef` candidates: the best one whose neighbours were not looked at is next, until there is
    none. out[q] = number of ids written; -1 if the graph holds an id or an offset that does not exist, or if `pages`,
    those of features, links, upper_start and upper, are not what was written. With `fetch`, what is read next is asked
    for beforehand: for files that are still on disk.

    Visited elements are kept in a hash table, so that a query costs what it visits and not what there is.
    """
    n, width, room = u4(features.shape[0]), u8(links.shape[1]), max(u8(ef), u8(1))
    of_features, of_links, row_size = pages[0], pages[1], u8(features.shape[1]) * u8(features.itemsize)
    longest = max(width, u8(upper.shape[1]), u8(1))
    fresh, sims = np.empty(longest, np.uint32), np.empty(longest, np.float32)
    pool, capacity = np.empty(room, np.uint64), u8(16)
    while capacity < _SLOTS_PER_CANDIDATE * room:
        capacity *= u8(2)
    slots = np.empty(capacity, np.uint32)
    for q in range(u8(queries.shape[0])):
        slots[:] = EMPTY
        start = _descend(queries, q, features, upper_start, upper, entry, pages, fetch, fresh, sims)
        if start == EMPTY:
            out[q] = i8(-1)
            continue
        fresh[0] = start
        _dots(queries, q, features, fresh, u8(1), fetch, sims)
        pool[0] = _candidate(sims[0], start)
        slots[slot_of(start, slots, u8(slots.shape[0]) - u8(1))] = start
        size, visited, cursor, sound = u8(1), u8(1), u8(0), True
        while cursor < size and sound:
            if pool[cursor] & u8(1) == u8(0):
                cursor += u8(1)
                continue
            current = u8(_element(pool[cursor]))
            pool[cursor] -= u8(1)
            while u8(2) * (visited + width) > u8(slots.shape[0]):  # a full table would be searched for ever
                slots = _doubled(slots)
            mask, count = u8(slots.shape[0]) - u8(1), u8(0)
            for c in range(width):
                id = links[current, c]
                if id >= n:
                    sound = id == EMPTY
                    break
                slot = slot_of(id, slots, mask)
                if slots[slot] == EMPTY:
                    slots[slot] = id
                    fresh[count] = id
                    count += u8(1)
            visited += count
            _dots(queries, q, features, fresh, count, fetch, sims)
            row = current * width * u8(links.itemsize)
            sound = sound and are_sound(of_links, row, row + width * u8(links.itemsize))
            sound = sound and rows_are_sound(of_features, row_size, fresh, count)
            for c in range(count):
                candidate = _candidate(sims[c], fresh[c])
                if size < room or candidate > pool[size - u8(1)]:
                    cursor = min(cursor, _insert(pool, size, candidate))
                    size = min(size + u8(1), room)
                    if fetch:
                        _fetch(links, fresh[c : c + u8(1)], u8(1))
        out[q] = _write(pool, size, copies, n, ids, q) if sound else i8(-1)
