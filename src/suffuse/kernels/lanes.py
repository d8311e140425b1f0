"""Eight columns at once: conjugate gradient in single precision on one block, one right-hand side in each lane.

One column alone is bound by loads: each entry of the block is read for a single product. Here the eight numbers of a
node stand side by side and fill one vector register, so that each entry that is read is used eight times.
"""

import numpy as np

from suffuse.kernels.jit import f4, in_lanes, u8

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
def new_vectors(size):
    """x, residual, direction and image of `conjugate_gradients`, a row of eight for each node."""
    shape = (size, LANES)
    return (
        np.empty(shape, np.float32),
        np.empty(shape, np.float32),
        np.empty(shape, np.float32),
        np.empty(shape, np.float32),
    )


@in_lanes
def new_scalars():
    """Its steps, curvature, squares before and after: one number for each lane."""
    shape = (1, LANES)
    return (
        np.zeros(shape, np.float32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.float32),
    )
