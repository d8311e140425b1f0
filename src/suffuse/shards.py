"""Exact nearest neighbours of all elements among all, by pairs of shards of the database.

The similarity of i and j is that of j and i: the product of two shards serves the lists of both, so half of all
products are enough. A pair needs the rows of two shards only, so neither memory nor a worker must hold them all.

    first    `within`: the nearest of each element in its own shard
    then     `between`: of each element of two shards, in the other one; what is farther than the first step found
             cannot be among the nearest, and is dropped at once
    at last  `merged`: the nearest of all, similarities computed anew
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffuse.neighbors import TILE, Features, Lists, Neighbors, chosen, largest_keys, product, proposals, unpacked

# More shards are more tasks, and more lists on disk; fewer are larger ones.
_SHARDS, _LARGEST_SHARD = 8, 32768


def shard_starts(n: int, block: int) -> range:
    """Where the shards of n rows start: whole blocks of `block` rows, so that a block lies in one shard."""
    rows = min(max(n // _SHARDS, TILE), _LARGEST_SHARD)
    return range(0, n, max(rows // block, 1) * block)


def within(features: Features, start: int, stop: int, k: int) -> NDArray[np.uint64]:
    """Keys of the nearest in the shard start..stop of each of its elements, largest first."""
    best = Lists(stop - start, proposals(k, len(features)))
    for i in range(start, stop, TILE):
        for j in range(start, stop, TILE):
            best.enter_rows(i - start, product(features[i : min(i + TILE, stop)], features[j : min(j + TILE, stop)]), j)
    return best.largest()


def between(
    features: Features, a: range, b: range, own_a: NDArray[np.uint64], own_b: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Keys of the nearest in b of each element of a, and in a of each element of b; own_* are those of `within`."""
    best_a, best_b = (Lists(len(own), own.shape[1], _floors(own)) for own in (own_a, own_b))
    for i in range(a.start, a.stop, TILE):
        for j in range(b.start, b.stop, TILE):
            sims = product(features[i : min(i + TILE, a.stop)], features[j : min(j + TILE, b.stop)])
            best_a.enter_rows(i - a.start, sims, j)
            best_b.enter_columns(j - b.start, sims, i)
    return best_a.largest(), best_b.largest()


def _floors(own: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The similarity that an element must exceed to matter: that of the last one known; none where lists are short."""
    sims, _ = unpacked(own[:, -1])
    # One step lower: of equal similarities the smaller id is kept, and it may be in the other shard.
    return np.where(own[:, -1] == 0, np.float32(-np.inf), np.nextafter(sims, np.float32(-np.inf)))


def merged(features: Features, start: int, stop: int, parts: Sequence[NDArray[np.uint64]], k: int) -> Neighbors:
    """NN_k of the elements start..stop, from their lists of all shards (stop - start, .)."""
    keys = largest_keys(np.concatenate(parts, axis=1), proposals(k, len(features)))
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return chosen(features[start:stop], features, *unpacked(keys), min(k, len(features)), own_ids)
