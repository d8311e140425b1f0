"""Exact nearest neighbours by cosine, by faiss, the same whatever the batch, block or number of threads."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import IndexBroken
from suffuse.kernels.similarity import dot_pairs

logger = logging.getLogger(__name__)

Features = NDArray[np.float32]

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


def nearest(queries: Features, features: Features, k: int) -> Neighbors:
    """NN_k of each query: unit rows (m, d) against unit rows (n, d); k is cut to n."""
    return _nearest(queries, features, min(k, len(features)), own_ids=None)


def nearest_to_rows(features: Features, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements start..stop among all, each element first in its own list, by id, even among duplicates."""
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return _nearest(features[start:stop], features, min(k, len(features)), own_ids=own_ids)


def _nearest(queries: Features, features: Features, k: int, own_ids: NDArray[np.uint32] | None) -> Neighbors:
    """Let faiss propose a few more than k, compute their similarities anew, and sort those.

    The product that faiss uses is exact up to rounding, but its last bits change with the batch. So it only
    proposes; a row in which a k-th neighbour could have been missed for such a bit is searched once more.
    """
    queries, features = np.ascontiguousarray(queries), np.ascontiguousarray(features)
    n, dimensions = features.shape
    proposed = min(n, k + 8 + k // 16)
    faiss = load_faiss()
    coarse, found = faiss.knn(queries, features, proposed, metric=faiss.METRIC_INNER_PRODUCT)
    if found.min(initial=0) < 0 or not np.isfinite(coarse).all():
        # Features are checked at the border, so these come from a damaged index; faiss then answers with id -1.
        raise IndexBroken(
            "features.npy holds values that are not finite; run suffuse verify, then copy the index again"
        )
    ids = found.astype(np.uint32)
    if own_ids is not None:
        missing = ~(ids == own_ids[:, None]).any(axis=1)
        ids[missing, -1] = own_ids[missing]
    result = ranked(queries, features, ids, k, own_ids)
    if proposed < n:
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
    """The k best of the proposed ids, by similarity, then by id."""
    sims = np.empty(ids.shape, np.float32)
    dot_pairs(queries, features, ids, sims)
    rank_by = sims if own_ids is None else np.where(ids == own_ids[:, None], np.float32(np.inf), sims)
    order = np.lexsort((ids, -rank_by), axis=1)[:, :k]
    return Neighbors(np.take_along_axis(ids, order, axis=1).astype(np.int32), np.take_along_axis(sims, order, axis=1))


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
    """Let faiss use one thread for searches from the calling thread: the caller runs several of them at once."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
