"""Exact nearest neighbours by cosine, the same whatever the batch, block, shard or number of threads; their ranks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.kernels.combine import weigh_by_ranks
from suffuse.core.kernels.nearest import keep_largest_of_columns, keep_largest_of_rows, rank_pairs, scan

Features = NDArray[np.float32]

# Rows and columns of a product that is looked through at once: large enough for BLAS, small enough for the cache.
TILE = 1024
# Fewer queries than this are bound by memory, and no product is faster than a scan.
_FEW = 16


class Neighbors(NamedTuple):
    """The nearest elements of each row, the nearest first, ties by id.

    Where an approximate search found fewer than k, the list of an element ends with the element itself, similarity 0:
    an id that exists, and never an edge.
    """

    ids: NDArray[np.int32]  # (m, k)
    sims: NDArray[np.float32]  # (m, k)


# NN_k of the elements start..stop among all features: `nearest_to_rows`, or an approximate search in its place.
Find = Callable[[Features, int, int, int], Neighbors]


def nearest(queries: Features, features: Features, k: int, sims: NDArray[np.float32] | None = None) -> Neighbors:
    """NN_k of each query: unit rows (m, d) against unit rows (n, d); k is cut to n.

    `sims` (m, n) are their products up to rounding, where they are known already.
    """
    return _find_nearest(queries, features, k, own_ids=None, sims=sims)


def nearest_to_rows(features: Features, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements start..stop among all, each element first in its own list, by id, even among duplicates."""
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return _find_nearest(features[start:stop], features, k, own_ids=own_ids)


def nearest_to_elements(features: Features, elements: NDArray[np.integer], k: int) -> Neighbors:
    """The same for any elements."""
    return _find_nearest(features[elements], features, k, own_ids=elements.astype(np.uint32))


def nearest_visible(find: Callable[[int], Neighbors], hidden: NDArray[np.bool_], k: int) -> Neighbors:
    """NN_k among the elements that are not hidden, of which k is cut; `find(count)` gives the nearest of all."""
    n = len(hidden)
    k = min(k, n - int(hidden.sum()))
    count = min(n, k + 8)
    while True:
        found = find(count)
        shown = ~hidden[found.ids]
        if count == n or (shown.sum(axis=1) >= k).all():
            break
        count = min(n, 2 * count)
    return reorder_lists(found, np.argsort(~shown, axis=1, kind="stable")[:, :k])


def reorder_lists(lists: Neighbors, order: NDArray[np.integer]) -> Neighbors:
    """Each list with its entry order[i, j] as entry j."""
    ids, sims = (np.ascontiguousarray(np.take_along_axis(array, order, axis=1)) for array in (lists.ids, lists.sims))
    return Neighbors(ids.astype(np.int32, copy=False), sims.astype(np.float32, copy=False))


def merge_lists(a: Neighbors, b: Neighbors, k: int) -> Neighbors:
    """The k nearest of two lists for the same rows, of different elements."""
    lists = Neighbors(np.concatenate([a.ids, b.ids], axis=1), np.concatenate([a.sims, b.sims], axis=1))
    return reorder_lists(lists, np.lexsort((lists.ids, -lists.sims), axis=1)[:, :k])


