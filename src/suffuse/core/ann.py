"""Approximate nearest neighbours: HNSW as a graph of plain arrays, and the paper's IVFADC by faiss.

faiss builds the HNSW graph; a kernel of our own searches it, so that it can lie in .npy files that are memory-mapped,
beside the features and without a copy of them. An approximate index only proposes: similarities are computed anew, and
each element comes first in its own list, as in exact search. What the index misses stays missing.
"""

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged, neighbors
from suffuse.core.blas import load_faiss, one_thread
from suffuse.core.kernels.checksums import UNCHECKED
from suffuse.core.kernels.hnsw import search_hnsw
from suffuse.core.neighbors import Features, Neighbors, nearest, rank

logger = logging.getLogger(__name__)

# Recall .999 on 100,000 x 512 with a search width of 64.
LINKS = 32
BUILD_WIDTH = 100
# Recall@10 on the synthetic set, 512 dimensions: .99 with 64 to 96 candidates, at 20,000 elements and at 100,000.
SEARCH_WIDTH = 96
# Larger sets need a wider search for the same recall.
_MEASURED, _GROWTH = 100_000, 0.3

# Lists that are taken out of faiss's arrays at a time.
_BLOCK = 1 << 16


class Checked(Protocol):
    """A file whose pages have checksums: what kernels take to check each page that they read, or all of it at once."""

    kernel: tuple[Any, ...]

    def check_whole(self) -> None:
        """Raise if any page is not what was written."""


class HnswGraph(NamedTuple):
    """An HNSW graph of n elements, without their features. A list of neighbours ends at -1, or where the row ends.

    Element i has upper_start[i + 1] - upper_start[i] levels above level 0, most have none; its neighbours on level
    l > 0 are upper[upper_start[i] + l - 1]. The entry point has the most levels.

    Of equal rows only the first is linked: the others, its copies, have an empty list and are found with it. If they
    were linked, more copies than a list is long would know only each other, and a search that came to them would
    never leave them.

    Bytes per element: 8 m + 4 + 4 m / (m - 1), or 264 for m = 32, and 8 per copy.
    """

    links: NDArray[np.int32]  # (n, 2m), the neighbours on level 0
    upper_start: NDArray[np.int32]  # (n + 1,)
    upper: NDArray[np.int32]  # (about n / (m - 1), m)
    copies: NDArray[np.int32]  # (c, 2): an element and a copy of it, sorted
    entry: NDArray[np.int32]  # (1,), where a search starts


def search_width(n: int) -> int:
    """Candidates that a search of n elements keeps unless the caller says otherwise."""
    return max(SEARCH_WIDTH, int(SEARCH_WIDTH * float(n / _MEASURED) ** _GROWTH))


