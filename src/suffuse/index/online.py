"""Search an index: the nearest elements of a query are its seeds, and their columns add up to the answer."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from suffuse.core.ann import HnswGraph, nearest_linked_or_added, search_width
from suffuse.core.columns import kernel_view
from suffuse.core.features import apply_whitening, check_matrix, check_seeds, unit_rows
from suffuse.core.kernels.codes import HEAD
from suffuse.core.kernels.combine import combine_columns, refine_candidates
from suffuse.core.neighbors import Features, Neighbors, nearest, nearest_of_shown
from suffuse.core.params import Params
from suffuse.core.regions import Regions, match_regions, pooling_weights
from suffuse.errors import InvalidParams
from suffuse.index import sound
from suffuse.index.current import broken_columns, changed_graph, check_owners_fit, fitting_owners, hidden_elements
from suffuse.index.own_knn import OwnKnn, nearest_by_own
from suffuse.index.queries import check_choice, check_count, check_refine, group_rows
from suffuse.store.files import blocks_read
from suffuse.store.ids import Ids
from suffuse.store.items import Items
from suffuse.store.manifest import Manifest
from suffuse.store.opening import Stored, Transition, fetch_columns, is_coded, is_pooled, open_index

Method = Literal["diffusion", "knn"]
METHODS = ("diffusion", "knn")
Pooling = Literal["sum", "max", "gmp"]
POOLINGS = ("sum", "max", "gmp")

# Entries of a candidate's column that the second look reads, the largest ones. Chosen among 10 to 500 on the sets that
# docs/how-it-works.md shows: with all 500, features that are not whitened lose 5 points there. Coded columns have their
# largest entries in front for this.
REFINE_DEPTH = HEAD

# Candidates that get a second look unless the caller says otherwise.
REFINE = 500


class Hits(NamedTuple):
    """The images found for each query, best first."""

    ids: NDArray[np.int64]  # (m, top)
    scores: NDArray[np.float32]  # (m, top)


class Seeds(NamedTuple):
    """y: query q starts from the elements ids[query_ptr[q]:query_ptr[q + 1]]."""

    query_ptr: NDArray[np.int64]  # (m + 1,)
    ids: NDArray[np.int32]
    weights: NDArray[np.float64]


class Generation:
    """One generation of an index: read-only, memory-mapped, and safe to search from many threads at once.

    Inside, images and elements go by their places; ids are what callers give and get (`ids.Ids`).
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._columns = tuple(map(kernel_view, stored.columns))
        # Whether the last search read links or columns from disk, so that the next one should ask for them beforehand.
        self._links_on_disk = self._columns_on_disk = True
        # What is summed at query time: the regions of images, unless the columns hold images already.
        owners = None if is_pooled(stored) else stored.owners
        self._owners = np.empty(0, np.uint32) if owners is None else owners.view(np.uint32)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the index directory at `path`; reads no data, so it is immediate."""
        return cls(open_index(path))

    def __len__(self) -> int:
        """The number of images."""
        return self.ids.visible

    @property
    def places(self) -> int:
        """The number of places for images, those of removed ones too."""
        return self.ids.count

    @property
    def ids(self) -> Ids:
        """The ids of the images, and their places."""
        return self._stored.ids

    @property
    def manifest(self) -> Manifest:
        """Parameters, counts and files."""
        return self._stored.manifest

    @property
    def params(self) -> Params:
        """The parameters it was built with."""
        return self.manifest.params

    @property
    def dimensions(self) -> int:
        """The dimensions that queries must have: those of the features it was built from, before whitening."""
        whitening = self._stored.whitening
        return self.shape[1] if whitening is None else len(whitening.mean)

    @property
    def features(self) -> Features:
        """The unit rows that are searched, (n, d), after whitening."""
        return sound.features(self._stored)

    @property
    def shape(self) -> tuple[int, int]:
        """Elements, those of removed images too, and their dimensions after whitening: the shape of the features."""
        return cast("tuple[int, int]", self._stored.features.shape)

    def rows(self, elements: NDArray[np.integer]) -> Features:
        """The features of these elements alone."""
        return sound.rows(self._stored, elements)

    @property
    def stale(self) -> float:
        """The share of columns that changes concern and that were not solved again."""
        return len(self._stored.stale) / self.shape[0]

    @property
    def owners(self) -> NDArray[np.int32] | None:
        """The image of each region; None if elements are images."""
        return sound.owners(self._stored)

    @property
    def graph(self) -> Transition | None:
        """S, the normalised graph of elements; None unless it was built with `with_graph`."""
        return self._changed_graph if self.manifest.segments else sound.graph(self._stored)

    @functools.cached_property
    def _changed_graph(self) -> Transition | None:
        return changed_graph(self._stored, self.hidden_elements)

    @functools.cached_property
    def hidden_elements(self) -> NDArray[np.bool_] | None:
        """(elements,), those of images that were removed or replaced; None if there are none."""
        return hidden_elements(self._stored)

    @property
    def seeds_are_exact(self) -> bool:
        """Whether seeds are found by comparing a query with all elements, and not along links."""
        return self._stored.hnsw is None

    @property
    def items(self) -> Items:
        """Names and metadata of the images: `index.items[id]`, `index.items.name(id)`."""
        return self._stored.items

    def search(
        self,
        queries: NDArray[Any],
        top: int = 10,
        seeds: int = 10,
        *,
        method: Method = "diffusion",
        refine: int | None = None,
        pooling: Pooling = "sum",
        owners: NDArray[Any] | None = None,
        exact: bool = False,
        ef: int | None = None,
        knn: OwnKnn | None = None,
    ) -> Hits:
        """The `top` best images for each query (m, d); `index.Index.search` says what all of these are."""
        for name, value in (("top", top), ("seeds", seeds), ("ef", 1 if ef is None else ef)):
            check_count(name, value)
        refine = self._check_refine(refine)
        for name, choice, choices in (("method", method, METHODS), ("pooling", pooling, POOLINGS)):
            check_choice(name, choice, choices)
        if pooling != "sum" and (self.owners is None or is_pooled(self._stored)):
            raise InvalidParams(f"pooling must be 'sum' unless the index has regions and pool='none', got {pooling!r}")
        query_ptr, rows = group_rows(self.prepare(queries), owners)
        top = min(int(top), len(self))
        if method == "knn":
            return self._named(self._plain(rows, query_ptr, top))
        if not len(self):
            return Hits(np.zeros((len(query_ptr) - 1, 0), np.int64), np.zeros((len(query_ptr) - 1, 0), np.float32))
        if knn is None:
            y = self._seeds(rows, query_ptr, seeds, None if exact else ef or self._width)
        elif owners is not None:
            raise InvalidParams("knn must be None where queries have owners; find the seeds first, then use combine")
        elif self.hidden_elements is not None:
            raise InvalidParams("knn must be None for an index with removed images; compact it first, or use combine")
        else:
            own = nearest_by_own(knn, queries, rows, self._stored.features, min(int(seeds), self.shape[0]))
            self.rows(own.ids.ravel())
            y = self._weighted(own, query_ptr)
        if pooling != "sum":
            return self._named(self._pooled(rows, query_ptr, y, top, pooling))
        hits, counts = self._diffused(y, top, refine)
        if (counts < top).any():
            self._fill_by_cosine(rows, query_ptr, hits, counts)
        return self._named(hits)

    def _named(self, hits: Hits) -> Hits:
        """Hits by their ids instead of their places."""
        return hits._replace(ids=self.ids.of(hits.ids))

    def combine(self, ids: NDArray[Any], sims: NDArray[Any], top: int = 10, *, refine: int | None = None) -> Hits:
        """The `top` best images for queries whose nearest elements are known already, as `index.Index.combine` says."""
        check_count("top", top)
        refine = self._check_refine(refine)
        seeds, similar = check_seeds(ids, sims, self.shape[0] if self.owners is not None else self.manifest.next_id)
        if self.owners is None:
            places = self.ids.places(seeds)
            similar, seeds = np.where(places < 0, 0, similar), np.maximum(places, 0)
        elif (hidden := self.hidden_elements) is not None:
            similar = np.where(hidden[seeds], 0, similar)
        weights = np.maximum(similar, 0) ** self.params.gamma
        starts = np.arange(len(seeds) + 1, dtype=np.int64) * seeds.shape[1]
        y = Seeds(starts, seeds.astype(np.int32).ravel(), weights.ravel())
        hits, counts = self._diffused(y, min(int(top), len(self)), refine)
        if (counts < hits.ids.shape[1]).any():
            hits.ids[np.arange(hits.ids.shape[1]) >= counts[:, None]] = -1
        return self._named(hits)

    def _check_refine(self, refine: int | None) -> int:
        possible = self.owners is None or self._stored.images is not None
        return min(check_refine(refine, REFINE, possible=possible), len(self))

    def prepare(self, queries: NDArray[Any]) -> Features:
        """Check queries and bring them into the space of the index: unit length, and whitened as the gallery was."""
        check_matrix(queries, "queries", least_rows=1, dimensions=self.dimensions)
        rows = unit_rows(queries, "queries")
        whitening = sound.whitening(self._stored)
        return rows if whitening is None else apply_whitening(rows, whitening, "queries")

    def _diffused(self, y: Seeds, top: int, refine: int) -> tuple[Hits, NDArray[np.int64]]:
        """The images that diffusion from y reaches, best first, and how many of each row are set."""
        ids, scores, counts = self._combine(y, max(top, refine))
        if refine:
            first = scores[:, refine : refine + 1].copy()
            self._refine(y, Hits(ids, scores), np.minimum(counts, refine))
            # Hits behind the candidates keep their order, on a scale that continues below them.
            lowest = scores[:, refine - 1 : refine]
            scores[:, refine:] *= np.divide(lowest, first, out=np.zeros_like(first), where=first > 0)
        if ids.shape[1] == top:
            return Hits(ids, scores), counts
        hits = Hits(np.ascontiguousarray(ids[:, :top]), np.ascontiguousarray(scores[:, :top]))
        return hits, np.minimum(counts, top)

    @functools.cached_property
    def _width(self) -> int | None:
        """Candidates of an approximate search for seeds; None where there are no links to search by."""
        return None if self._stored.hnsw is None else search_width(len(self._stored.hnsw.links))

    def _seeds(
        self,
        rows: Features,
        query_ptr: NDArray[np.int64],
        seeds: int,
        width: int | None,
        sims: Callable[[], NDArray[np.float32]] | None = None,
    ) -> Seeds:
        """y: where the seeds of each query start, the seeds, and their weights, sim ** gamma, clipped at zero.

        `sims` gives the similarities of all rows and elements, for a search that needs them; unless it is None.
        """
        known: list[NDArray[np.float32]] = []

        def find(count: int) -> Neighbors:
            if width is not None and self._stored.hnsw is not None:
                return self._nearest_by_links(rows, self._stored.hnsw, count, width)
            if sims is not None and not known:
                known.append(sims())
            return nearest(rows, self.features, count, known[0] if known else None)

        return self._weighted(self._shown(find, seeds), query_ptr)

    def _shown(self, find: Callable[[int], Neighbors], count: int) -> Neighbors:
        """What a search finds, without elements that were removed."""
        hidden = self.hidden_elements
        return find(min(count, self.shape[0])) if hidden is None else nearest_of_shown(find, hidden, count)

    def _nearest_by_links(self, rows: Features, links: HnswGraph, count: int, width: int) -> Neighbors:
        before, pages = blocks_read(), sound.link_pages(self._stored)
        found = nearest_linked_or_added(rows, self._stored.features, links, count, width, self._links_on_disk, pages)
        self._links_on_disk = blocks_read() != before
        return found

    def _weighted(self, found: Neighbors, query_ptr: NDArray[np.int64]) -> Seeds:
        weights = np.maximum(found.sims, 0).astype(np.float64) ** self.params.gamma
        return Seeds(query_ptr * found.ids.shape[1], found.ids.ravel(), weights.ravel())

    def _pooled(self, rows: Features, query_ptr: NDArray[np.int64], seeds: Seeds, top: int, pooling: Pooling) -> Hits:
        """Diffusion over regions, pooled to images when all regions of a query have been added up."""
        owners = fitting_owners(self._stored)
        starts, ids, weights = seeds
        hits = Hits(np.zeros((len(starts) - 1, top), np.int64), np.zeros((len(starts) - 1, top), np.float32))
        counts = np.empty(len(hits.ids), np.int64)
        for q, (first, last) in enumerate(itertools.pairwise(starts.tolist())):
            y = Seeds(np.array([0, last - first]), ids[first:last], weights[first:last])
            found, f, reached = self._combine(y, self.shape[0], by_element=True)
            regions, f = found[0, : reached[0]], f[0, : reached[0]].astype(np.float64)
            scores = np.zeros(self.places)
            if pooling == "max":
                np.maximum.at(scores, owners[regions], f)
            else:
                np.add.at(scores, owners[regions], self._pooling_weights[regions] * f)
            if len(self.ids.hidden):
                scores[self.ids.hidden != 0] = 0
            order = np.lexsort((np.arange(len(scores)), -scores))[:top]
            counts[q] = int((scores[order] > 0).sum())
            hits.ids[q], hits.scores[q] = order, np.maximum(scores[order], 0)
        self._fill_by_cosine(rows, query_ptr, hits, counts)
        return hits

    @functools.cached_property
    def _pooling_weights(self) -> NDArray[np.float64]:
        assert self.owners is not None
        return pooling_weights(Regions(self.features, self.owners, self.places))

    def _combine(
        self, y: Seeds, top: int, *, by_element: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1): ids, scores, and how many of each row are set.

        Ids are images; elements if `by_element`, where the columns are not pooled.
        """
        stored = self._stored
        before = blocks_read()
        if self._columns_on_disk:
            fetch_columns(stored, y.ids)
        m = len(y.query_ptr) - 1
        ids, scores = np.zeros((m, top), np.int64), np.zeros((m, top), np.float32)
        counts = np.empty(m, np.int64)
        combine_columns(
            y.query_ptr, y.ids.view(np.uint32), y.weights, *self._columns,
            self._owners[:0] if by_element else self._owners, self.ids.hidden[:0] if by_element else self.ids.hidden,
            self.shape[0] if by_element else self.places, ids, scores, counts,
        )  # fmt: skip
        self._columns_on_disk = blocks_read() != before
        if (least := counts.min()) < 0:
            name = "codes" if is_coded(stored) else "rows"
            raise broken_columns(least, f"{name}.npy or owners.npy holds ids that do not exist")
        sound.check_columns(stored, y.ids)
        if len(self._owners):
            sound.owners(stored)
        return ids, scores, counts

    def _refine(self, y: Seeds, hits: Hits, counts: NDArray[np.int64]) -> None:
        """Rank the first `counts` hits of each query anew, by cos(f, c_j); f is what `_combine` has summed before."""
        stored = self._stored
        own, depth = self._columns, REFINE_DEPTH
        candidates = hits.ids[np.arange(hits.ids.shape[1]) < counts[:, None]]
        if self._columns_on_disk and stored.images is None:
            fetch_columns(stored, candidates)
        if stored.images is not None:
            own, depth = tuple(map(kernel_view, stored.images)), self.places
        entries = np.empty_like(counts)
        # Where there is a second look, columns hold images.
        refine_candidates(
            y.query_ptr, y.ids.view(np.uint32), y.weights, *self._columns, *own,
            counts, self.places, depth, stored.images is not None, *hits, entries,
        )  # fmt: skip
        if (least := entries.min()) < 0:
            raise broken_columns(least, "the columns of candidates are damaged")
        sound.check_candidates(stored, candidates)

    def _plain(self, rows: Features, query_ptr: NDArray[np.int64], top: int) -> Hits:
        """The ranking by cosine, without diffusion."""
        if self.owners is None and len(query_ptr) == len(rows) + 1:
            found = self._shown(lambda count: nearest(rows, self.features, count), top)
            return Hits(found.ids.astype(np.int64), found.sims)
        sims = np.stack([self._image_similarities(rows[a:b]) for a, b in itertools.pairwise(query_ptr)])
        # What is hidden comes behind images without regions, which are as far.
        hidden = self.ids.hidden if len(self.ids.hidden) else np.zeros(sims.shape[1], np.uint8)
        keys = (np.broadcast_to(key, sims.shape) for key in (np.arange(sims.shape[1]), -sims, hidden))
        order = np.lexsort(tuple(keys), axis=1)[:, :top]
        return Hits(order.astype(np.int64), np.take_along_axis(sims, order, axis=1))

    def _image_similarities(self, regions: Features) -> NDArray[np.float32]:
        """R-match of one query's regions with every image; removed ones come last."""
        check_owners_fit(self._stored)
        sims = match_regions(regions, self.features, self.owners, self.places)
        if len(self.ids.hidden):
            sims[self.ids.hidden != 0] = -np.inf
        return sims

    def _fill_by_cosine(
        self, rows: Features, query_ptr: NDArray[np.int64], hits: Hits, counts: NDArray[np.int64]
    ) -> None:
        """Complete the rankings that diffusion left short with the images it did not reach, nearest first."""
        top = hits.ids.shape[1]
        for q in np.flatnonzero(counts < top):
            first, last = query_ptr[q], query_ptr[q + 1]
            reached = hits.ids[q, : counts[q]]
            # At most `counts` of the `top` nearest are there already, so these are always enough.
            ranking = self._plain(rows[first:last], np.array([0, last - first]), top)
            rest = ranking.ids[0][~np.isin(ranking.ids[0], reached)]
            hits.ids[q, counts[q] :] = rest[: top - counts[q]]
