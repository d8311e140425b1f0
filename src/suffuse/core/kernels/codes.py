"""Columns as they are stored: plain, or in a compact code of about 1.3 bytes an entry where an id alone has four.

Columns are four arrays: column i lies at starts[i]:stops[i], in any order, since columns of an index that grew lie
behind the others. Plain ones are starts, stops, rows (uint32) and values (float32, or the bits of float16), largest
first; coded ones are starts, stops, codes (uint8) and scales. Which it is, is decided when a kernel is compiled.

A coded column is a run of bytes and a scale, its largest entry. Its HEAD largest entries come first, then the tail,
each ascending by id, so that an id is the gap to the one before it (the first one: to 0). All values are powers:

    head entry   varint(gap), level               value = scale * 2 ** (-level / STEPS)
    tail         TAIL_LEVELS bytes, the levels of the tail, then
    tail entry   varint(gap << TAIL_BITS | place) value = scale * 2 ** (-levels[place] / STEPS)

A varint is LEB128: seven bits a byte, the lowest first, the high bit set in all bytes but the last.
"""

import numpy as np
from numba import types
from numba.extending import overload

from suffuse.core.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.core.kernels.select import EMPTY, key_of, sort_ascending, write_largest

# Entries that the second look reads: these are coded finely.
HEAD = 20
# Levels of an octave: a byte then spans 16 octaves, and the columns of Oxford5k span 19 at most, nearly all below 13.
STEPS = 16
# The levels of the tail are fitted to each column: its range is cut into equal parts, and a level is the mean of what
# lies in a part. Measured on Oxford5k: 8 levels give the mAP of float16 within 0.17 points, 4 lose 0.9; 16 take a fifth
# more bytes. Levels at equal distances, not at means, lose 0.5: columns of tight clusters span many octaves.
TAIL_BITS = 3
TAIL_LEVELS = 1 << TAIL_BITS
# Bytes of the longest varint: 5 hold 35 bits, an id of 31 and a level.
LONGEST = 5

# A column that got longer than what it is to keep by this share of it is coded anew, without its least entries.
_LONGER = 4
# What came of a column that was to be appended to.
DAMAGED, TO_CODE_ANEW, APPENDED, UNCHANGED = -1, 0, 1, 2

# Instead of a number of entries, -1 and -2 if they had a sign: the column is damaged; it lies outside of the file.
BROKEN, OUTSIDE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFE)

# The types of columns: coded, plain as float16, plain as float32.
CODED, HALF, SINGLE = STORED = tuple(
    (readonly(i8), readonly(i8), readonly(entries), readonly(values))
    for entries, values in ((u1, f4), (u4, u2), (u4, f4))
)

_LEVELS = 256
# Every level that a byte can spell, so that a damaged column cannot reach outside.
_POWERS = 2.0 ** (-np.arange(_LEVELS) / STEPS)


@helper
def _read_varint(codes, place, stop):
    """The number at codes[place], and where the next one is; that is behind `stop` if it does not end in time."""
    number, shift = u8(codes[place] & u1(127)), u8(7)
    while codes[place] >= u1(128):
        place += u8(1)
        if place >= stop or shift >= u8(7 * LONGEST):
            return number, stop + u8(1)
        number |= u8(codes[place] & u1(127)) << shift
        shift += u8(7)
    return number, place + u8(1)


@helper
def read_column(codes, place, stop, scale, head_only, ids, values):
    """Write the entries of codes[place:stop], or its head alone, to ids and values; returns how many, or BROKEN.

    They have enough `room`. Ids are not checked, but for what an uint32 holds: EMPTY is no id.
    """
    id, count = u8(0), u8(0)
    while place < stop and count < u8(HEAD):
        gap, place = _read_varint(codes, place, stop)
        id += gap
        if place >= stop or id >= u8(EMPTY):  # no room for the level, or no id
            return BROKEN
        ids[count], values[count] = u4(id), scale * _POWERS[u8(codes[place])]
        place += u8(1)
        count += u8(1)
    if place == stop or head_only:
        return count
    levels, place = place, place + u8(TAIL_LEVELS)
    if place > stop:
        return BROKEN
    id = u8(0)
    while place < stop:
        code, place = _read_varint(codes, place, stop)
        id += code >> u8(TAIL_BITS)
        if place > stop or id >= u8(EMPTY):
            return BROKEN
        level = u8(codes[levels + (code & u8(TAIL_LEVELS - 1))])
        ids[count], values[count] = u4(id), scale * _POWERS[level]
        count += u8(1)
    return count


