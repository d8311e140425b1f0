"""New elements enter k-NN lists: who is near enough; each takes its place, and the last one falls out."""

from suffuse.kernels.codes import EMPTY
from suffuse.kernels.jit import compiled, f4, i8, readonly, u4, u8, void, writable

# Entries that are compared at once.
_LANES = 64


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
