"""The largest few of many, ties to the smaller id.

A score and its id become one unsigned number, the key: the bits of a positive float32 order like the number
itself, so `bits << 32 | ~id` orders by score and then by smaller id. Keys are unique, hence every selection
has one answer.
"""

import numpy as np

from suffuse.core.kernels.jit import helper, u4, u8

_LOW = np.uint64(0xFFFFFFFF)
_SIGN = np.uint32(0x80000000)
# Bits that are sorted by at once. Measured for 60 to 1,000 keys: 8 and 11 are slower, up to three times.
_DIGIT_BITS = 9
_DIGITS = 1 << _DIGIT_BITS
# No id: ids are below it, so that it can stand for a free slot.
EMPTY = np.uint32(0xFFFFFFFF)


@helper
def key_of(score, id):
    """The key of a positive score, rounded to float32, and an id."""
    return (u8(np.float32(score).view(np.uint32)) << u8(32)) | (_LOW - u8(id))


@helper
def id_of(key):
    """The id in a key."""
    return u4(_LOW - (key & _LOW))


@helper
def score_of(key):
    """The score in a key."""
    return np.uint32(key >> u8(32)).view(np.float32)


@helper
def signed_key(score, id):
    """The same for a score of any sign; -0 comes behind 0."""
    bits = np.float32(score).view(np.uint32)
    ordered = ~bits if bits & _SIGN else bits | _SIGN
    return (u8(ordered) << u8(32)) | (_LOW - u8(id))


@helper
def signed_score(key):
    """The score in a key of a score of any sign."""
    ordered = u4(key >> u8(32))
    return np.uint32(ordered ^ _SIGN if ordered & _SIGN else ~ordered).view(np.float32)


@helper
def largest_first(keys, count, wanted):
    """Partition keys[:count] so that its `wanted` largest stand in front, in any order (quickselect)."""
    low, high = u8(0), u8(count)  # the boundary lies in keys[low:high]
    while high - low > u8(1):
        middle = low + (high - low) // u8(2)
        a, b, c = keys[low], keys[middle], keys[high - u8(1)]
        pivot = max(min(a, b), min(max(a, b), c))
        left, right = low, high - u8(1)
        while True:
            while keys[left] > pivot:
                left += u8(1)
            while keys[right] < pivot:
                right -= u8(1)
            if left >= right:
                break
            keys[left], keys[right] = keys[right], keys[left]
            left += u8(1)
            right -= u8(1)
        # Everything before `left` is >= pivot, everything from it on is <= pivot.
        if left == low:
            left += u8(1)
        if left == u8(wanted):
            return
        if left < u8(wanted):
            low = left
        else:
            high = left


@helper
def sort_descending(keys, count):
    """Sort keys[:count], largest first."""
    _sort(keys, u8(count), ~u8(0))


@helper
def sort_ascending(keys, count):
    """Sort keys[:count], smallest first."""
    _sort(keys, u8(count), u8(0))


@helper
def _sort(keys, count, flipped):
    """Sort keys[:count] by key ^ flipped: digit by digit, the lowest first, of those bits that differ at all.

    Some hundred keys, which is what a column has, take a third to a fifth of the time of a sort by comparisons.
    """
    same, some = ~u8(0), u8(0)
    for k in range(count):
        same &= keys[k]
        some |= keys[k]
    differ, shift = same ^ some, u8(0)
    ends, room = np.empty(_DIGITS, np.uint32), np.empty(count, np.uint64)
    now, then, moved = keys, room, False
    while shift < u8(64) and differ >> shift != u8(0):
        if not (differ >> shift) & u8(1):
            shift += u8(1)
            continue
        ends[:] = u4(0)
        for k in range(count):
            ends[((now[k] ^ flipped) >> shift) & u8(_DIGITS - 1)] += u4(1)
        end = u4(0)
        for digit in range(u8(_DIGITS)):
            own, ends[digit] = ends[digit], end
            end += own
        for k in range(count):
            digit = ((now[k] ^ flipped) >> shift) & u8(_DIGITS - 1)
            then[u8(ends[digit])] = now[k]
            ends[digit] += u4(1)
        now, then, moved = then, now, not moved
        shift += u8(_DIGIT_BITS)
    if moved:
        keys[:count] = room


@helper
def write_largest(keys, count, ids, scores):
    """Write the largest of keys[:count] to ids and scores, largest first, as many as fit; returns how many."""
    kept = min(u8(count), u8(ids.shape[0]))
    if kept < u8(count):
        largest_first(keys, u8(count), kept)
    sort_descending(keys, kept)
    for place in range(kept):
        ids[place] = id_of(keys[place])
        scores[place] = score_of(keys[place])
    return kept


@helper
def slot_of(id, slots, mask):
    """Where `id` is in the hash table, or the free slot where it belongs (linear probing)."""
    slot = (u8(id) * u8(0x9E3779B1)) & mask
    while slots[slot] != EMPTY and slots[slot] != id:
        slot = (slot + u8(1)) & mask
    return slot
