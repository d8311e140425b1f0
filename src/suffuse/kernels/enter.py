"""New elements enter k-NN lists: each takes its place, and the last one falls out."""

from suffuse.kernels.codes import EMPTY
from suffuse.kernels.jit import compiled, f4, readonly, u4, u8, void, writable


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