def build_hnsw(
    features: Features, *, m: int = LINKS, ef_construction: int = BUILD_WIDTH, threads: int = 1
) -> HnswGraph:
    """Link unit rows (n, d), each to the m best of `ef_construction` candidates; faiss copies the rows meanwhile.

    The same rows give the same graph on one thread. On several they do since faiss 1.15.1; before, elements are linked
    in an order of chance (github.com/facebookresearch/faiss/pull/5611), and each graph is another one, as good.
    """
    faiss = load_faiss()
    features = np.ascontiguousarray(features)
    n, copies = len(features), _copies(features)
    linked = np.setdiff1d(np.arange(n, dtype=np.int32), copies[:, 1], assume_unique=True)
    index = faiss.IndexHNSWFlat(features.shape[1], m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = ef_construction
    with one_thread():  # also puts back what was set before
        faiss.omp_set_num_threads(threads)
        index.add(features[linked] if len(copies) else features)
    return _graph_of(index.hnsw, m, n, linked, copies)


def nearest_by_hnsw(
    queries: Features,
    features: Features,
    graph: HnswGraph,
    k: int,
    ef: int,
    *,
    own_ids: NDArray[np.uint32] | None = None,
    fetch: bool = False,
    pages: Sequence[Checked] = (),
) -> Neighbors:
    """About NN_k of each query: unit rows (m, d) against unit rows (n, d); k is cut to n.

    `ef` is the number of candidates that a search keeps, never less than k needs: the more, the more of the true
    neighbours it finds. Similarities are exact and sorted as in exact search. A query for which the graph gives fewer
    than k, because not every element can be reached, is searched exactly: slow, but never a list with holes.
    Where queries are elements themselves, `own_ids` says which: each comes first in its own list.
    `fetch` is for arrays that are mapped and still on disk: each step asks for all that it is going to read.
    `pages` are those under features, links, upper_start and upper, for files that may have been damaged.
    """
    queries, features = np.ascontiguousarray(queries), np.ascontiguousarray(features)
    n = len(features)
    k = min(k, n)
    proposed = neighbors.count_proposals(k, n)
    arrays, entry = _checked(graph, n)
    # Zeros: an id that exists, where lists stay short.
    ids, counts = np.zeros((len(queries), proposed), np.uint32), np.empty(len(queries), np.int64)
    width, checks = min(max(ef, proposed), n), tuple(file.kernel for file in pages) or (UNCHECKED,) * 4
    search_hnsw(queries, features, *arrays, entry, checks, width, fetch, ids, counts)
    fewest = counts.min(initial=proposed)
    if fewest < 0:
        raise Damaged("features.npy or the search graph was damaged, or it holds ids that do not exist")
    if own_ids is not None:
        missing = ~(ids == own_ids[:, None]).any(axis=1)
        ids[missing, -1] = own_ids[missing]
    found = rank(queries, features, ids, k, own_ids)
    if fewest < proposed:
        for row in np.flatnonzero(counts < proposed).tolist():
            if own_ids is not None:  # what stays short may hold itself
                again = neighbors.nearest_to_rows(features, int(own_ids[row]), int(own_ids[row]) + 1, k)
            elif (count := int(counts[row])) < k:
                for file in pages[:1]:
                    file.check_whole()  # all features are read now
                again = nearest(queries[row : row + 1], features, k)
            else:
                again = rank(queries[row : row + 1], features, ids[[row], :count], k, None)
            found.ids[row], found.sims[row] = again.ids[0], again.sims[0]
    if not np.isfinite(found.sims).all():
        raise Damaged("features.npy holds values that are not finite")
    return found


def nearest_along_links(graph: HnswGraph, ef: int, features: Features, start: int, stop: int, k: int) -> Neighbors:
    """The same for the elements start..stop, each first in its own list."""
    own_ids = np.arange(start, stop, dtype=np.uint32)
    return nearest_by_hnsw(features[start:stop], features, graph, k, ef, own_ids=own_ids)


def nearest_linked_or_added(
    queries: Features, features: Features, graph: HnswGraph, k: int, ef: int, fetch: bool, pages: Sequence[Checked]
) -> Neighbors:
    """`nearest_by_hnsw` where only the first elements are linked; queries are compared with all added since."""
    linked = len(graph.links)
    found = nearest_by_hnsw(queries, features[:linked], graph, k, ef, fetch=fetch, pages=pages)
    if linked == len(features):
        return found
    added = nearest(queries, features[linked:], k)
    return neighbors.merge_lists(found, added._replace(ids=added.ids + np.int32(linked)), k)


def _checked(graph: HnswGraph, n: int) -> tuple[list[NDArray[np.uint32]], int]:
    """The arrays as the kernel takes them, which trusts their shapes but no id in them; and the entry point."""
    links, upper_start, upper, copies, entry = graph
    fits = (
        all(array.dtype == np.int32 and array.flags.c_contiguous for array in graph)
        and links.ndim == upper.ndim == copies.ndim == 2
        and (len(links), upper_start.shape, copies.shape[1], entry.shape) == (n, (n + 1,), 2, (1,))
        and 0 <= entry[0] < n
    )
    if not fits:
        raise Damaged(
            f"the search graph does not fit {n} elements: it has"
            f" {', '.join(f'{name} {a.dtype}{list(a.shape)}' for name, a in graph._asdict().items())}"
        )
    return [array.view(np.uint32) for array in graph[:-1]], int(entry[0])


def _copies(features: Features) -> NDArray[np.int32]:
    """(element, copy) for each row that equals an earlier one, the first such, sorted; (c, 2)."""
    # By hash, because sorting whole rows would take as much memory again.
    joined = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in features)
    digests = np.frombuffer(joined, np.uint64).reshape(-1, 2)
    order = np.lexsort(digests.T)  # stable: equal rows stay sorted by id
    differs = np.ones(len(order), bool)
    differs[1:] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
    first = order[np.maximum.accumulate(np.where(differs, np.arange(len(order)), 0))]
    pairs = np.stack([first, order], axis=1)[~differs]
    return np.ascontiguousarray(pairs[np.lexsort(pairs.T[::-1])], np.int32)


