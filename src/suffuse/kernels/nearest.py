"""The largest entries of each row, or of each column, of a product that comes tile by tile.

What is kept of a row is a list of keys, twice as long as wanted: a similarity above the row's floor is appended, and
when the list is full its larger half stays and the floor rises. So most entries cost one comparison.
"""

from suffuse.kernels.jit import compiled, f4, helper, i8, readonly, u8, void, writable
from suffuse.kernels.select import largest_first, signed_key, signed_score

# Entries that are compared at once, and counted in float32, which the compiler turns into vectors; a branch for each
# entry would be ten times slower.
_LANES = 64


@helper
def _append(sim, id, keys, counts, floors, place):
    """Append an entry to the list at `place`; halve the list where it is full."""
    count = u8(counts[place])
    keys[place, count] = signed_key(sim, id)
    count += u8(1)
    if count == u8(keys.shape[1]):
        wanted = count // u8(2)
        row = keys[place]
        largest_first(row, count, wanted)
        lowest = row[0]
        for k in range(u8(1), wanted):
            lowest = min(lowest, row[k])
        floors[place] = signed_score(lowest)
        count = wanted
    counts[place] = i8(count)


_LISTS = (writable(u8, 2), writable(i8), writable(f4))


@compiled(void(readonly(f4, 2), i8, *_LISTS))
def keep_largest_of_rows(sims, first_id, keys, counts, floors):
    """Enter sims[i, j] into list i under the id first_id + j; keys (m, 2 p), counts (m,), floors (m,)."""
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        row = sims[i]
        for start in range(u8(0), width, u8(_LANES)):
            stop = min(start + u8(_LANES), width)
            if stop - start == u8(_LANES):
                above, floor = f4(0.0), floors[i]
                for lane in range(u8(_LANES)):
                    above += f4(1.0) if row[start + lane] > floor else f4(0.0)
                if above == f4(0.0):
                    continue
            for j in range(start, stop):
                if row[j] > floors[i]:
                    _append(row[j], u8(first_id) + j, keys, counts, floors, i)


@compiled(void(readonly(f4, 2), i8, *_LISTS))
def keep_largest_of_columns(sims, first_id, keys, counts, floors):
    """Enter sims[i, j] into list j under the id first_id + i; keys (n, 2 p), counts (n,), floors (n,)."""
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        row = sims[i]
        for start in range(u8(0), width, u8(_LANES)):
            stop = min(start + u8(_LANES), width)
            if stop - start == u8(_LANES):
                above = f4(0.0)
                for lane in range(u8(_LANES)):
                    above += f4(1.0) if row[start + lane] > floors[start + lane] else f4(0.0)
                if above == f4(0.0):
                    continue
            for j in range(start, stop):
                if row[j] > floors[j]:
                    _append(row[j], u8(first_id) + i, keys, counts, floors, j)
