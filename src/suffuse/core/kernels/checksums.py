"""Sums of the pages of a file, and whether the pages under what is read are still those that were written.

The sum of a page is that of its 32-bit words, little-endian, each times an odd number of 64 bits that goes with its
place, modulo 2 ** 64: multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014) with
fixed numbers, those of splitmix64. Damage within one word always changes it, since no power of two but 2 ** 64 divides
a difference of 32 bits times an odd number to zero; any other goes unseen once in 2 ** 32 times or less. It is for
accidents, not for attackers, whom the hashes in the manifest are for; and it is as fast as memory.
"""

import numpy as np
from numba import types

from suffuse.core.kernels.jit import compiled, helper, i8, readonly, u1, u4, u8, void, writable

PAGE = 4096
_BYTES, _WORDS = np.uint64(PAGE), np.uint64(PAGE // 4)


def _weights() -> np.ndarray:
    """The first outputs of splitmix64, made odd."""
    z = np.arange(1, PAGE // 4 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


WEIGHTS = _weights()

# A file whose pages have sums: its bytes, its whole words, the sums (none: nothing is checked), 1 for each page that
# was found sound, and where the data of its array starts.
PAGES = types.Tuple((readonly(u1), readonly(u4), readonly(u8), writable(u1), i8))


_NONE = tuple(np.empty(0, kind) for kind in (np.uint8, np.uint32, np.uint64, np.uint8))
for _array in _NONE[:3]:
    _array.flags.writeable = False
# What kernels take for a file whose pages have no sums.
UNCHECKED = (*_NONE, 0)


@helper
def _sum_of(data, words, page):
    """The sum of one page; the last one may be short."""
    start = u8(page) * _WORDS
    stop = min(start + _WORDS, u8(words.shape[0]))
    total = u8(0)
    for j in range(start, stop):
        total += u8(words[j]) * WEIGHTS[j - start]
    if stop - start < _WORDS:
        rest = u8(0)
        for place in range(u8(4) * stop, u8(data.shape[0])):
            rest |= u8(data[place]) << (u8(8) * (place - u8(4) * stop))
        total += rest * WEIGHTS[stop - start]
    return total


@helper
def are_sound(pages, first, stop):
    """Whether the pages under these bytes of the array's data are what was written; what lies outside counts as sound.

    A page is looked at once, by whoever comes first.
    """
    data, words, sums, checked, offset = pages
    if sums.shape[0] == 0 or stop <= first:
        return True
    last = (u8(offset) + u8(stop) - u8(1)) // _BYTES
    for page in range((u8(offset) + u8(first)) // _BYTES, min(last + u8(1), u8(sums.shape[0]))):
        if checked[page] == u1(0):
            if _sum_of(data, words, page) != sums[page]:
                return False
            checked[page] = u1(1)
    return True


@helper
def rows_are_sound(pages, size, ids, count):
    """The same for the rows, of `size` bytes, of ids[:count].

    A call for each row would take longer than its search: here are only calls for pages that nobody has looked at.
    """
    sums, checked, offset = pages[2], pages[3], u8(pages[4])
    if sums.shape[0] == 0:
        return True
    for c in range(count):
        first = u8(ids[c]) * u8(size)
        last = (offset + first + u8(size) - u8(1)) // _BYTES
        for page in range((offset + first) // _BYTES, min(last + u8(1), u8(sums.shape[0]))):
            if checked[page] == u1(0) and not are_sound(pages, first, first + u8(size)):
                return False
    return True


@compiled(void(readonly(u1), readonly(u4), writable(u8)))
def sum_pages(data, words, sums):
    """The sums of all pages of a file."""
    for page in range(u8(sums.shape[0])):
        sums[page] = _sum_of(data, words, page)


@compiled(i8(PAGES, PAGES, i8, PAGES, i8, types.boolean, readonly(i8), readonly(i8), writable(u1), readonly(i8)))
def first_damaged_column(indptr, entries, entry_size, values, value_size, one_value, starts, stops, known, ids):
    """The first place in `ids` whose column lies on a damaged page of any of these files; -1 if there is none.

    Column i is entries[starts[i]:stops[i]], as indptr says at i and i + 1, with values that go with its entries, or
    with `one_value`, that of the column. Sizes are those of an entry and of a value, in bytes. `known` columns were
    found sound before.
    """
    for place in range(u8(ids.shape[0])):
        i = u8(ids[place])
        if known[i]:
            continue
        sound = are_sound(indptr, u8(8) * i, u8(8) * (i + u8(2)))
        if starts[i] >= i8(0):
            start, stop = u8(starts[i]), u8(stops[i])
            sound = sound and are_sound(entries, start * u8(entry_size), stop * u8(entry_size))
            if one_value:
                start, stop = i, i + u8(1)
            sound = sound and are_sound(values, start * u8(value_size), stop * u8(value_size))
        if not sound:
            return i8(place)
        known[i] = u1(1)
    return i8(-1)


@compiled(i8(PAGES, i8, readonly(i8), readonly(i8)))
def first_damaged_span(pages, size, starts, stops):
    """The first place whose items, of `size` bytes, from start to stop lie on a damaged page; -1 if there is none."""
    for place in range(u8(starts.shape[0])):
        if starts[place] >= i8(0) and not are_sound(pages, u8(starts[place]) * u8(size), u8(stops[place]) * u8(size)):
            return i8(place)
    return i8(-1)
