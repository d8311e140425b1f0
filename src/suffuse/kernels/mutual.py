"""The mutual k-NN graph: which edges there are, their affinity (eq. 1) and its normalisation (eq. 2)."""

import numpy as np

from suffuse.kernels.jit import compiled, f4, f8, helper, readonly, u4, u8, void, writable

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


@compiled(void(readonly(u4, 2), readonly(f4, 2), f8, writable(u8)))
def count_edges(ids, sims, gamma, out):
    """out[i + 1] = number of mutual neighbours of i with an affinity above zero; out[0] = 0."""
    out[0] = u8(0)
    for node in range(u8(ids.shape[0])):
        degree = u8(0)
        for position in range(u8(ids.shape[1])):
            if _affinity(ids, sims, gamma, node, position) > f8(0.0):
                degree += u8(1)
        out[node + u8(1)] = degree


@compiled(void(readonly(u4, 2), readonly(f4, 2), f8, readonly(u8), writable(u4), writable(f8)))
def fill_affinity(ids, sims, gamma, indptr, indices, out):
    """A (eq. 1) row by row, into the places that `count_edges` counted; each row of `indices` ends up sorted."""
    for node in range(u8(ids.shape[0])):
        end = indptr[node]
        for position in range(u8(ids.shape[1])):
            affinity = _affinity(ids, sims, gamma, node, position)
            if affinity > f8(0.0):
                place = end
                while place > indptr[node] and indices[place - u8(1)] > ids[node, position]:  # rows are short
                    indices[place], out[place] = indices[place - u8(1)], out[place - u8(1)]
                    place -= u8(1)
                indices[place], out[place] = ids[node, position], affinity
                end += u8(1)


@compiled(void(readonly(u8), readonly(u4), readonly(f8), writable(f8), writable(f8)))
def normalize_affinity(indptr, indices, affinity, degrees, out):
    """S = D^-1/2 A D^-1/2 (eq. 2), on the places of A; a node without neighbours keeps an empty row."""
    nodes = u8(indptr.shape[0] - 1)
    for node in range(nodes):
        total = f8(0.0)
        for place in range(indptr[node], indptr[node + u8(1)]):
            total += affinity[place]
        degrees[node] = total
    for node in range(nodes):
        for place in range(indptr[node], indptr[node + u8(1)]):
            # The product of roots, in this order, is the same for (i, j) and (j, i): S is symmetric to the bit.
            out[place] = affinity[place] / (degrees[node] ** 0.5 * degrees[u8(indices[place])] ** 0.5)
