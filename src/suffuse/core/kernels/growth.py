"""What a change does to lists and columns: newcomers enter k-NN lists, columns get longer, and those it concerns."""

import numpy as np

from suffuse.core.kernels.codes import BROKEN, STORED, lies_inside, longest_column, read
from suffuse.core.kernels.jit import compiled, f4, helper, i8, readonly, u1, u4, u8, void, writable
from suffuse.core.kernels.select import EMPTY, key_of, write_largest

# Entries that are compared at once.
_LANES = 64

_MORE = (readonly(i8), readonly(u4), readonly(f4))
_COLUMNS = (f4, writable(u4, 2), writable(f4, 2), writable(i8))


@compiled(*(void(*columns, i8, *_MORE, *_COLUMNS) for columns in STORED))
def extend_columns(
    starts, stops, entries, values, reach, more_ptr, more_ids, more_values, floor, rows, numbers, out
):  # fmt: skip
    """The largest entries above `floor` of column i and of more_ptr[i]:more_ptr[i + 1], largest first; out = how many.

    The columns are those of `table`, and hold ids below `reach`. A row of `rows` and `numbers` has room for as many
    entries as a column keeps. out = -1 for a column that is damaged.
    """
    longest, most = longest_column(starts, stops, entries), i8(0)
    for column in range(u8(starts.shape[0])):
        most = max(most, more_ptr[column + u8(1)] - more_ptr[column])
    ids, found, keys = np.empty(longest, np.uint32), np.empty(longest, np.float64), np.empty(longest + most, np.uint64)
    for column in range(u8(starts.shape[0])):
        out[column] = i8(-1)
        if not lies_inside(starts, stops, entries, column):
            continue
        length = read(starts, stops, entries, values, column, False, ids, found)
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


@compiled(*(void(*columns, readonly(u1), writable(u1)) for columns in STORED))
def meet_marked(starts, stops, entries, values, marked, out):
    """out[i] = 1 if column i holds the id of an element with marked[id] = 1, or cannot be read; else 0.

    The columns are those of `table`.
    """
    longest = longest_column(starts, stops, entries)
    ids, numbers = np.empty(longest, np.uint32), np.empty(longest, np.float64)
    for column in range(u8(starts.shape[0])):
        out[column] = u1(1)
        if not lies_inside(starts, stops, entries, column):
            continue
        # Most columns that a change concerns show it in their largest entries.
        if _holds_marked(read(starts, stops, entries, values, column, True, ids, numbers), ids, marked):
            continue
        out[column] = _holds_marked(read(starts, stops, entries, values, column, False, ids, numbers), ids, marked)


@compiled(void(readonly(u4), readonly(u4), readonly(f4), writable(u4, 2), writable(f4, 2), writable(u4)))
def enter_newcomers(lists, newcomers, new_sims, ids, sims, out):
    """Put newcomers[p] with the similarity new_sims[p] into row lists[p] of ids and sims, one after the other.

    Rows are sorted, the largest similarity first, but for the element itself, which stands first; ties by id, so
    newcomers must come in the order of their ids, all above those that are there. A list with free places ends with the
    element itself. out[p] = who fell out of the list: the newcomer itself if it is not near enough, or EMPTY if nobody.
    """
    width = u8(ids.shape[1])
    for p in range(u8(lists.shape[0])):
        row, sim = u8(lists[p]), new_sims[p]
        end = width
        while end > u8(1) and ids[row, end - u8(1)] == u4(row):
            end -= u8(1)
        out[p] = EMPTY
        if end == width:
            end -= u8(1)
            if end == u8(0) or not sim > sims[row, end]:
                out[p] = newcomers[p]
                continue
            out[p] = ids[row, end]
        place = end
        while place > u8(1) and sims[row, place - u8(1)] < sim:
            ids[row, place], sims[row, place] = ids[row, place - u8(1)], sims[row, place - u8(1)]
            place -= u8(1)
        ids[row, place], sims[row, place] = newcomers[p], sim


@compiled(i8(readonly(f4, 2), readonly(f4), writable(u4), writable(u4)))
def find_above(sims, floors, rows, columns):
    """All places with sims[row, column] >= floors[column], row by row, as many as there is room for; returns how many.

    Floors are those of the first columns; there may be more columns.
    """
    width, room, count = u8(floors.shape[0]), u8(rows.shape[0]), u8(0)
    for row in range(u8(sims.shape[0])):
        for start in range(u8(0), width, u8(_LANES)):
            stop = min(start + u8(_LANES), width)
            if stop - start == u8(_LANES):
                # Counted in float32, which the compiler turns into vectors: nearly always there is none.
                above = f4(0.0)
                for lane in range(u8(_LANES)):
                    above += f4(1.0) if sims[row, start + lane] >= floors[start + lane] else f4(0.0)
                if above == f4(0.0):
                    continue
            for column in range(start, stop):
                if sims[row, column] >= floors[column]:
                    if count < room:
                        rows[count], columns[count] = u4(row), u4(column)
                    count += u8(1)
    return i8(count)
