"""Eight columns at once: conjugate gradient in single precision on one block, one right-hand side in each lane.

One column alone is bound by loads: each entry of the block is read for a single product. Here the eight numbers of a
node stand side by side and fill one vector register, so that each entry that is read is used eight times.
"""

import numpy as np
from numba import types

from suffuse.core.kernels.jit import GRAPH, compiled, f4, f8, helper, i8, in_lanes, readonly, u4, u8, void, writable
from suffuse.core.kernels.select import key_of, write_largest

LANES = 8


@in_lanes
def lanes_of(matrix, row):
    """The eight numbers of a row. A tuple, since that is what stays in a register."""
    a = matrix
    return a[row, 0], a[row, 1], a[row, 2], a[row, 3], a[row, 4], a[row, 5], a[row, 6], a[row, 7]


@in_lanes
def write_lanes(matrix, row, a):
    """Write the eight numbers of a row."""
    matrix[row, 0], matrix[row, 1], matrix[row, 2], matrix[row, 3] = a[0], a[1], a[2], a[3]
    matrix[row, 4], matrix[row, 5], matrix[row, 6], matrix[row, 7] = a[4], a[5], a[6], a[7]


@in_lanes
def add_product(a, b, c):
    """a + b * c in each lane."""
    return (
        a[0] + b[0] * c[0], a[1] + b[1] * c[1], a[2] + b[2] * c[2], a[3] + b[3] * c[3],
        a[4] + b[4] * c[4], a[5] + b[5] * c[5], a[6] + b[6] * c[6], a[7] + b[7] * c[7],
    )  # fmt: skip


@in_lanes
def _subtract_product(a, b, c):
    """a - b * c in each lane."""
    return (
        a[0] - b[0] * c[0], a[1] - b[1] * c[1], a[2] - b[2] * c[2], a[3] - b[3] * c[3],
        a[4] - b[4] * c[4], a[5] - b[5] * c[5], a[6] - b[6] * c[6], a[7] - b[7] * c[7],
    )  # fmt: skip


@in_lanes
def in_all(number):
    """The same number in each lane."""
    return number, number, number, number, number, number, number, number


@in_lanes
def _multiply(block, size, direction, image, curvature):
    """image = (I - alpha S[J, J]) direction; curvature = <direction, image>, in each lane."""
    block_ptr, block_indices, block_weights = block
    total = in_all(f4(0.0))
    for i in range(size):
        own = lanes_of(direction, i)
        product = own
        for place in range(block_ptr[i], block_ptr[i + u8(1)]):
            product = _subtract_product(
                product, in_all(block_weights[place]), lanes_of(direction, u8(block_indices[place]))
            )
        write_lanes(image, i, product)
        total = add_product(total, product, own)
    write_lanes(curvature, u8(0), total)


@in_lanes
def _advance(size, steps, x, residual, direction, image, squared):
    """x += step * direction, residual -= step * image; squared = |residual|^2, in each lane."""
    step, total = lanes_of(steps, u8(0)), in_all(f4(0.0))
    for i in range(size):
        further = add_product(lanes_of(x, i), step, lanes_of(direction, i))
        left = _subtract_product(lanes_of(residual, i), step, lanes_of(image, i))
        write_lanes(x, i, further)
        write_lanes(residual, i, left)
        total = add_product(total, left, left)
    write_lanes(squared, u8(0), total)


@in_lanes
def _turn(size, factors, residual, direction):
    """direction = residual + factor * direction, in each lane."""
    factor = lanes_of(factors, u8(0))
    for i in range(size):
        write_lanes(direction, i, add_product(lanes_of(residual, i), factor, lanes_of(direction, i)))