def _graph_of(hnsw: Any, m: int, n: int, linked: NDArray[np.int32], copies: NDArray[np.int32]) -> HnswGraph:
    """The arrays of faiss's graph, whose element i is linked[i] of ours.

    faiss keeps the lists of an element one after another, 2m places for level 0 and m for each level above.
    """
    faiss = load_faiss()
    stored, offsets = faiss.vector_to_array(hnsw.neighbors), faiss.vector_to_array(hnsw.offsets).astype(np.int64)
    # One more than there are elements: -1 stays -1.
    names = np.append(linked, np.int32(-1))
    links = np.full((n, 2 * m), -1, np.int32)
    for start in range(0, len(linked), _BLOCK):
        starts = offsets[start : min(start + _BLOCK, len(linked))]
        links[linked[start : start + _BLOCK]] = names[stored[starts[:, None] + np.arange(2 * m)]]
    levels = (np.diff(offsets) - 2 * m) // m
    tall = np.flatnonzero(levels)
    upper = np.concatenate([stored[:0], *(stored[offsets[i] + 2 * m : offsets[i + 1]] for i in tall)])
    upper_start = np.zeros(n + 1, np.int32)
    upper_start[linked + 1] = levels
    np.cumsum(upper_start, out=upper_start)
    entry = linked[[hnsw.entry_point]]
    return HnswGraph(links, upper_start, names[upper].reshape(-1, m), copies, entry)


# --- IVFADC as in the paper: 128 sub-vectors of (there) 16 dimensions, a byte for each

SUB_VECTORS = 128
SUB_VECTOR_DIMENSIONS = 16
CODE_BITS = 8

# Rows searched at a time: so few that faiss compares them with the cells one by one. A product of matrices has other
# last bits in each batch, and with them other cells; so lists do not depend on the block.
_BATCH = 16

_BLAS_SETTING = threading.Lock()


def train_ivfadc(features: Features) -> memoryview:
    """The bytes of the IVFADC index of unit rows (n, d), as faiss reads them; the same rows give the same bytes.

    It has round(sqrt(n)) cells; what is left of each row within its cell is a code of 128 bytes.
    """
    faiss, features = load_faiss(), np.ascontiguousarray(features)
    n, dimensions = features.shape
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
    with one_thread():
        with _by_blas():
            index.train(features)
        index.add(features)
    trained: memoryview = faiss.serialize_index(index).data
    return trained


def read_ivfadc(path: str, probes: int) -> Any:
    """Open an IVFADC index, its lists memory-mapped, to visit so many cells."""
    faiss = load_faiss()
    try:
        index = faiss.read_index(path, faiss.IO_FLAG_MMAP)
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read: {str(error).strip()}") from error
    index.nprobe = min(probes, index.nlist)
    # Else it starts 32 threads at each search, only to fetch pages.
    faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
    return index


def nearest_by_ivfadc(index: Any, features: Features, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements start..stop as the index sees them, each element first in its own list, by id.

    The similarities are exact. A list that has fewer than k ends with the element itself (see `Neighbors`).
    """
    queries, features = np.ascontiguousarray(features[start:stop]), np.ascontiguousarray(features)
    k, own = min(k, len(features)), np.arange(start, stop, dtype=np.uint32)[:, None]
    found = np.empty((len(queries), k), np.int64)
    for first in range(0, len(queries), _BATCH):
        found[first : first + _BATCH] = index.search(queries[first : first + _BATCH], k)[1]
    ids = np.where(found < 0, own, found).astype(np.uint32)
    lost = ~(ids == own).any(axis=1)
    ids[lost, -1] = own[lost, 0]
    ranked = rank(queries, features, ids, k, own[:, 0])
    # The element itself, where it stands in for what was not found, goes to the end, with similarity 0.
    repeated = ranked.ids == ranked.ids[:, :1]
    repeated[:, 0] = False
    sims = np.where(repeated, np.float32(0), ranked.sims)
    return neighbors.reorder_lists(Neighbors(ranked.ids, sims), np.argsort(repeated, axis=1, kind="stable"))


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
