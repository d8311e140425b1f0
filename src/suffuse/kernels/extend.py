"""Columns with entries more: what elements that came later say about them."""

import numpy as np

from suffuse.kernels.codes import BROKEN
from suffuse.kernels.jit import compiled, f4, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest
from suffuse.kernels.table import lies_inside, read

_SPANS = (readonly(i8), readonly(i8))
_MORE = (readonly(i8), readonly(u4), readonly(f4))
_COLUMNS = (f4, writable(u4, 2), writable(f4, 2), writable(i8))


@compiled(
    void(*_SPANS, readonly(u1), readonly(f4), i8, *_MORE, *_COLUMNS),
    void(*_SPANS, readonly(u4), readonly(u2), i8, *_MORE, *_COLUMNS),
    void(*_SPANS, readonly(u4), readonly(f4), i8, *_MORE, *_COLUMNS),
)
def extend_columns(
    starts, stops, entries, values, reach, more_ptr, more_ids, more_values, floor, rows, numbers, out
):  # fmt: skip
    """The largest entries above `floor` of column i and of more_ptr[i]:more_ptr[i + 1], largest first; out = how many.

    The columns are those of `table`, and hold ids below `reach`. A row of `rows` and `numbers` has room for as many
    entries as a column keeps. out = -1 for a column that is damaged.
    """
    longest, most = i8(0), i8(0)
    for column in range(u8(starts.shape[0])):
        most = max(most, more_ptr[column + u8(1)] - more_ptr[column])
        if lies_inside(starts, stops, entries, column):
            longest = max(longest, stops[column] - starts[column])  # an entry has a byte at least
    ids, found, keys = np.empty(longest, np.uint32), np.empty(longest, np.float64), np.empty(longest + most, np.uint64)
    for column in range(u8(starts.shape[0])):
        out[column] = i8(-1)
        if not lies_inside(starts, stops, entries, column):
            continue
        length = read(starts, stops, entries, values, column, ids, found)
        sound, count = length != BROKEN, u8(0)
        for entry in range(length if sound else u8(0)):
            sound &= u8(ids[entry]) < u8(reach)
            if f4(found[entry]) > floor:
                keys[count] = key_of(found[entry], ids[entry])
                count += u8(1)
        for entry in range(u8(more_ptr[column]), u8(more_ptr[column + u8(1)])):
            if more_values[entry] > floor:
                keys[count] = key_of(more_values[entry], more_ids[entry])
                count += u8(1)
        if sound:
            out[column] = i8(write_largest(keys, count, rows[column], numbers[column]))
