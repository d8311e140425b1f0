"""Columns of the inverse of L_alpha on their supports, by conjugate gradient."""

import numpy as np

from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest
from suffuse.kernels.walk import new_scratch, walk_support

_OUTSIDE = np.uint32(0xFFFFFFFF)


@helper
def _slice_block(support, size, indptr, indices, weights, position, block):
    """Copy alpha S[J, J] into local numbering: contiguous, so that the iterations never leave the cache."""
    block_ptr, block_indices, block_weights = block
    for local in range(size):
        position[u8(support[local])] = u4(local)
    end = u8(0)
    for local in range(size):
        block_ptr[local] = end
        node = u8(support[local])
        for place in range(indptr[node], indptr[node + u8(1)]):
            # No branch, as nobody could predict it: what is outside is overwritten by the next.
            inside = position[u8(indices[place])]
            block_indices[end], block_weights[end] = inside, weights[place]
            end += u8(inside != _OUTSIDE)
    block_ptr[size] = end
    for local in range(size):
        position[u8(support[local])] = _OUTSIDE


@helper
def _conjugate_gradient(block, size, one, iterations, tolerance, vectors):
    """Solve (I - alpha S[J, J]) x = e_one, from x = 0; returns the norm of the residual (|e_one| = 1)."""
    block_ptr, block_indices, block_weights = block
    x, residual, direction, image = vectors
    for i in range(size):
        x[i], residual[i], direction[i] = f8(0.0), f8(0.0), f8(0.0)
    residual[one], direction[one] = f8(1.0), f8(1.0)
    squared = f8(1.0)
    for _ in range(iterations):
        curvature = f8(0.0)
        for i in range(size):
            total = direction[i]
            for place in range(block_ptr[i], block_ptr[i + u8(1)]):
                total -= block_weights[place] * direction[u8(block_indices[place])]
            image[i] = total
            curvature += total * direction[i]
        if not curvature > f8(0.0):  # alpha so close to 1 that L_alpha is singular in float64
            break
        step = squared / curvature
        previous, squared = squared, f8(0.0)
        for i in range(size):
            x[i] += step * direction[i]
            residual[i] -= step * image[i]
            squared += residual[i] * residual[i]
        if squared <= tolerance * tolerance:
            break
        for i in range(size):
            direction[i] = residual[i] + squared / previous * direction[i]
    return squared**0.5


@helper
def _store_largest(x, support, size, floor, keys, rows, values):
    """Write the largest entries above `floor`, largest first; returns how many."""
    count = u8(0)
    for i in range(size):
        value = f4(x[i])
        if value > floor:
            keys[count] = key_of(value, support[i])
            count += u8(1)
    return write_largest(keys, count, rows, values)


@helper
def _new_block(indptr, truncation):
    """Room for alpha S[J, J] of any support of `truncation` nodes."""
    widest = u8(0)
    for node in range(u8(indptr.shape[0] - 1)):
        widest = max(widest, indptr[node + u8(1)] - indptr[node])
    entries = min(u8(truncation) * widest, indptr[-1]) + u8(1)  # one more: what is outside is written all the same
    return np.empty(truncation + 1, np.uint64), np.empty(entries, np.uint32), np.empty(entries, np.float64)


@helper
def _new_vectors(truncation):
    return np.empty(truncation), np.empty(truncation), np.empty(truncation), np.empty(truncation)


_GRAPH = (readonly(u8), readonly(u4), readonly(f8))
_COLUMNS = (writable(u4, 2), writable(f4, 2), writable(i8), writable(f8))


@compiled(void(i8, i8, *_GRAPH, i8, i8, i8, f8, f4, *_COLUMNS))
def solve_on_walks(
    start, stop, indptr, indices, weights, truncation, steps, iterations, tolerance, floor, rows, values, lengths, out
):
    """Columns start..stop on the supports of their walks; `weights` is alpha S; out = residual of each column."""
    nodes = indptr.shape[0] - 1
    truncation = min(truncation, nodes)
    scratch = new_scratch(nodes, truncation)
    keys = scratch[-2]
    position = np.full(nodes, _OUTSIDE, np.uint32)
    support = np.empty(truncation, np.uint32)
    block, vectors = _new_block(indptr, truncation), _new_vectors(truncation)
    for node in range(u8(start), u8(stop)):
        column = node - u8(start)
        size = walk_support(node, indptr, indices, weights, u8(truncation), steps, scratch, support)
        one = u8(0)
        while support[one] != u4(node):
            one += u8(1)
        _slice_block(support, size, indptr, indices, weights, position, block)
        out[column] = _conjugate_gradient(block, size, one, iterations, tolerance, vectors)
        lengths[column] = _store_largest(vectors[0], support, size, floor, keys, rows[column], values[column])


@compiled(void(readonly(u4, 2), *_GRAPH, i8, f8, f4, *_COLUMNS))
def solve_on_supports(supports, indptr, indices, weights, iterations, tolerance, floor, rows, values, lengths, out):
    """Columns on given supports, whose first element is the column's own; out = residual of each column."""
    truncation = supports.shape[1]
    keys = np.empty(truncation, np.uint64)
    position = np.full(indptr.shape[0] - 1, _OUTSIDE, np.uint32)
    block, vectors = _new_block(indptr, truncation), _new_vectors(truncation)
    size = u8(truncation)
    for column in range(u8(supports.shape[0])):
        support = supports[column]
        _slice_block(support, size, indptr, indices, weights, position, block)
        out[column] = _conjugate_gradient(block, size, u8(0), iterations, tolerance, vectors)
        lengths[column] = _store_largest(vectors[0], support, size, floor, keys, rows[column], values[column])
