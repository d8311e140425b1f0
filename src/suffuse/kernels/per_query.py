"""The diffusion of one query, solved when it is asked: slice, normalise, conjugate gradient, rank."""

import numpy as np

from suffuse.kernels.jit import compiled, f4, f8, helper, i8, readonly, u4, u8, void, writable
from suffuse.kernels.solve import _OUTSIDE, _slice_block, _store_largest


@helper
def _sliced(support, indptr, indices, weights):
    """The block weights[J, J] of a support J, in local numbering."""
    size, entries = u8(support.shape[0]), u8(0)
    for local in range(size):
        node = u8(support[local])
        entries += indptr[node + u8(1)] - indptr[node]
    block = (np.empty(size + u8(1), np.uint64), np.empty(entries, np.uint32), np.empty(entries, np.float64))
    position = np.full(indptr.shape[0] - 1, _OUTSIDE, np.uint32)
    _slice_block(support, size, indptr, indices, weights, position, block)
    return block


@helper
def _normalize_block(block, alpha):
    """alpha D^-1/2 A D^-1/2 in place of A, where D counts only what lies in the block."""
    block_ptr, block_indices, block_weights = block
    size = u8(block_ptr.shape[0] - 1)
    roots = np.empty(size, np.float64)
    for i in range(size):
        total = f8(0.0)
        for place in range(block_ptr[i], block_ptr[i + u8(1)]):
            total += block_weights[place]
        roots[i] = total**0.5
    for i in range(size):
        for place in range(block_ptr[i], block_ptr[i + u8(1)]):
            block_weights[place] *= alpha / (roots[i] * roots[u8(block_indices[place])])


@helper
def _solve(block, iterations, tolerance, y, x):
    """Solve (I - alpha S) x = y by conjugate gradient, from x = 0, until |residual| <= tolerance |y|.

    Unlike in `solve`, where y is a unit vector, it is any vector here, hence the tolerance is relative.
    """
    block_ptr, block_indices, block_weights = block
    size = u8(y.shape[0])
    residual, direction, image = np.empty(size), np.empty(size), np.empty(size)
    squared = f8(0.0)
    for i in range(size):
        x[i], residual[i], direction[i] = f8(0.0), y[i], y[i]
        squared += y[i] * y[i]
    target = tolerance * tolerance * squared
    for _ in range(iterations):
        curvature = f8(0.0)
        for i in range(size):
            total = direction[i]
            for place in range(block_ptr[i], block_ptr[i + u8(1)]):
                total -= block_weights[place] * direction[u8(block_indices[place])]
            image[i] = total
            curvature += total * direction[i]
        if not curvature > f8(0.0):  # y is zero, or alpha is so close to 1 that L_alpha is singular in float64
            break
        step = squared / curvature
        previous, squared = squared, f8(0.0)
        for i in range(size):
            x[i] += step * direction[i]
            residual[i] -= step * image[i]
            squared += residual[i] * residual[i]
        if squared <= target:
            break
        for i in range(size):
            direction[i] = residual[i] + squared / previous * direction[i]


_GRAPH = (readonly(u8), readonly(u4), readonly(f8))


@compiled(void(*_GRAPH, i8, f8, readonly(f8), writable(f8)))
def diffuse_whole(indptr, indices, alpha_s, iterations, tolerance, y, out):
    """out = L_alpha^-1 y on the whole graph."""
    _solve((indptr, indices, alpha_s), iterations, tolerance, y, out)


@compiled(void(readonly(u4), *_GRAPH, i8, f8, readonly(f8), writable(f8)))
def diffuse_late(support, indptr, indices, alpha_s, iterations, tolerance, y, out):
    """out = L_alpha[J, J]^-1 y: the slice of the normalised graph."""
    _solve(_sliced(support, indptr, indices, alpha_s), iterations, tolerance, y, out)


@compiled(void(readonly(u4), *_GRAPH, f8, i8, f8, readonly(f8), writable(f8)))
def diffuse_early(support, indptr, indices, affinity, alpha, iterations, tolerance, y, out):
    """out = (I - alpha S_J)^-1 y, where S_J normalises the slice A[J, J] by the degrees within it."""
    block = _sliced(support, indptr, indices, affinity)
    _normalize_block(block, alpha)
    _solve(block, iterations, tolerance, y, out)


@compiled(i8(readonly(u4), readonly(f8), writable(i8), writable(f4)))
def rank_positive(ids, scores, top_ids, out):
    """The largest positive scores into `out` and their ids, ties to the smaller id; returns how many there are.

    Scores are compared as float32, as they are shown: what looks like a tie is one.
    """
    size = u8(ids.shape[0])
    return i8(_store_largest(scores, ids, size, f4(0.0), np.empty(size, np.uint64), top_ids, out))
