"""Columns of the inverse of L_alpha on their supports, by conjugate gradient."""

import numpy as np
from numba import types

from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u4, u8, void, writable
from suffuse.kernels.lanes import conjugate_gradients, new_scalars, new_vectors
from suffuse.kernels.select import key_of, write_largest

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


@compiled(void(i8, i8, i8, types.boolean, readonly(u4, 2), readonly(i8), readonly(u4), *_GRAPH, i8, f8, f4, *_COLUMNS))
def solve_on_supports(
    start, stop, group, single, supports, sizes, names, indptr, indices, weights, iterations, tolerance, floor,
    rows, values, lengths, out,
):  # fmt: skip
    """Columns of the nodes start..stop on given supports; out = residual of each column.

    supports  a row for each `group` of nodes, which all of them are in; its first sizes[row] entries count
    single    solve the columns of a group at once, in single precision; else one after the other, in double
    names     what `rows` calls the nodes
    weights   alpha S
    """
    widest = supports.shape[1]
    keys, named, ones = np.empty(widest, np.uint64), np.empty(widest, np.uint32), np.empty(group, np.uint64)
    position = np.full(indptr.shape[0] - 1, _OUTSIDE, np.uint32)
    block, vectors = _new_block(indptr, widest), _new_vectors(widest)
    narrow = (block[0], block[1], np.empty(block[2].shape[0] if single else 0, np.float32))
    lanes, scalars = new_vectors(widest if single else 0), new_scalars()
    first, last, row = u8(start), u8(start), u8(0)
    while last < u8(stop):
        first, last = last, min(last + u8(group), u8(stop))
        support, size = supports[row], u8(sizes[row])
        row += u8(1)
        _slice_block(support, size, indptr, indices, weights, position, block)
        for local in range(size):
            node = u8(support[local])
            named[local] = names[node]
            if first <= node < last:
                ones[node - first] = local
        if single:
            for place in range(block[0][size]):
                narrow[2][place] = f4(block[2][place])
            conjugate_gradients(narrow, size, ones, last - first, iterations, tolerance, lanes, scalars)
        for member in range(last - first):
            column = first + member - u8(start)
            if single:
                for local in range(size):
                    vectors[0][local] = f8(lanes[0][local, member])
                out[column] = f8(scalars[-1][0, member]) ** 0.5
            else:
                out[column] = _conjugate_gradient(block, size, ones[member], iterations, tolerance, vectors)
            lengths[column] = _store_largest(vectors[0], named, size, floor, keys, rows[column], values[column])
