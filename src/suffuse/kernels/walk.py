"""The support that a short truncated random walk reaches: `support="graph"`."""

import numpy as np

from suffuse.kernels.jit import compiled, f8, helper, i8, readonly, u4, u8, void, writable
from suffuse.kernels.select import id_of, key_of, largest_first


@helper
def walk_support(node, indptr, indices, steps_weights, truncation, steps, scratch, support):
    """The `truncation` nodes with the most mass after `steps` steps of v <- alpha S v; returns how many there are.

    The mass of all steps is added up, and each step goes on from its `truncation` largest entries only.
    `steps_weights` is alpha S; `support` receives the nodes; `scratch` is left clean for the next node.
    """
    mass, spread, frontier, values, touched, reached, keys = scratch
    frontier[0], values[0], size = u4(node), f8(1.0), u8(1)
    touched[0], mass[node], visited = u4(node), f8(1.0), u8(1)
    for _ in range(steps):
        count = u8(0)
        for f in range(size):
            start, stop = indptr[u8(frontier[f])], indptr[u8(frontier[f]) + u8(1)]
            for place in range(start, stop):
                other, moved = u8(indices[place]), steps_weights[place] * values[f]
                if moved == f8(0.0):  # underflow: counted as reached, the node would be listed again and again
                    continue
                if spread[other] == f8(0.0):
                    reached[count] = u4(other)
                    count += u8(1)
                spread[other] += moved
        size = _cut(spread, reached, count, truncation, keys)
        for f in range(size):
            other = u8(reached[f])
            frontier[f], values[f] = u4(other), spread[other]
            if mass[other] == f8(0.0):
                touched[visited] = u4(other)
                visited += u8(1)
            mass[other] += spread[other]
        for r in range(count):
            spread[u8(reached[r])] = f8(0.0)
    mass[node] = np.inf  # the node itself is always in its support
    size = _cut(mass, touched, visited, truncation, keys)
    for s in range(size):
        support[s] = touched[s]
    for t in range(visited):
        mass[u8(touched[t])] = f8(0.0)
    return size


@helper
def _cut(value, nodes, count, most, keys):
    """Reorder nodes[:count] so that the `most` with the largest value stand in front; returns how many those are."""
    if count <= u8(most):
        return count
    for n in range(count):
        keys[n] = key_of(value[u8(nodes[n])], nodes[n])
    largest_first(keys, count, u8(most))
    for n in range(count):
        nodes[n] = id_of(keys[n])
    return u8(most)


@helper
def new_scratch(nodes, truncation):
    """What `walk_support` works with."""
    return (
        np.zeros(nodes, np.float64),
        np.zeros(nodes, np.float64),
        np.empty(truncation, np.uint32),
        np.empty(truncation, np.float64),
        np.empty(nodes, np.uint32),
        np.empty(nodes, np.uint32),
        np.empty(nodes, np.uint64),
    )


@compiled(void(i8, i8, readonly(u8), readonly(u4), readonly(f8), i8, writable(u4, 2), writable(i8)))
def walk_supports(start, stop, indptr, indices, weights, steps, supports, out):
    """The supports of the nodes start..stop, as many nodes as a row of `supports` has; out = how many there are."""
    nodes, truncation = indptr.shape[0] - 1, supports.shape[1]
    scratch = new_scratch(nodes, truncation)
    for node in range(u8(start), u8(stop)):
        place = node - u8(start)
        out[place] = i8(walk_support(node, indptr, indices, weights, u8(truncation), steps, scratch, supports[place]))
