"""The strongest path between two sets of nodes: Dijkstra from both ends, which S allows since it is symmetric.

The length of a step is -log(alpha S), never below zero since alpha S < 1, so the shortest path is the strongest.
Each end has a binary heap of the nodes it may visit next, the nearest first, and knows where in it a node stands.
"""

import math

import numpy as np

from suffuse.core.kernels.jit import compiled, f4, f8, helper, i8, readonly, u4, u8, writable

_NONE = np.uint32(0xFFFFFFFF)


@helper
def _put(node, position, heap, place):
    heap[position], place[u8(node)] = node, u4(position)


@helper
def _rise(heap, place, distance, position):
    """Put heap[position] where it belongs among those above it."""
    node = heap[position]
    while position > u8(0):
        above = (position - u8(1)) >> u8(1)
        if distance[u8(heap[above])] <= distance[u8(node)]:
            break
        _put(heap[above], position, heap, place)
        position = above
    _put(node, position, heap, place)


@helper
def _sink(heap, size, place, distance, node):
    """Put a node where it belongs, from the top, which is empty, downwards."""
    position = u8(0)
    while True:
        below = u8(2) * position + u8(1)
        if below >= size:
            break
        if below + u8(1) < size and distance[u8(heap[below + u8(1)])] < distance[u8(heap[below])]:
            below += u8(1)
        if distance[u8(heap[below])] >= distance[u8(node)]:
            break
        _put(heap[below], position, heap, place)
        position = below
    _put(node, position, heap, place)


@helper
def _reach(node, length, before, heap, size, place, distance, came_from):
    """A shorter way to a node, from `before`; returns how many are in the heap."""
    distance[node], came_from[node] = length, before
    if place[node] == _NONE:
        heap[size], place[node] = u4(node), u4(size)
        size += u8(1)
    _rise(heap, place, distance, u8(place[node]))
    return size


@helper
def _written(meeting, came_from, out):
    """The path through the node where both ends met, the seed first."""
    count, node = u8(0), meeting
    while node != _NONE:
        out[count] = node
        count += u8(1)
        node = came_from[0, u8(node)]
    for k in range(count // u8(2)):
        out[k], out[count - u8(1) - k] = out[count - u8(1) - k], out[k]
    node = came_from[1, u8(meeting)]
    while node != _NONE:
        out[count] = node
        count += u8(1)
        node = came_from[1, u8(node)]
    return i8(count)


@compiled(i8(readonly(u8), readonly(u4), readonly(f4), f8, readonly(u4), readonly(f8), readonly(u4), writable(u4)))
def strongest_path(indptr, indices, weights, alpha, seeds, seed_weights, targets, out):
    """out = the nodes of the path from a seed to a target with the largest seed weight * product of alpha S.

    `weights` is S; seeds count whose weight is above zero. `out` has room for all nodes twice. Returns how many it
    has, 0 if there is no path; if the graph is damaged, -1 for ids that do not exist, -2 for rows outside of it.
    """
    nodes = u8(indptr.shape[0] - 1)
    distance, came_from = np.full((2, nodes), np.inf), np.full((2, nodes), _NONE)
    heap, place = np.empty((2, nodes), np.uint32), np.full((2, nodes), _NONE)
    sizes = np.zeros(2, np.uint64)
    for s in range(u8(seeds.shape[0])):
        length = -math.log(seed_weights[s]) if seed_weights[s] > f8(0.0) else np.inf
        if length < distance[0, u8(seeds[s])]:
            sizes[0] = _reach(u8(seeds[s]), length, _NONE, heap[0], sizes[0], place[0], distance[0], came_from[0])
    best, meeting = np.inf, _NONE
    for target in targets:
        sizes[1] = _reach(u8(target), f8(0.0), _NONE, heap[1], sizes[1], place[1], distance[1], came_from[1])
        if distance[0, u8(target)] < best:
            best, meeting = distance[0, u8(target)], target
    # A path that is not seen yet is at least as long as what is left to visit on both sides.
    while sizes[0] and sizes[1] and distance[0, u8(heap[0, 0])] + distance[1, u8(heap[1, 0])] < best:
        side = u8(0) if sizes[0] <= sizes[1] else u8(1)
        own, other = distance[side], distance[u8(1) - side]
        node = u8(heap[side, 0])
        sizes[side] -= u8(1)
        place[side, node] = u4(nodes)  # visited; weights being above zero, no shorter way will be found
        if sizes[side]:
            _sink(heap[side], sizes[side], place[side], own, heap[side, sizes[side]])
        if not indptr[node] <= indptr[node + u8(1)] <= u8(indices.shape[0]):
            return i8(-2)
        for entry in range(indptr[node], indptr[node + u8(1)]):
            neighbor = u8(indices[entry])
            if neighbor >= nodes:
                return i8(-1)
            if weights[entry] <= f4(0.0):
                continue
            longer = own[node] - math.log(alpha * f8(weights[entry]))
            if longer < own[neighbor] and place[side, neighbor] != u4(nodes):
                sizes[side] = _reach(
                    neighbor, longer, u4(node), heap[side], sizes[side], place[side], own, came_from[side]
                )
                if longer + other[neighbor] < best:
                    best, meeting = longer + other[neighbor], u4(neighbor)
    if meeting == _NONE:
        return i8(0)
    return _written(meeting, came_from, out)
