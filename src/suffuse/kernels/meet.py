"""Which columns hold an entry of a marked element: those that a change of it concerns."""

import numpy as np

from suffuse.kernels.codes import BROKEN
from suffuse.kernels.jit import compiled, f4, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.table import lies_inside, read, room

_SPANS = (readonly(i8), readonly(i8))


@compiled(
    void(*_SPANS, readonly(u1), readonly(f4), readonly(u1), writable(u1)),
    void(*_SPANS, readonly(u4), readonly(u2), readonly(u1), writable(u1)),
    void(*_SPANS, readonly(u4), readonly(f4), readonly(u1), writable(u1)),
)
def meet_marked(starts, stops, entries, values, marked, out):
    """out[i] = 1 if column i holds the id of an element with marked[id] = 1, or cannot be read; else 0.

    The columns are those of `table`.
    """
    longest = u8(0)
    for column in range(u8(starts.shape[0])):
        if lies_inside(starts, stops, entries, column):
            longest = max(longest, room(starts, stops, entries, column))
    ids, numbers = np.empty(longest, np.uint32), np.empty(longest, np.float64)
    for column in range(u8(starts.shape[0])):
        out[column] = u1(1)
        if not lies_inside(starts, stops, entries, column):
            continue
        count = read(starts, stops, entries, values, column, ids, numbers)
        if count == BROKEN:
            continue
        met = u1(0)
        for entry in range(count):
            id = u8(ids[entry])
            met |= u1(1) if id >= u8(marked.shape[0]) else marked[id]
        out[column] = met
