"""Which columns hold an entry of a marked element: those that a change of it concerns."""

import numpy as np

from suffuse.kernels.codes import BROKEN
from suffuse.kernels.jit import compiled, f4, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.table import lies_inside, read, read_head

_SPANS = (readonly(i8), readonly(i8))


@helper
def _holds_marked(count, ids, marked):
    """1 if one of ids[:count] is marked, or does not exist; or if `count` says that they could not be read."""
    if count == BROKEN:
        return u1(1)
    met = u1(0)
    for entry in range(count):
        id = u8(ids[entry])
        met |= u1(1) if id >= u8(marked.shape[0]) else marked[id]
    return met


@compiled(
    void(*_SPANS, readonly(u1), readonly(f4), readonly(u1), writable(u1)),
    void(*_SPANS, readonly(u4), readonly(u2), readonly(u1), writable(u1)),
    void(*_SPANS, readonly(u4), readonly(f4), readonly(u1), writable(u1)),
)
def meet_marked(starts, stops, entries, values, marked, out):
    """out[i] = 1 if column i holds the id of an element with marked[id] = 1, or cannot be read; else 0.

    The columns are those of `table`.
    """
    longest = i8(0)
    for column in range(u8(starts.shape[0])):
        if lies_inside(starts, stops, entries, column):
            longest = max(longest, stops[column] - starts[column])  # an entry has a byte at least
    ids, numbers = np.empty(longest, np.uint32), np.empty(longest, np.float64)
    for column in range(u8(starts.shape[0])):
        out[column] = u1(1)
        if not lies_inside(starts, stops, entries, column):
            continue
        # Most columns that a change concerns show it in their largest entries.
        if _holds_marked(read_head(starts, stops, entries, values, column, ids, numbers), ids, marked):
            continue
        out[column] = _holds_marked(read(starts, stops, entries, values, column, ids, numbers), ids, marked)
