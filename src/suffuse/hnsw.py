"""Approximate nearest neighbours of queries, by an HNSW graph of plain arrays.

faiss builds the graph; a kernel of our own searches it, so that it can lie in .npy files that are memory-mapped, beside
the features and without a copy of them. As in `approximate`, the graph only proposes: similarities are computed anew.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import IndexBroken
from suffuse.kernels.hnsw import search_hnsw
from suffuse.neighbors import (
    Features,
    Neighbors,
    joined,
    load_faiss,
    nearest,
    nearest_to_rows,
    one_thread,
    proposals,
    ranked,
)
from suffuse.pages import Pages

LINKS = 32
BUILD_WIDTH = 100
# Recall@10 on the synthetic set, 512 dimensions: .99 with 64 to 96 candidates, at 20,000 elements and at 100,000.
SEARCH_WIDTH = 96
# Larger sets need a wider search for the same recall.
_MEASURED, _GROWTH = 100_000, 0.3

# Lists that are taken out of faiss's arrays at a time.
_BLOCK = 1 << 16


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
    pages: Sequence[Pages] = (Pages(""),) * 4,
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
    proposed = proposals(k, n)
    arrays, entry = _checked(graph, n)
    # Zeros: an id that exists, in the places of lists that stay short.
    ids, counts = np.zeros((len(queries), proposed), np.uint32), np.empty(len(queries), np.int64)
    width, checks = min(max(ef, proposed), n), tuple(file.kernel for file in pages)
    search_hnsw(queries, features, *arrays, entry, checks, width, fetch, ids, counts)
    fewest = counts.min(initial=proposed)
    if fewest < 0:
        raise IndexBroken(
            "features.npy or the search graph was damaged, or it holds ids that do not exist; run suffuse verify, then"
            " copy or build the index again"
        )
    if own_ids is not None:
        missing = ~(ids == own_ids[:, None]).any(axis=1)
        ids[missing, -1] = own_ids[missing]
    found = ranked(queries, features, ids, k, own_ids)
    if fewest < proposed:
        for row in np.flatnonzero(counts < proposed).tolist():
            if own_ids is not None:  # its places that stay short may hold itself
                again = nearest_to_rows(features, int(own_ids[row]), int(own_ids[row]) + 1, k)
            elif (count := int(counts[row])) < k:
                pages[0].check_whole()  # all of it is read now
                again = nearest(queries[row : row + 1], features, k)
            else:
                again = ranked(queries[row : row + 1], features, ids[[row], :count], k, None)
            found.ids[row], found.sims[row] = again.ids[0], again.sims[0]
    if not np.isfinite(found.sims).all():
        raise IndexBroken(
            "features.npy holds values that are not finite; run suffuse verify, then copy the index again"
        )
    return found


def nearest_linked_or_added(
    queries: Features, features: Features, graph: HnswGraph, k: int, ef: int, fetch: bool, pages: Sequence[Pages]
) -> Neighbors:
    """The same where the graph links only the first elements; those added since are compared with every query."""
    linked = len(graph.links)
    found = nearest_by_hnsw(queries, features[:linked], graph, k, ef, fetch=fetch, pages=pages)
    if linked == len(features):
        return found
    added = nearest(queries, features[linked:], k)
    return joined(found, added._replace(ids=added.ids + np.int32(linked)), k)


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
        raise IndexBroken(
            f"the search graph does not fit {n} elements: it has"
            f" {', '.join(f'{name} {a.dtype}{list(a.shape)}' for name, a in graph._asdict().items())};"
            " copy or build the index again"
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
