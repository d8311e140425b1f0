"""The support that a short truncated random walk reaches: `support="graph"`."""

import numpy as np

from suffuse.kernels.jit import compiled, f8, helper, i8, readonly, u4, u8, void, writable
from suffuse.kernels.select import id_of, key_of, largest_first

# The bits of a positive float32 that sort it into a bin: its exponent and four bits of its fraction.
_BINS, _SHIFT = 4096, 19


@helper
def walk_support(first, last, indptr, indices, steps_weights, truncation, steps, scratch, support):
    """The `truncation` nodes with the most mass after `steps` steps of v <- alpha S v; returns how many there are.

    The walk begins at the nodes first..last with equal mass: a group that shares its support, or one node.
    The mass of all steps is added up, and each step goes on from its `truncation` largest entries only.
    `steps_weights` is alpha S; `support` receives the nodes; `scratch` is left clean for the next node.
    """
    mass, spread, frontier, values, touched, reached, keys, bins = scratch
    size, visited = last - first, last - first
    for f in range(size):
        frontier[f], values[f] = u4(first + f), f8(1.0)
        touched[f], mass[first + f] = u4(first + f), f8(1.0)
    for _ in range(steps):
        count = step(frontier, values, size, indptr, indices, steps_weights, spread, reached)
        size = largest(spread, reached, count, truncation, keys, bins, frontier)
        for f in range(size):
            other = u8(frontier[f])
            values[f], before = spread[other], mass[other]
            touched[visited] = u4(other)
            visited += u8(before == f8(0.0))
            mass[other] = before + values[f]
        for r in range(count):
            spread[u8(reached[r])] = f8(0.0)
    for node in range(first, last):
        mass[node] = np.inf  # a node is always in its support
    size = largest(mass, touched, visited, truncation, keys, bins, support)
    for t in range(visited):
        mass[u8(touched[t])] = f8(0.0)
    return size


@helper
def step(frontier, values, size, indptr, indices, steps_weights, spread, reached):
    """spread += alpha S v, where v is `values` at the nodes frontier[:size]; returns how many nodes it reached."""
    count = u8(0)
    for f in range(size):
        value = values[f]
        for place in range(indptr[u8(frontier[f])], indptr[u8(frontier[f]) + u8(1)]):
            other, moved = u8(indices[place]), steps_weights[place] * value
            before = spread[other]
            # No branch, as nobody could predict it. What underflows to zero is not reached: counted, the node
            # would be listed again and again.
            reached[count] = u4(other)
            count += u8(before == f8(0.0)) & u8(moved > f8(0.0))
            spread[other] = before + moved
    return count


@helper
def largest(value, nodes, count, most, keys, bins, out):
    """Write the `most` of nodes[:count] with the largest value to `out`, in any order; returns how many.

    Bins tell at once which nodes are surely among them; only those of the bin on the edge are compared.
    """
    if count <= u8(most):
        for n in range(count):
            out[n] = nodes[n]
        return count
    for n in range(count):
        bins[_bin(value[u8(nodes[n])])] += u4(1)
    edge, above = u8(_BINS - 1), u8(0)
    while above + u8(bins[edge]) < u8(most):
        above += u8(bins[edge])
        edge -= u8(1)
    bins[:] = u4(0)
    size, equal = u8(0), u8(0)
    for n in range(count):
        node = nodes[n]
        bin = _bin(value[u8(node)])
        out[size] = node  # those above the edge are fewer than `most`
        size += u8(bin > edge)
        keys[equal] = key_of(value[u8(node)], node)
        equal += u8(bin == edge)
    largest_first(keys, equal, u8(most) - size)
    for k in range(u8(most) - size):
        out[size + k] = id_of(keys[k])
    return u8(most)


@helper
def _bin(value):
    return u8(np.float32(value).view(np.uint32) >> u4(_SHIFT))


@helper
def new_scratch(nodes, truncation):
    """What `walk_support` works with."""
    return (
        np.zeros(nodes, np.float64),
        np.zeros(nodes, np.float64),
        np.empty(truncation, np.uint32),
        np.empty(truncation, np.float64),
        np.empty(nodes + 1, np.uint32),  # one more: what is not counted is written all the same
        np.empty(nodes + 1, np.uint32),
        np.empty(nodes + 1, np.uint64),
        np.zeros(_BINS, np.uint32),
    )


@compiled(void(i8, i8, i8, readonly(u8), readonly(u4), readonly(f8), i8, writable(u4, 2), writable(i8)))
def walk_supports(start, stop, group, indptr, indices, weights, steps, supports, out):
    """The supports of the nodes start..stop, one for each `group` of them in a row; out = how many nodes there are.

    A row of `supports` has room for as many nodes as a support has at most.
    """
    nodes, truncation = indptr.shape[0] - 1, u8(supports.shape[1])
    scratch = new_scratch(nodes, truncation)
    first, place = u8(start), u8(0)
    while first < u8(stop):
        last = min(first + u8(group), u8(stop))
        out[place] = i8(
            walk_support(first, last, indptr, indices, weights, truncation, steps, scratch, supports[place])
        )
        first, place = last, place + u8(1)
