"""The mutual k-NN graph: which edges there are, their affinity (eq. 1) and its normalisation (eq. 2)."""

import numpy as np

from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u4, u8, void, writable

# Below this, numbers lose their digits, and with them S its bound on the eigenvalues: no edge.
_SMALLEST = np.finfo(np.float64).tiny


@helper
def _lists(ids, node, wanted):
    for position in range(u8(ids.shape[1])):
        if ids[node, position] == wanted:
            return True
    return False


@helper
def _affinity(ids, sims, gamma, node, position):
    """Eq. 1: sim ** gamma where both list each other; zero where they do not, or for a node and itself."""
    other = ids[node, position]
    if other == u4(node) or sims[node, position] <= f4(0.0) or not _lists(ids, u8(other), u4(node)):
        return f8(0.0)
    affinity = f8(sims[node, position]) ** gamma
    return affinity if affinity >= _SMALLEST else f8(0.0)


@compiled(void(readonly(u4, 2), readonly(f4, 2), f8, i8, writable(u8), writable(u4), writable(f8)))
def fill_affinity(ids, sims, gamma, start, indptr, indices, out):
    """A (eq. 1) of as many rows as `indptr` has places for, from `start` on; each row of `indices` is sorted."""
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        for position in range(u8(ids.shape[1])):
            affinity = _affinity(ids, sims, gamma, node, position)
            if affinity > f8(0.0):
                place = end
                while place > indptr[row] and indices[place - u8(1)] > ids[node, position]:  # rows are short
                    indices[place], out[place] = indices[place - u8(1)], out[place - u8(1)]
                    place -= u8(1)
                indices[place], out[place] = ids[node, position], affinity
                end += u8(1)
        indptr[row + u8(1)] = end


@compiled(void(readonly(u8), readonly(f8), writable(f8)))
def sum_rows(indptr, affinity, out):
    """The diagonal of D: out[i] = sum of row i."""
    for row in range(u8(out.shape[0])):
        total = f8(0.0)
        for place in range(indptr[row], indptr[row + u8(1)]):
            total += affinity[place]
        out[row] = total


@compiled(void(readonly(u8), readonly(u4), readonly(f8), i8, readonly(f8), writable(f8)))
def normalize_affinity(indptr, indices, affinity, start, degrees, out):
    """S = D^-1/2 A D^-1/2 (eq. 2) of the rows from `start` on, on the places of A; `degrees` are those of all nodes."""
    for row in range(u8(indptr.shape[0] - 1)):
        root = degrees[u8(start) + row] ** 0.5
        for place in range(indptr[row], indptr[row + u8(1)]):
            # The product of roots, in this order, is the same for (i, j) and (j, i): S is symmetric to the bit.
            out[place] = affinity[place] / (root * degrees[u8(indices[place])] ** 0.5)