@helper
def _end_of_head(codes, place, stop):
    """Where the levels of the tail begin, in a column that was read and has one."""
    for _ in range(HEAD):
        _, place = _read_varint(codes, place, stop)
        place += u8(1)
    return place


@helper
def _write_varint(number, codes, place):
    """Write a number; returns where the next one goes."""
    while number >= u8(128):
        codes[place] = u1(number & u8(127)) | u1(128)
        number >>= u8(7)
        place += u8(1)
    codes[place] = u1(number)
    return place + u8(1)


@helper
def _write_entries(keys, count, in_head, codes, place):
    """Code `count` keys, id << 8 | level, in the order of their ids; returns where the next byte goes."""
    previous = u8(0)
    sort_ascending(keys, count)
    for k in range(u8(count)):
        id, level = keys[k] >> u8(8), keys[k] & u8(255)
        if in_head:
            place = _write_varint(id - previous, codes, place)
            codes[place] = u1(level)
            place += u8(1)
        else:
            place = _write_varint((id - previous) << u8(TAIL_BITS) | level, codes, place)
        previous = id
    return place


@helper
def _fit_levels(depths, parts, levels):
    """Cut the range of rising depths into equal parts: which part each is in, and the mean of each part, rounded."""
    low = depths[0]
    width = (depths[-1] - low) / f8(TAIL_LEVELS)
    sums, counts = np.zeros(TAIL_LEVELS, np.float64), np.zeros(TAIL_LEVELS, np.float64)
    for entry in range(u8(depths.shape[0])):
        part = min(u8(max((depths[entry] - low) / width, f8(0.0))), u8(TAIL_LEVELS - 1)) if width > f8(0.0) else u8(0)
        parts[entry] = u1(part)
        sums[part] += depths[entry]
        counts[part] += f8(1.0)
    for part in range(u8(TAIL_LEVELS)):
        levels[part] = u1(np.rint(sums[part] / counts[part])) if counts[part] > f8(0.0) else u1(0)


@compiled(void(readonly(u4), readonly(f4), readonly(i8), writable(u1), writable(f4), writable(i8), writable(i8)))
def encode_columns(rows, values, indptr, codes, scales, stored, out):
    """Code columns that follow each other, whose values are above 0 and the largest first; column c ends at out[c].

    Entries below scale * 2 ** (-255.5 / STEPS) are left out; stored[c] = how many are not. `codes` has room for
    TAIL_LEVELS bytes a column and LONGEST + 1 an entry.
    """
    longest = 0
    for column in range(u8(out.shape[0])):
        longest = max(longest, indptr[column + u8(1)] - indptr[column])
    depths, keys, parts = np.empty(longest, np.float64), np.empty(longest, np.uint64), np.empty(longest, np.uint8)
    place = u8(0)
    for column in range(u8(out.shape[0])):
        first, length = u8(indptr[column]), u8(indptr[column + u8(1)] - indptr[column])
        scale = values[first] if length > u8(0) else f4(0.0)
        count = u8(0)
        while count < length:
            depths[count] = np.log2(f8(scale) / f8(values[first + count])) * f8(STEPS)
            if not np.rint(depths[count]) < f8(_LEVELS):
                break
            count += u8(1)
        head = min(count, u8(HEAD))
        for entry in range(head):
            keys[entry] = u8(rows[first + entry]) << u8(8) | u8(np.rint(depths[entry]))
        place = _write_entries(keys, head, True, codes, place)
        if count > head:
            _fit_levels(depths[head:count], parts, codes[place : place + u8(TAIL_LEVELS)])
            for entry in range(head, count):
                keys[entry - head] = u8(rows[first + entry]) << u8(8) | u8(parts[entry - head])
            place = _write_entries(keys, count - head, False, codes, place + u8(TAIL_LEVELS))
        scales[column], stored[column], out[column] = scale, i8(count), i8(place)