@in_lanes
def conjugate_gradients(block, size, ones, count, iterations, tolerance, vectors, scalars):
    """Solve (I - alpha S[J, J]) x = e_ones[lane] in `count` lanes; row 0 of the last scalar is then |residual|^2.

    Each lane does what it would do alone: one that is done, or cannot go on, waits for the others.
    """
    x, residual, direction, image = vectors
    steps, curvature, before, squared = scalars
    nothing = in_all(f4(0.0))
    for i in range(size):
        write_lanes(x, i, nothing)
        write_lanes(residual, i, nothing)
        write_lanes(direction, i, nothing)
    write_lanes(squared, u8(0), nothing)
    for lane in range(count):
        residual[ones[lane], lane], direction[ones[lane], lane], squared[0, lane] = f4(1.0), f4(1.0), f4(1.0)
    limit = f4(tolerance * tolerance)
    for _ in range(iterations):
        _multiply(block, size, direction, image, curvature)
        moving = u8(0)
        for lane in range(LANES):
            before[0, lane], steps[0, lane] = squared[0, lane], f4(0.0)
            if squared[0, lane] > limit and curvature[0, lane] > f4(0.0):
                steps[0, lane] = squared[0, lane] / curvature[0, lane]
                moving += u8(1)
        if moving == u8(0):
            break
        _advance(size, steps, x, residual, direction, image, squared)
        waiting = True
        for lane in range(LANES):
            waiting &= not squared[0, lane] > limit
            # A lane without a step would divide by zero, or turn for ever.
            steps[0, lane] = squared[0, lane] / before[0, lane] if steps[0, lane] > f4(0.0) else f4(0.0)
        if waiting:
            break
        _turn(size, steps, residual, direction)


@in_lanes
def _zeros(size):
    return np.zeros((size, LANES), np.float32)


@in_lanes
def new_vectors(size):
    """The vectors of `conjugate_gradients`, a row of eight for each node; of size 1, its scalars."""
    return _zeros(size), _zeros(size), _zeros(size), _zeros(size)


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
    x, residual, direction, _ = vectors
    for i in range(size):
        x[i], residual[i], direction[i] = f8(0.0), f8(0.0), f8(0.0)
    residual[one], direction[one] = f8(1.0), f8(1.0)
    return _iterate(block, size, iterations, f8(1.0), tolerance * tolerance, vectors) ** 0.5


@helper
def _iterate(block, size, iterations, squared, target, vectors):
    """Conjugate gradient, until |residual|^2, which is `squared` at first, is no more than `target`; returns it."""
    block_ptr, block_indices, block_weights = block
    x, residual, direction, image = vectors
    for _ in range(iterations):
        curvature = f8(0.0)
        for i in range(size):
            total = direction[i]
            for place in range(block_ptr[i], block_ptr[i + u8(1)]):
                total -= block_weights[place] * direction[u8(block_indices[place])]
            image[i] = total
            curvature += total * direction[i]
        if not curvature > f8(0.0):  # the right side is zero, or alpha so near to 1 that L_alpha is singular in float64
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
    return squared


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


_COLUMNS = (writable(u4, 2), writable(f4, 2), writable(i8), writable(f8))


@compiled(void(i8, i8, i8, types.boolean, readonly(u4, 2), readonly(i8), readonly(u4), *GRAPH, i8, f8, f4, *_COLUMNS))
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
    lanes, scalars = new_vectors(widest if single else 0), new_vectors(1)
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
    """Solve (I - alpha S) x = y by conjugate gradient, from x = 0, until |residual| <= tolerance |y|."""
    size, squared = u8(y.shape[0]), f8(0.0)
    residual, direction = np.empty(size), np.empty(size)
    for i in range(size):
        x[i], residual[i], direction[i] = f8(0.0), y[i], y[i]
        squared += y[i] * y[i]
    vectors = (x, residual, direction, np.empty(size))
    _iterate(block, size, iterations, squared, tolerance * tolerance * squared, vectors)


@compiled(void(*GRAPH, i8, f8, readonly(f8), writable(f8)))
def diffuse_whole(indptr, indices, alpha_s, iterations, tolerance, y, out):
    """out = L_alpha^-1 y on the whole graph."""
    _solve((indptr, indices, alpha_s), iterations, tolerance, y, out)


@compiled(void(readonly(u4), *GRAPH, i8, f8, readonly(f8), writable(f8)))
def diffuse_late(support, indptr, indices, alpha_s, iterations, tolerance, y, out):
    """out = L_alpha[J, J]^-1 y: the slice of the normalised graph."""
    _solve(_sliced(support, indptr, indices, alpha_s), iterations, tolerance, y, out)


@compiled(void(readonly(u4), *GRAPH, f8, i8, f8, readonly(f8), writable(f8)))
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
