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
def _affinity(similarity, gamma):
    """Eq. 1 of two that list each other: max(sim, 0) ** gamma."""
    affinity = f8(similarity) ** gamma if similarity > f4(0.0) else f8(0.0)
    return affinity if affinity >= _SMALLEST else f8(0.0)


@helper
def _enter(other, affinity, begin, end, indices, out):
    """Put an edge into the row that begins at `begin` and ends at `end`, which stays sorted; returns its new end."""
    if affinity == f8(0.0):
        return end
    place = end
    while place > begin and indices[place - u8(1)] > other:  # rows are short
        indices[place], out[place] = indices[place - u8(1)], out[place - u8(1)]
        place -= u8(1)
    indices[place], out[place] = other, affinity
    return end + u8(1)


@compiled(void(readonly(u4, 2), readonly(f4, 2), f8, i8, writable(u8), writable(u4), writable(f8)))
def fill_affinity(ids, sims, gamma, start, indptr, indices, out):
    """A (eq. 1) of as many rows as `indptr` has places for, from `start` on; each row of `indices` is sorted."""
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        for position in range(u8(ids.shape[1])):
            other = ids[node, position]
            if other != u4(node) and _lists(ids, u8(other), u4(node)):
                end = _enter(other, _affinity(sims[node, position], gamma), indptr[row], end, indices, out)
        indptr[row + u8(1)] = end


@compiled(void(readonly(u4, 2), writable(u8), writable(u4)))
def turn_lists(ids, list_ptr, out):
    """Who lists each element: element i is listed by out[list_ptr[i]:list_ptr[i + 1]], ascending."""
    nodes, k = u8(ids.shape[0]), u8(ids.shape[1])
    list_ptr[:] = u8(0)
    for node in range(nodes):
        for position in range(k):
            list_ptr[u8(ids[node, position]) + u8(1)] += u8(1)
    for node in range(nodes):
        list_ptr[node + u8(1)] += list_ptr[node]
    free = list_ptr.copy()
    for node in range(nodes):
        for position in range(k):
            other = u8(ids[node, position])
            out[free[other]] = u4(node)
            free[other] += u8(1)


_LISTERS = (readonly(u8), readonly(u4))


@compiled(void(readonly(u4, 2), readonly(f4, 2), f8, i8, *_LISTERS, writable(u8), writable(u4), writable(f8)))
def fill_affinity_of_listed(ids, sims, gamma, start, list_ptr, listers, indptr, indices, out):
    """The same as `fill_affinity`, several times faster, for which it needs all lists turned round.

    Where node and other list each other, other is among the listers of node: no list of another node is looked through.
    """
    lister_of = np.full(ids.shape[0], 0xFFFFFFFF, np.uint32)
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        for place in range(list_ptr[node], list_ptr[node + u8(1)]):
            lister_of[u8(listers[place])] = u4(node)
        for position in range(u8(ids.shape[1])):
            other = ids[node, position]
            if other != u4(node) and lister_of[u8(other)] == u4(node):
                end = _enter(other, _affinity(sims[node, position], gamma), indptr[row], end, indices, out)
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
