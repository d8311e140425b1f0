"""Dot products of chosen pairs, the same to the last bit whoever asks and in whatever batch."""

from suffuse.kernels.jit import compiled, f4, f8, readonly, u4, u8, void, writable


@compiled(void(readonly(f4, 2), readonly(f4, 2), readonly(u4, 2), writable(f4, 2)))
def dot_pairs(queries, features, ids, out):
    """out[q, c] = queries[q] . features[ids[q, c]].

    Summed in float64: a BLAS product differs in its last bits with the size of the batch, and then ties
    between duplicates are broken by chance.
    """
    dimensions = u8(queries.shape[1])
    for q in range(u8(ids.shape[0])):
        for c in range(u8(ids.shape[1])):
            element = u8(ids[q, c])
            total = f8(0.0)
            for t in range(dimensions):
                total += f8(queries[q, t]) * f8(features[element, t])
            out[q, c] = f4(total)
