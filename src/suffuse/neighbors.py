"""Exact nearest neighbours by cosine, the same whatever the batch, block, shard or number of threads."""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import IndexBroken
from suffuse.kernels.nearest import keep_largest_of_columns, keep_largest_of_rows
from suffuse.kernels.similarity import rank_pairs, scan

logger = logging.getLogger(__name__)

Features = NDArray[np.float32]

# Rows and columns of a product that is looked through at once: large enough for BLAS, small enough for the cache.
TILE = 1024
# Fewer queries than this are bound by memory, and no product is faster than a scan.
_FEW = 16

# OpenBLAS kernels without AVX2: what the faiss wheel falls back to on a CPU that it does not know.
_SLOW_ARCHITECTURES = frozenset({"Prescott", "Core2", "Katmai", "Penryn", "Dunnington", "Nehalem", "Atom", "Generic"})


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
    return _nearest(queries, features, min(k, len(features)), own_ids=None, sims=sims)


def nearest_to_rows(features: Features, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements start..stop among all, each element first in its own list, by id, even among duplicates."""
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return _nearest(features[start:stop], features, min(k, len(features)), own_ids=own_ids)


def nearest_to_elements(features: Features, elements: NDArray[np.integer], k: int) -> Neighbors:
    """The same for any elements."""
    return _nearest(features[elements], features, min(k, len(features)), own_ids=elements.astype(np.uint32))


def nearest_of_shown(find: Callable[[int], Neighbors], hidden: NDArray[np.bool_], k: int) -> Neighbors:
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
    return in_order(found, np.argsort(~shown, axis=1, kind="stable")[:, :k])


def in_order(lists: Neighbors, order: NDArray[np.integer]) -> Neighbors:
    """Each list with its entry order[i, j] as entry j."""
    ids, sims = (np.ascontiguousarray(np.take_along_axis(array, order, axis=1)) for array in (lists.ids, lists.sims))
    return Neighbors(ids.astype(np.int32, copy=False), sims.astype(np.float32, copy=False))


def joined(a: Neighbors, b: Neighbors, k: int) -> Neighbors:
    """The k nearest of two lists for the same rows, of different elements."""
    lists = Neighbors(np.concatenate([a.ids, b.ids], axis=1), np.concatenate([a.sims, b.sims], axis=1))
    return in_order(lists, np.lexsort((lists.ids, -lists.sims), axis=1)[:, :k])


def proposals(k: int, n: int) -> int:
    """How many elements a coarse search proposes for the k nearest of n: a few more, for what rounding may swap."""
    return min(n, k + 8 + k // 16)


def _nearest(
    queries: Features,
    features: Features,
    k: int,
    own_ids: NDArray[np.uint32] | None,
    sims: NDArray[np.float32] | None = None,
) -> Neighbors:
    queries, features = np.ascontiguousarray(queries), np.ascontiguousarray(features)
    count = proposals(k, len(features))
    best = Lists(len(queries), count)
    if sims is None and len(queries) < _FEW:
        sims = similarities(queries, features)
    if sims is not None:
        best.enter_rows(0, sims, 0)
    else:
        columns = max(TILE, TILE * TILE // len(queries))  # few queries: as large a product, of another shape
        for i in range(0, len(queries), TILE):
            for j in range(0, len(features), columns):
                best.enter_rows(i, product(queries[i : i + TILE], features[j : j + columns]), j)
    return chosen(queries, features, *unpacked(best.largest()), k, own_ids)


def similarities(queries: Features, features: Features) -> NDArray[np.float32]:
    """queries features^T for few queries: the same for each of them in every batch, but not exact in the last bits."""
    sims = np.empty((len(queries), len(features)), np.float32)
    scan(queries, features, sims)
    return sims


def product(a: Features, b: Features) -> NDArray[np.float32]:
    """a b^T; numbers that are not finite are found by `chosen`."""
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


def unpacked(keys: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and ids of keys; nan and -1 for the key 0, which stands for nothing."""
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    sign = np.uint32(1 << 31)
    sims = np.where(ordered & sign, ordered ^ sign, ~ordered).view(np.float32)
    ids = (np.uint64(0xFFFFFFFF) - (keys & np.uint64(0xFFFFFFFF))).astype(np.int64)
    return sims, np.where(keys == 0, -1, ids)


def chosen(
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
        raise IndexBroken(
            "features.npy holds values that are not finite; run suffuse verify, then copy the index again"
        )
    ids = found.astype(np.uint32)
    if own_ids is not None:
        missing = ~(ids == own_ids[:, None]).any(axis=1)
        ids[missing, -1] = own_ids[missing]
    result = ranked(queries, features, ids, k, own_ids)
    if ids.shape[1] < n:
        # Four times the rounding error to be expected of a float32 sum of d products.
        slack = np.float32(4 * np.sqrt(dimensions) * np.finfo(np.float32).eps)
        doubtful = np.flatnonzero(result.sims[:, -1] <= coarse[:, -1] + slack)
        for row in doubtful:
            floor = result.sims[row, -1] - slack
            everyone = np.flatnonzero(features @ queries[row] >= floor).astype(np.uint32)
            own = None if own_ids is None else own_ids[row : row + 1]
            again = ranked(queries[row : row + 1], features, everyone[None, :], k, own)
            result.ids[row], result.sims[row] = again.ids[0], again.sims[0]
    return result


def ranked(
    queries: Features, features: Features, ids: NDArray[np.uint32], k: int, own_ids: NDArray[np.uint32] | None
) -> Neighbors:
    """The k best of the proposed ids, by similarity, then by id; `own_ids` come first."""
    own = np.empty(0, np.uint32) if own_ids is None else own_ids
    best = Neighbors(np.empty((len(ids), k), np.int32), np.empty((len(ids), k), np.float32))
    rank_pairs(queries, features, ids, own, *best)
    return best


@functools.cache
def load_faiss() -> Any:
    """Import faiss with the BLAS kernel that this CPU deserves, and warn where that did not work.

    The OpenBLAS inside the faiss wheel does not know new CPUs and falls back to SSE3, five times slower. It
    reads OPENBLAS_CORETYPE once, when it is loaded; the variable is set for that moment only, and a
    user's own setting is left alone.
    """
    variable = "OPENBLAS_CORETYPE"
    chosen = _blas_core_type()
    set_here = chosen is not None and variable not in os.environ and "faiss" not in sys.modules
    if set_here:
        os.environ[variable] = str(chosen)
    try:
        import faiss
    finally:
        if set_here:
            os.environ.pop(variable, None)  # another thread may have been as early
    if (architecture := blas_architecture()) in _SLOW_ARCHITECTURES and chosen is not None:
        logger.warning(
            "faiss uses the slow BLAS kernel %s on a CPU that can do %s; import suffuse before faiss, or set %s=%s",
            architecture, chosen, variable, chosen,
        )  # fmt: skip
    return faiss


def blas_architecture() -> str | None:
    """The CPU kernel in use by the OpenBLAS inside the faiss wheel; None where faiss brings another BLAS."""
    from threadpoolctl import threadpool_info

    for library in threadpool_info():
        if library.get("internal_api") == "openblas" and "faiss" in library["filepath"]:
            return str(library.get("architecture"))
    return None


def _blas_core_type() -> str | None:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return "SkylakeX"
    return "Haswell" if features.get("avx2") else None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let searches of the calling thread use one thread: the caller runs several of them at once.

    faiss's number of threads is the calling thread's own. That of numpy's BLAS is the whole process's: it is one until
    the last of those who asked for it is done.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with _BLAS_LIMIT:
            yield
    finally:
        faiss.omp_set_num_threads(before)


class _BlasLimit:
    """One thread for BLAS while anybody is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limits = _blas_libraries().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limits is not None:
                self._limits.restore_original_limits()


_BLAS_LIMIT = _BlasLimit()


@functools.cache
def _blas_libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
