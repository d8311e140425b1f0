"""Approximate nearest neighbours by cosine: the paper's IVFADC, and HNSW.

An approximate index only proposes: similarities are computed anew, and each element is put first in its own list, as in
exact search. What the index misses stays missing, which is the trade-off that these searches are there to measure.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.arrays import write_bytes
from suffuse.errors import IndexBroken
from suffuse.neighbors import Features, Neighbors, load_faiss, one_thread, ranked
from suffuse.params import GraphSearch, Params

logger = logging.getLogger(__name__)

# IVFADC as in the paper: 128 sub-vectors of (there) 16 dimensions, a byte for each.
SUB_VECTORS = 128
SUB_VECTOR_DIMENSIONS = 16
CODE_BITS = 8

# HNSW: recall .999 on 100,000 x 512 with a search width of 64 (design.md).
HNSW_LINKS = 32
HNSW_BUILD_WIDTH = 100

# Rows searched at a time: so few that faiss compares them with the cells one by one. A product of matrices has other
# last bits in each batch, and with them other cells; so lists do not depend on the block.
_BATCH = 16

_BLAS_SETTING = threading.Lock()


def write_index(path: Path, features: Features, search: GraphSearch) -> None:
    """Train the approximate index of unit rows (n, d) and write it, whole or not at all.

    On one thread, whatever the caller allows: several would add elements to HNSW in an order of chance. The same
    rows give the same bytes.
    """
    faiss = load_faiss()
    features = np.ascontiguousarray(features)
    with one_thread():
        index = _trained_ivfadc(features) if search == "ivfadc" else _linked_hnsw(features)
    write_bytes(path, [faiss.serialize_index(index).data])


def read_index(path: Path, search: GraphSearch, params: Params) -> Any:
    """Open an approximate index to search as wide as the parameters say, its data memory-mapped where faiss can."""
    faiss = load_faiss()
    # faiss maps the lists of IVFADC with one flag, and the arrays of HNSW with another that came later.
    flag = faiss.IO_FLAG_MMAP if search == "ivfadc" else getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    try:
        index = faiss.read_index(str(path), flag)
    except RuntimeError as error:
        raise IndexBroken(f"{path} cannot be read: {str(error).strip()}; remove it and build again") from error
    if search == "ivfadc":
        index.nprobe = min(params.probes, index.nlist)
        # Else it starts 32 threads at each search, only to fetch pages.
        faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
    else:
        index.hnsw.efSearch = params.ef
    return index


def nearest_to_rows(index: Any, features: Features, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements start..stop as the index sees them, each element first in its own list, by id.

    The similarities are exact. A list that has fewer than k ends with the element itself (see `Neighbors`).
    """
    queries, features = np.ascontiguousarray(features[start:stop]), np.ascontiguousarray(features)
    k, own = min(k, len(features)), np.arange(start, stop, dtype=np.uint32)[:, None]
    faiss, wide = load_faiss(), None
    if isinstance(index, faiss.IndexHNSW):
        # With fewer candidates than k, faiss stops early and returns half a list.
        wide = faiss.SearchParametersHNSW(efSearch=max(index.hnsw.efSearch, k))
    found = np.empty((len(queries), k), np.int64)
    for first in range(0, len(queries), _BATCH):
        found[first : first + _BATCH] = index.search(queries[first : first + _BATCH], k, params=wide)[1]
    ids = np.where(found < 0, own, found).astype(np.uint32)
    lost = ~(ids == own).any(axis=1)
    ids[lost, -1] = own[lost, 0]
    return _repeats_last(ranked(queries, features, ids, k, own[:, 0]))


def _repeats_last(neighbors: Neighbors) -> Neighbors:
    """Lists in which the element itself, where it stands in for what was not found, comes last, similarity 0."""
    repeated = neighbors.ids == neighbors.ids[:, :1]
    repeated[:, 0] = False
    order = np.argsort(repeated, axis=1, kind="stable")
    sims = np.where(repeated, np.float32(0), neighbors.sims)
    return Neighbors(np.take_along_axis(neighbors.ids, order, axis=1), np.take_along_axis(sims, order, axis=1))


def _trained_ivfadc(features: NDArray[np.float32]) -> Any:
    """Round(sqrt(n)) cells, and the rest of each row within its cell as a code of 128 bytes, by inner product."""
    faiss, (n, dimensions) = load_faiss(), features.shape
    bits = min(CODE_BITS, n.bit_length() - 1)
    if bits < CODE_BITS:
        logger.warning(
            "%d elements are too few to train 256 values for each sub-vector: IVFADC uses %d; search exactly instead",
            n, 2**bits,
        )  # fmt: skip
    sub_vectors = max(m for m in range(1, SUB_VECTORS + 1) if dimensions % m == 0)
    if dimensions > sub_vectors * SUB_VECTOR_DIMENSIONS:
        logger.warning(
            "IVFADC cuts %d dimensions into %d sub-vectors, coarser than the paper's %d dimensions each; whiten to a"
            " multiple of %d",
            dimensions, sub_vectors, SUB_VECTOR_DIMENSIONS, SUB_VECTORS,
        )  # fmt: skip
    cells = max(1, round(n**0.5))
    index = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(dimensions), dimensions, cells, sub_vectors, bits, faiss.METRIC_INNER_PRODUCT
    )
    # faiss draws its samples with fixed seeds. It would print a warning for each small set, although a cell of
    # sqrt(n) rows is what the paper asks for.
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    with _by_blas():
        index.train(features)
    index.add(features)
    return index


def _linked_hnsw(features: NDArray[np.float32]) -> Any:
    faiss = load_faiss()
    index = faiss.IndexHNSWFlat(features.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = HNSW_BUILD_WIDTH
    index.add(features)
    return index


@contextlib.contextmanager
def _by_blas() -> Iterator[None]:
    """Let faiss multiply matrices however short the vectors are.

    Since 1.15 it compares up to 128,000 numbers one by one: training 128 sub-vectors of 4 dimensions on 5,000 rows then
    takes 19 CPU-seconds instead of 1.5. The setting belongs to the process, so it is changed for that time only.
    """
    settings = load_faiss().cvar
    with _BLAS_SETTING:
        before = settings.distance_compute_blas_threshold
        settings.distance_compute_blas_threshold = 1
        try:
            yield
        finally:
            settings.distance_compute_blas_threshold = before