@compiled(void(*CODED, readonly(i8), writable(u4), writable(f4), writable(i8)))
def decode_columns(starts, stops, codes, scales, columns, rows, values, out):
    """The entries of `columns`, one column after the other, as they are stored; column c ends at out[c].

    `rows` and `values` have room for a byte each. If column c is damaged, out[c:] = -1.
    """
    end = u8(0)
    out[:] = -1
    for c in range(u8(columns.shape[0])):
        start, stop = u8(starts[u8(columns[c])]), u8(stops[u8(columns[c])])
        scale = f8(scales[u8(columns[c])])
        count = read_column(codes, start, stop, scale, False, rows[end:], values[end:])
        if count == BROKEN:
            return
        end += count
        out[c] = i8(end)


# --- columns read the same way, whatever way they are stored


def number(stored):
    """A stored entry as float64: numba knows no float16, so those arrive as their bits."""


@overload(number)
def _number_compiled(stored):
    if stored == u2:
        # A positive float16, shifted into place, is a float32 whose exponent is 112 too small.
        return lambda stored: f8(np.uint32(u4(stored) << u4(13)).view(np.float32)) * f8(2.0**112)
    return lambda stored: f8(stored)


@helper
def lies_inside(starts, stops, entries, column):
    """Whether a column is where there are entries: files may be damaged, and nothing else checks this."""
    start, stop = starts[column], stops[column]
    return i8(0) <= start <= stop <= i8(entries.shape[0])


def room(starts, stops, entries, column):
    """No fewer than the entries of a column that lies inside."""


def read(starts, stops, entries, values, column, head_only, ids, numbers):
    """Write the entries of a column that lies inside to ids and numbers, and return how many, or BROKEN.

    With `head_only`, no more than its HEAD largest entries.
    """


@helper
def _room_plain(starts, stops, entries, column):
    return u8(stops[column] - starts[column])


@helper
def _room_coded(starts, stops, entries, column):
    count = u8(0)
    for byte in range(u8(starts[column]), u8(stops[column])):
        count += u8(entries[byte] < u1(128))  # each entry has one byte that ends its varint
    return count


@overload(room)
def _room_compiled(starts, stops, entries, column):
    chosen = _room_coded if entries.dtype == u1 else _room_plain
    return lambda starts, stops, entries, column: chosen(starts, stops, entries, column)


@helper
def _read_plain(starts, stops, entries, values, column, head_only, ids, numbers):
    first = u8(starts[column])
    count = u8(stops[column]) - first
    if head_only:
        count = min(count, u8(HEAD))
    for entry in range(count):
        ids[entry], numbers[entry] = entries[first + entry], number(values[first + entry])
    return count


@helper
def _read_coded(starts, stops, entries, values, column, head_only, ids, numbers):
    start, stop = u8(starts[column]), u8(stops[column])
    return read_column(entries, start, stop, f8(values[column]), head_only, ids, numbers)


@overload(read)
def _read_compiled(starts, stops, entries, values, column, head_only, ids, numbers):
    chosen = _read_coded if entries.dtype == u1 else _read_plain
    return lambda starts, stops, entries, values, column, head_only, ids, numbers: chosen(
        starts, stops, entries, values, column, head_only, ids, numbers
    )


@helper
def longest_column(starts, stops, entries):
    """No fewer than the entries of any column that lies inside: each has a byte at least."""
    longest = i8(0)
    for column in range(u8(starts.shape[0])):
        if lies_inside(starts, stops, entries, column):
            longest = max(longest, stops[column] - starts[column])
    return longest


# --- columns of an index that grows


@helper
def _nearest_level(depth, codes, levels):
    """The place of the level of a tail that is nearest to a depth; TAIL_LEVELS if all are above it.

    Level 0 stands for a part of the range in which nothing was.
    """
    nearest, deepest = u8(TAIL_LEVELS), f8(0.0)
    for place in range(u8(TAIL_LEVELS)):
        level = f8(codes[levels + place])
        deepest = max(deepest, level)
        if level > f8(0.0) and (
            nearest == u8(TAIL_LEVELS) or abs(level - depth) < abs(f8(codes[levels + nearest]) - depth)
        ):
            nearest = place
    return nearest if depth <= deepest else u8(TAIL_LEVELS)


