"""The support of columns that were solved before: one step on from what they held, instead of a walk from nothing.

A column is the sum of all steps of the walk. So where the graph changed a little, the columns from before the change
and one more step on the new graph, c <- e + alpha S c, know better than a short walk where the mass will be.
"""

import numpy as np

from suffuse.kernels.codes import BROKEN
from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.table import lies_inside, read
from suffuse.kernels.walk import largest, new_scratch, step, walk_support

# The share of the mass on nodes that no column knows yet above which the columns from before tell too little: where
# many new nodes come at once to one place, one step only reaches the first of them.
_TOO_NEW = 0.25

_GROUPS = (i8, i8, i8, readonly(u4), readonly(u4))
_ALPHA_S = (readonly(u8), readonly(u4), readonly(f8))
_SPANS = (readonly(i8), readonly(i8))
_SUPPORTS = (i8, writable(u4, 2), writable(i8))


@helper
def _add(node, value, mass, touched, visited):
    """Add to the mass of a node, and list it if it had none; returns how many are listed."""
    touched[visited] = u4(node)
    before = mass[node]
    mass[node] = before + value
    return visited + (u8(before == f8(0.0)) & u8(value > f8(0.0)))


@helper
def _add_column(element, weight, number, columns, room, mass, touched, visited):
    """Add weight times the column of an element; returns how many nodes are listed, or BROKEN."""
    ids, numbers = room
    if not lies_inside(columns[0], columns[1], columns[2], element):
        return BROKEN
    length = read(*columns, element, ids, numbers)
    for entry in range(u8(0) if length == BROKEN else length):
        if u8(ids[entry]) >= u8(columns[0].shape[0]):
            return BROKEN
        visited = _add(u8(number[u8(ids[entry])]), weight * numbers[entry], mass, touched, visited)
    return BROKEN if length == BROKEN else visited


@helper
def _sum_columns(first, last, order, number, graph, columns, room, mass, touched):
    """Add up the columns of the nodes first..last; returns how many nodes are listed, or BROKEN.

    That of a new node is not there: e + alpha S times the columns of its neighbours stands for it.
    """
    indptr, indices, weights = graph
    known, visited = u8(columns[0].shape[0]), u8(0)
    for node in range(first, last):
        if u8(order[node]) < known:
            visited = _add_column(u8(order[node]), f8(1.0), number, columns, room, mass, touched, visited)
            if visited == BROKEN:
                return BROKEN
            continue
        visited = _add(node, f8(1.0), mass, touched, visited)
        for place in range(indptr[node], indptr[node + u8(1)]):
            other, weight = u8(indices[place]), weights[place]
            if u8(order[other]) < known:
                visited = _add_column(u8(order[other]), weight, number, columns, room, mass, touched, visited)
                if visited == BROKEN:
                    return BROKEN
            else:
                visited = _add(other, weight, mass, touched, visited)
    return visited


@helper
def _resume_support(first, last, order, number, graph, columns, room, truncation, scratch, support):
    """The nodes that one step from the sum of their columns gives the most mass; returns how many there are.

    0 if the columns tell too little, so that the walk has to begin anew, and BROKEN if one is damaged.
    """
    mass, spread, frontier, values, touched, reached, keys, bins = scratch
    indptr, indices, weights = graph
    visited = _sum_columns(first, last, order, number, graph, columns, room, mass, touched)
    if visited == BROKEN:
        return BROKEN
    size = largest(mass, touched, visited, truncation, keys, bins, frontier)
    for f in range(size):
        values[f] = mass[u8(frontier[f])]
    for t in range(visited):
        mass[u8(touched[t])] = f8(0.0)
    count = step(frontier, values, size, indptr, indices, weights, spread, reached)
    total, new = f8(0.0), f8(0.0)
    for r in range(count):
        moved = spread[u8(reached[r])]
        total += moved
        new += moved if u8(order[u8(reached[r])]) >= u8(columns[0].shape[0]) else f8(0.0)
    for node in range(first, last):
        count = _add(node, np.inf, spread, reached, count)  # a node is always in its support
    tells = count >= truncation and new <= f8(_TOO_NEW) * total
    size = largest(spread, reached, count, truncation, keys, bins, support) if tells else u8(0)
    for r in range(count):
        spread[u8(reached[r])] = f8(0.0)
    return size


@compiled(
    void(*_GROUPS, *_ALPHA_S, *_SPANS, readonly(u1), readonly(f4), *_SUPPORTS),
    void(*_GROUPS, *_ALPHA_S, *_SPANS, readonly(u4), readonly(u2), *_SUPPORTS),
    void(*_GROUPS, *_ALPHA_S, *_SPANS, readonly(u4), readonly(f4), *_SUPPORTS),
)
def resume_supports(
    start, stop, group, order, number, indptr, indices, weights, starts, stops, entries, values, steps, supports, out
):  # fmt: skip
    """The supports of the nodes start..stop, one for each `group` of them in a row; out = how many nodes there are.

    Node i is element order[i], and element j is node number[j]. `weights` is alpha S; the columns are those of `table`,
    of the elements that were there before; elements after them are new. Where the columns tell too little, a walk of
    `steps` steps takes their place. A row of `supports` has room for as many nodes as a support has at most.
    out = -1 for a column that is damaged.
    """
    graph, columns = (indptr, indices, weights), (starts, stops, entries, values)
    longest = i8(0)
    for column in range(u8(starts.shape[0])):
        if lies_inside(starts, stops, entries, column):
            longest = max(longest, stops[column] - starts[column])  # an entry has a byte at least
    room = (np.empty(longest, np.uint32), np.empty(longest, np.float64))
    truncation = u8(supports.shape[1])
    scratch = new_scratch(indptr.shape[0] - 1, truncation)
    first, place = u8(start), u8(0)
    while first < u8(stop):
        last, support = min(first + u8(group), u8(stop)), supports[place]
        size = _resume_support(first, last, order, number, graph, columns, room, truncation, scratch, support)
        if size == BROKEN:
            out[:] = i8(-1)
            return
        if size == u8(0):
            size = walk_support(first, last, indptr, indices, weights, truncation, steps, scratch, support)
        out[place] = i8(size)
        first, place = last, place + u8(1)
