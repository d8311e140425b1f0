"""Columns over regions summed to columns over images: sum pooling is linear, so it can be done before storing."""

import numpy as np

from suffuse.kernels.jit import compiled, f4, f8, i8, readonly, u2, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest
from suffuse.kernels.table import number

_COLUMNS = (readonly(u4, 2), readonly(f4, 2), readonly(i8))
_POOLED = (writable(u4, 2), writable(f4, 2), writable(i8))


@compiled(void(*_COLUMNS, readonly(u4), i8, *_POOLED))
def pool_columns(rows, values, lengths, owners, images, pooled_rows, pooled_values, out):
    """The sum over an image's regions of each column, its largest entries first; out = how many of each are stored.

    rows, values  (b, L), the first lengths[c] entries of row c are column c
    owners        (n,), the image of each region
    """
    sums = np.zeros(images, np.float64)
    touched = np.empty(rows.shape[1], np.uint32)
    keys = np.empty(rows.shape[1], np.uint64)
    for column in range(u8(rows.shape[0])):
        count = u8(0)
        for place in range(u8(lengths[column])):
            image = owners[u8(rows[column, place])]
            if sums[u8(image)] == f8(0.0):  # stored entries are above zero, so a sum of zero is an image not yet seen
                touched[count] = image
                count += u8(1)
            sums[u8(image)] += f8(values[column, place])
        for t in range(count):
            keys[t] = key_of(sums[u8(touched[t])], touched[t])
            sums[u8(touched[t])] = f8(0.0)
        out[column] = i8(write_largest(keys, count, pooled_rows[column], pooled_values[column]))


_STORED = (readonly(i8), readonly(u4))
_GROUPS = (readonly(i8), readonly(i8), i8)


@compiled(
    void(*_STORED, readonly(u2), *_GROUPS, *_POOLED),
    void(*_STORED, readonly(f4), *_GROUPS, *_POOLED),
)
def pool_images(indptr, rows, values, group_ptr, members, images, pooled_rows, pooled_values, out):
    """The root of the sum of the pooled columns of an image's regions, largest first; out = how many are stored.

    Image g of this block has the regions members[group_ptr[g]:group_ptr[g + 1]]; rows are images, of which there are
    `images`. Roots, because a few repeated regions would drown the rest of an image's neighbourhood.
    """
    sums = np.zeros(images, np.float64)
    touched, keys = np.empty(images, np.uint32), np.empty(images, np.uint64)
    for group in range(u8(group_ptr.shape[0] - 1)):
        count = u8(0)
        for member in range(u8(group_ptr[group]), u8(group_ptr[group + u8(1)])):
            region = u8(members[member])
            for place in range(u8(indptr[region]), u8(indptr[region + u8(1)])):
                image = rows[place]
                if sums[u8(image)] == f8(0.0):
                    touched[count] = image
                    count += u8(1)
                sums[u8(image)] += number(values[place])
        for t in range(count):
            keys[t] = key_of(sums[u8(touched[t])] ** 0.5, touched[t])
            sums[u8(touched[t])] = f8(0.0)
        out[group] = i8(write_largest(keys, count, pooled_rows[group], pooled_values[group]))