def count_proposals(k: int, n: int) -> int:
    """How many elements a coarse search proposes for the k nearest of n: a few more, for what rounding may swap."""
    return min(n, k + 8 + k // 16)


def _find_nearest(
    queries: Features,
    features: Features,
    k: int,
    own_ids: NDArray[np.uint32] | None,
    sims: NDArray[np.float32] | None = None,
) -> Neighbors:
    queries, features, k = np.ascontiguousarray(queries), np.ascontiguousarray(features), min(k, len(features))
    count = count_proposals(k, len(features))
    best = Lists(len(queries), count)
    if sims is None and len(queries) < _FEW:
        sims = scan_similarities(queries, features)
    if sims is not None:
        best.enter_rows(0, sims, 0)
    else:
        columns = max(TILE, TILE * TILE // len(queries))  # few queries: as large a product, of another shape
        for i in range(0, len(queries), TILE):
            for j in range(0, len(features), columns):
                best.enter_rows(i, multiply(queries[i : i + TILE], features[j : j + columns]), j)
    return choose_nearest(queries, features, *unpack_keys(best.largest()), k, own_ids)


def scan_similarities(queries: Features, features: Features) -> NDArray[np.float32]:
    """queries features^T for few queries: the same for each of them in every batch, but not exact in the last bits."""
    sims = np.empty((len(queries), len(features)), np.float32)
    scan(queries, features, sims)
    return sims


def multiply(a: Features, b: Features) -> NDArray[np.float32]:
    """a b^T; numbers that are not finite are found by `choose_nearest`."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(a @ b.T)


class Lists:
    """The largest `count` similarities of each of `rows` elements, among those entered so far."""

    def __init__(self, rows: int, count: int, floors: NDArray[np.float32] | None = None) -> None:
        """`floors` are similarities that are too small to be kept, where such are known."""
        self._keys = np.zeros((rows, 2 * count), np.uint64)
        self._counts = np.zeros(rows, np.int64)
        self._floors = np.full(rows, -np.inf, np.float32) if floors is None else floors.copy()

    def enter_rows(self, first_row: int, sims: NDArray[np.float32], first_id: int) -> None:
        """Enter the tile `sims`: rows from `first_row` on, ids from `first_id` on."""
        keep_largest_of_rows(sims, first_id, *self._part(first_row, sims.shape[0]))

    def enter_columns(self, first_row: int, sims: NDArray[np.float32], first_id: int) -> None:
        """The same for a transposed tile: its columns are the rows from `first_row` on."""
        keep_largest_of_columns(sims, first_id, *self._part(first_row, sims.shape[1]))

    def largest(self) -> NDArray[np.uint64]:
        """Keys of the largest entries, largest first, (rows, count); 0 where there are not so many."""
        width = self._keys.shape[1] // 2
        self._keys[np.arange(2 * width) >= self._counts[:, None]] = 0
        return largest_keys(self._keys, width)

    def _part(self, start: int, rows: int) -> tuple[NDArray[Any], ...]:
        return tuple(array[start : start + rows] for array in (self._keys, self._counts, self._floors))


def largest_keys(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """The `count` largest keys of each row, largest first."""
    if count < keys.shape[1]:
        keys = np.partition(keys, keys.shape[1] - count, axis=1)[:, -count:]
    return np.ascontiguousarray(np.sort(keys, axis=1)[:, ::-1])


def unpack_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and ids of keys; nan and -1 for the key 0, which stands for nothing."""
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    sign = np.uint32(1 << 31)
    sims = np.where(ordered & sign, ordered ^ sign, ~ordered).view(np.float32)
    ids = (np.uint64(0xFFFFFFFF) - (keys & np.uint64(0xFFFFFFFF))).astype(np.int64)
    return sims, np.where(keys == 0, -1, ids)


def choose_nearest(
    queries: Features,
    features: Features,
    coarse: NDArray[np.float32],
    found: NDArray[np.int64],
    k: int,
    own_ids: NDArray[np.uint32] | None,
) -> Neighbors:
    """The k nearest of what a coarse search proposes, a few more than k, largest similarity first.

    A product is exact up to rounding, but its last bits change with the batch. So it only proposes: similarities are
    computed anew, and a row in which a k-th neighbour could have been missed for such a bit is searched once more.
    """
    n, dimensions = features.shape
    if found.min(initial=0) < 0 or not np.isfinite(coarse).all():
        # Features are checked at the border, so these come from a damaged index.
        raise Damaged("features.npy holds values that are not finite")
    ids = found.astype(np.uint32)
    if own_ids is not None:
        missing = ~(ids == own_ids[:, None]).any(axis=1)
        ids[missing, -1] = own_ids[missing]
    result = rank(queries, features, ids, k, own_ids)
    if ids.shape[1] < n:
        # Four times the rounding error to be expected of a float32 sum of d products.
        slack = np.float32(4 * np.sqrt(dimensions) * np.finfo(np.float32).eps)
        doubtful = np.flatnonzero(result.sims[:, -1] <= coarse[:, -1] + slack)
        for row in doubtful:
            floor = result.sims[row, -1] - slack
            everyone = np.flatnonzero(features @ queries[row] >= floor).astype(np.uint32)
            own = None if own_ids is None else own_ids[row : row + 1]
            again = rank(queries[row : row + 1], features, everyone[None, :], k, own)
            result.ids[row], result.sims[row] = again.ids[0], again.sims[0]
    return result


def rank(
    queries: Features, features: Features, ids: NDArray[np.uint32], k: int, own_ids: NDArray[np.uint32] | None
) -> Neighbors:
    """The k best of the proposed ids, by similarity, then by id; `own_ids` come first."""
    own = np.empty(0, np.uint32) if own_ids is None else own_ids
    best = Neighbors(np.empty((len(ids), k), np.int32), np.empty((len(ids), k), np.float32))
    rank_pairs(queries, features, ids, own, *best)
    return best


# More shards are more tasks, and more lists on disk; fewer are larger ones.
_SHARDS, _LARGEST_SHARD = 8, 32768


def shard_starts(n: int, block: int) -> range:
    """Where the shards of n rows start: whole blocks of `block` rows, so that a block lies in one shard."""
    rows = min(max(n // _SHARDS, TILE), _LARGEST_SHARD)
    return range(0, n, max(rows // block, 1) * block)


def search_shard(features: Features, start: int, stop: int, k: int) -> NDArray[np.uint64]:
    """Keys of the nearest in the shard start..stop of each of its elements, largest first."""
    best = Lists(stop - start, count_proposals(k, len(features)))
    for i in range(start, stop, TILE):
        for j in range(start, stop, TILE):
            best.enter_rows(
                i - start, multiply(features[i : min(i + TILE, stop)], features[j : min(j + TILE, stop)]), j
            )
    return best.largest()


def search_pair(
    features: Features, a: range, b: range, own_a: NDArray[np.uint64], own_b: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Keys of the nearest in b of each element of a, and in a of each of b; own_* are those of `search_shard`."""
    best_a, best_b = (Lists(len(own), own.shape[1], _floors(own)) for own in (own_a, own_b))
    for i in range(a.start, a.stop, TILE):
        for j in range(b.start, b.stop, TILE):
            sims = multiply(features[i : min(i + TILE, a.stop)], features[j : min(j + TILE, b.stop)])
            best_a.enter_rows(i - a.start, sims, j)
            best_b.enter_columns(j - b.start, sims, i)
    return best_a.largest(), best_b.largest()


def _floors(own: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The similarity that an element must exceed to matter: that of the last one known; none where lists are short."""
    sims, _ = unpack_keys(own[:, -1])
    # One step lower: of equal similarities the smaller id is kept, and it may be in the other shard.
    return np.where(own[:, -1] == 0, np.float32(-np.inf), np.nextafter(sims, np.float32(-np.inf)))


def merge_shards(features: Features, start: int, stop: int, parts: Sequence[NDArray[np.uint64]], k: int) -> Neighbors:
    """NN_k of the elements start..stop, from their lists of all shards (stop - start, .)."""
    keys = largest_keys(np.concatenate(parts, axis=1), count_proposals(k, len(features)))
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return choose_nearest(features[start:stop], features, *unpack_keys(keys), min(k, len(features)), own_ids)


# --- ranks


# The distance of what a list does not have: as far as anything can be.
_NOTHING = 2.0


@functools.lru_cache
def known_ranks(k: int) -> NDArray[np.int64]:
    """The ranks at which an index keeps distances, of lists with k entries: 1, 2, 4, ... and the last."""
    powers = 2 ** np.arange(k.bit_length())
    ranks = np.append(powers[powers < k - 1], k - 1)
    ranks.flags.writeable = False  # every caller gets the same one
    return ranks


def take_marks(lists: Neighbors, k: int, of: NDArray[np.integer]) -> NDArray[np.float16]:
    """1 - similarity at the known ranks of the lists of some elements, (b, r); lists have k entries where they can.

    Distances, not similarities: half precision then tells the nearest apart, however near they are.
    """
    ranks = known_ranks(k)
    there = ranks < lists.ids.shape[1]
    marks = np.full((len(lists.ids), len(ranks)), _NOTHING, np.float16)
    missing = lists.ids[:, ranks[there]] == of[:, None]
    marks[:, there] = np.where(missing, _NOTHING, np.maximum(1 - lists.sims[:, ranks[there]], 0))
    return marks


def weigh_by_rank(sims: NDArray[np.float32], marks: NDArray[np.float16], k: int) -> NDArray[np.float64]:
    """y_j = (r_j r'_j)^-0.75 for seeds (m, s), the nearest first; 0 where the similarity is not above 0.

    r_j is the rank of the seed for the query, and r'_j the rank that the query would take in the seed's list, k if it
    would be outside: between the marks (m * s, r) of the seeds it is interpolated in the logarithm of the rank.
    """
    weights = np.empty(sims.shape)
    weigh_by_ranks(np.ascontiguousarray(sims, np.float32), marks.view(np.uint16), known_ranks(k), k, weights)
    return weights
