"""A sum of columns in a hash table, whatever way the columns are stored.

Columns are four arrays: column i lies at starts[i]:stops[i], in any order, since columns of an index that grew lie
behind the others. Plain ones are starts, stops, rows (uint32) and values (float32, or the bits of float16), largest
first; coded ones are starts, stops, codes (uint8) and scales (see `codes`). Which it is, is decided when a kernel is
compiled.
"""

import numpy as np
from numba.extending import overload

from suffuse.kernels.codes import BROKEN, EMPTY, HEAD, OUTSIDE, most_entries, read_column
from suffuse.kernels.jit import f8, helper, i8, u1, u2, u4, u8


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


def read(starts, stops, entries, values, column, ids, numbers):
    """Write the entries of a column that lies inside to ids and numbers, and return how many, or BROKEN."""


def read_head(starts, stops, entries, values, column, ids, numbers):
    """The same for no more than its HEAD largest entries."""


@helper
def _room_plain(starts, stops, entries, column):
    return u8(stops[column] - starts[column])


@helper
def _room_coded(starts, stops, entries, column):
    return most_entries(entries, u8(starts[column]), u8(stops[column]))


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
def _read_compiled(starts, stops, entries, values, column, ids, numbers):
    chosen = _read_coded if entries.dtype == u1 else _read_plain
    return lambda starts, stops, entries, values, column, ids, numbers: chosen(
        starts, stops, entries, values, column, False, ids, numbers
    )


@overload(read_head)
def _read_head_compiled(starts, stops, entries, values, column, ids, numbers):
    chosen = _read_coded if entries.dtype == u1 else _read_plain
    return lambda starts, stops, entries, values, column, ids, numbers: chosen(
        starts, stops, entries, values, column, True, ids, numbers
    )


@helper
def new_table(query_ptr, seeds, columns, targets):
    """Room for the sum of any one query: slots of ids, their sums, which slots are in use; and for any one column."""
    largest, longest = u8(0), u8(0)
    for q in range(u8(query_ptr.shape[0] - 1)):
        entries = u8(0)
        for s in range(u8(query_ptr[q]), u8(query_ptr[q + u8(1)])):
            inside = lies_inside(columns[0], columns[1], columns[2], u8(seeds[s]))
            length = room(columns[0], columns[1], columns[2], u8(seeds[s])) if inside else u8(0)
            entries, longest = entries + length, max(longest, length)
        largest = max(largest, min(entries, u8(targets)))
    capacity = u8(16)
    while capacity < u8(2) * largest:
        capacity *= u8(2)
    slots, sums, used = (
        np.full(capacity, EMPTY, np.uint32),
        np.zeros(capacity, np.float64),
        np.empty(largest, np.uint32),
    )
    return slots, sums, used, np.empty(longest, np.uint32), np.empty(longest, np.float64)


@helper
def slot_of(id, slots, mask):
    """Where `id` is in the hash table, or the free slot where it belongs (linear probing)."""
    slot = (u8(id) * u8(0x9E3779B1)) & mask
    while slots[slot] != EMPTY and slots[slot] != id:
        slot = (slot + u8(1)) & mask
    return slot


@helper
def add_columns(first, last, seeds, weights, columns, owners, targets, table):
    """Add weight * column of seeds[first:last] to an empty table; returns how many slots it uses, or what is wrong.

    That is BROKEN, or OUTSIDE for a column that does not lie inside; the table is then empty again.
    """
    slots, sums, used, ids, numbers = table
    mask = u8(slots.shape[0] - 1)
    pooled = owners.shape[0] > 0
    # A larger id would overfill the table, or reach outside of `owners`.
    limit = u4(owners.shape[0]) if pooled else u4(targets)
    count, sound = u8(0), True
    for s in range(first, last):
        if not lies_inside(columns[0], columns[1], columns[2], u8(seeds[s])):
            clear(table, count)
            return OUTSIDE
        weight = weights[s]
        length = read(*columns, u8(seeds[s]), ids, numbers)
        sound = length != BROKEN
        for entry in range(length if sound else u8(0)):
            id = ids[entry]
            if pooled and id < limit:
                id = owners[u8(id)]
                sound = id < u4(targets)
            if not sound or id >= limit:
                sound = False
                break
            slot = slot_of(id, slots, mask)
            if slots[slot] == EMPTY:
                slots[slot] = id
                used[count] = u4(slot)
                count += u8(1)
            sums[slot] += weight * numbers[entry]
        if not sound:
            clear(table, count)
            return BROKEN
    return count


@helper
def clear(table, count):
    """Empty the slots that are in use."""
    slots, sums, used, _, _ = table
    for place in range(count):
        slot = u8(used[place])
        slots[slot], sums[slot] = EMPTY, f8(0.0)
