"""The best similarity within each image."""

from suffuse.kernels.jit import compiled, f4, readonly, u4, u8, void, writable


@compiled(void(readonly(f4, 2), readonly(u4), writable(f4, 2)))
def raise_to_best(sims, owners, out):
    """out[owners[i], r] = max(out[owners[i], r], sims[i, r]).

    One row per gallery region: the inner loop runs over the query's regions, which lie together in both arrays,
    so owners may come in any order.
    """
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        image = u8(owners[i])
        for r in range(width):
            out[image, r] = max(out[image, r], sims[i, r])