@helper
def _append(codes, start, stop, scale, count, ids, values, more, longer, end):
    """Write a column with a tail, and more entries behind it; returns where that ends, and what came of it.

    `more` are ids above those of the column, ascending, and their values.
    """
    least = values[0]
    for entry in range(u8(HEAD)):
        least = min(least, values[entry])
    more_ids, more_values, first, last = more
    for entry in range(first, last):
        if more_values[entry] > least or u8(more_ids[entry]) <= u8(ids[count - u8(1)]):
            return end, i8(TO_CODE_ANEW)
    levels, place, previous = _end_of_head(codes, start, stop), end, u8(ids[count - u8(1)])
    for byte in range(start, stop):
        longer[place] = codes[byte]
        place += u8(1)
    copied = place
    for entry in range(first, last):
        level = _nearest_level(np.log2(scale / f8(more_values[entry])) * f8(STEPS), codes, levels)
        if level < u8(TAIL_LEVELS):
            place = _write_varint((u8(more_ids[entry]) - previous) << u8(TAIL_BITS) | level, longer, place)
            previous = u8(more_ids[entry])
    return (end, i8(UNCHANGED)) if place == copied else (place, i8(APPENDED))


@compiled(void(*CODED, i8, i8, readonly(i8), readonly(u4), readonly(f4), writable(u1), writable(i8), writable(i8)))
def append_to_codes(
    starts, stops, codes, scales, reach, keep, more_ptr, more_ids, more_values, longer, ends, out
):  # fmt: skip
    """Coded columns with more_ptr[i]:more_ptr[i + 1] at the end of their tails, in the levels that they have.

    That is exact to a level, and much faster than to code them anew. Columns hold ids below `reach`; ids to append are
    not below it, and rise. Column i ends at ends[i] of `longer`, which has room for LONGEST bytes more an entry. What
    lies below all levels is among the least of a column of `keep` entries, and left out. out = APPENDED, UNCHANGED if
    nothing is left, DAMAGED, or TO_CODE_ANEW if an entry belongs in the head or the column has less than `keep`, or
    much more.
    """
    longest = longest_column(starts, stops, codes)
    ids, values, end = np.empty(longest, np.uint32), np.empty(longest, np.float64), u8(0)
    for column in range(u8(starts.shape[0])):
        ends[column], out[column] = i8(end), i8(DAMAGED)
        if not lies_inside(starts, stops, codes, column):
            continue
        start, stop, scale = u8(starts[column]), u8(stops[column]), f8(scales[column])
        count = read_column(codes, start, stop, scale, False, ids, values)
        sound = count != BROKEN
        for entry in range(count if sound else u8(0)):
            sound &= u8(ids[entry]) < u8(reach)
        if not sound:
            continue
        out[column] = i8(TO_CODE_ANEW)
        if u8(keep) <= count <= u8(keep + keep // _LONGER) and count > u8(HEAD):
            more = (more_ids, more_values, u8(more_ptr[column]), u8(more_ptr[column + u8(1)]))
            end, out[column] = _append(codes, start, stop, scale, count, ids, values, more, longer, end)
            ends[column] = i8(end)


# --- columns over regions summed to columns over images: sum pooling is linear, so it can be done before storing

_POOLED = (writable(u4, 2), writable(f4, 2), writable(i8))


@compiled(*(void(*columns, readonly(u4), i8, types.boolean, *_POOLED) for columns in (HALF, SINGLE)))
def pool_columns(starts, stops, rows, values, owners, images, root, pooled_rows, pooled_values, out):
    """The sum of each column by image, its largest entries first; out = how many of each are stored.

    `owners` (n,) are the images of the rows; empty where rows are images. With `root`, the root of each sum: a few
    repeated regions would drown the rest of an image's neighbourhood.
    """
    sums, pooled = np.zeros(images, np.float64), owners.shape[0] > 0
    touched, keys = np.empty(images, np.uint32), np.empty(images, np.uint64)
    for column in range(u8(starts.shape[0])):
        count = u8(0)
        for entry in range(u8(starts[column]), u8(stops[column])):
            image = owners[u8(rows[entry])] if pooled else rows[entry]
            if sums[u8(image)] == f8(0.0):  # stored entries are above zero, so a sum of zero is an image not yet seen
                touched[count] = image
                count += u8(1)
            sums[u8(image)] += number(values[entry])
        for t in range(count):
            total = sums[u8(touched[t])]
            keys[t] = key_of(total**0.5 if root else total, touched[t])
            sums[u8(touched[t])] = f8(0.0)
        out[column] = i8(write_largest(keys, count, pooled_rows[column], pooled_values[column]))
