"""An index that lives: searched, changed, and followed through its generations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from suffuse.core.neighbors import Features
from suffuse.core.params import Params
from suffuse.index.online import Generation, Hits, Method, Pooling
from suffuse.index.own_knn import OwnKnn
from suffuse.index.writer import Addition, ChangeSummary, Mode, change, compact
from suffuse.offline.runner import Progress
from suffuse.store.ids import Ids
from suffuse.store.items import Items
from suffuse.store.manifest import Manifest, read_manifest
from suffuse.store.opening import Transition


class Index:
    """An open index. It stays with the generation that it opened until it is changed through it, or refreshed.

    Safe to search from many threads at once, also while it is changed: a search sees one generation and no other.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._now = Generation.open(self.path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the index directory at `path`; reads no data but changes, so it is immediate."""
        return cls(path)

    @property
    def now(self) -> Generation:
        """The generation that is searched: it never changes, so several questions to it fit each other."""
        return self._now

    def refresh(self) -> bool:
        """Go on to the newest generation; whether there was one."""
        if read_manifest(self.path) == self._now.manifest:
            return False
        self._now = Generation.open(self.path)
        return True

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
        """The `top` best images for each query (m, d).

        seeds   nearest elements of a query vector whose columns are summed (paper: 10; 200 for regions)
        method  "diffusion", or "knn" for the plain ranking by cosine
        refine  candidates that get a second look (500 unless said otherwise, 0 for none): ranked by the cosine between
                the query's combined vector and their own column, or, in a regional index, between the roots of both
        pooling how the scores of an image's regions become one: "sum", or, for an index built with pool="none", "max"
                or "gmp" (generalised max pooling, Iscen et al.: regions that resemble each other count about once)
        owners  which query each row belongs to, where a query has several regions
        exact   find the seeds exactly in an index that was built with seed_search="hnsw", too
        ef      candidates that such a search keeps, the more the more exact; by default more for larger indexes
        knn     an index of your own that finds the seeds: of faiss, or with the same `search(queries, k)`, over the
                elements of this one in the same order; it gets the queries as they are given here

        Images that diffusion reached come first; the rest follow by cosine with the score 0, so that
        top=len(index) is a full ranking. In a regional index hits are images: diffusion scores are summed
        over an image's regions, and the plain ranking sums the best similarity for each query region.
        """
        return self._now.search(
            queries, top, seeds, method=method, refine=refine, pooling=pooling, owners=owners, exact=exact, ef=ef,
            knn=knn,
        )  # fmt: skip

    def combine(self, ids: NDArray[Any], sims: NDArray[Any], top: int = 10, *, refine: int | None = None) -> Hits:
        """The `top` best images for queries whose nearest elements are known already: bring your own k-NN.

        ids     (m, s), the seeds of each query, as any other search found them: images, or regions of an index of
                regions; a negative id stands for a place where that search found nothing, and so does that of an image
                that was removed
        sims    (m, s), their similarities, the larger the nearer; weights are sim ** gamma, zero where sim < 0
        refine  as for `search`

        Images that diffusion did not reach are not ranked: places that stay empty hold the id -1 and the score 0.
        """
        return self._now.combine(ids, sims, top, refine=refine)

    def prepare(self, queries: NDArray[Any]) -> Features:
        """Check queries and bring them into the space of the index: unit length, and whitened as the gallery was."""
        return self._now.prepare(queries)

    def add(
        self,
        features: NDArray[Any],
        *,
        names: Sequence[Any] | None = None,
        owners: NDArray[Any] | None = None,
        mode: Mode = "fast",
        progress: Progress | None = None,
    ) -> ChangeSummary:
        """Add images; `ids` of the summary says how they are called from now on. An id is never given twice.

        features  (a, d), as for `build`; they are whitened as the first ones were
        names     a name, or an object with a name and metadata, for each image
        owners    in an index of regions: which of the new images, from 0 on, each row belongs to
        mode      "fast": the columns of the new elements and of their neighbours are solved now; others that the change
                  concerns are stale until `compact`. "exact": afterwards the index is as if built from all its images
        """
        return self._changed(added=Addition(features, owners, names), mode=mode, progress=progress)

    def remove(
        self, ids: Sequence[int] | NDArray[np.integer], *, mode: Mode = "fast", progress: Progress | None = None
    ) -> ChangeSummary:
        """Remove images by id: hidden at once; "exact" takes them out of the graph too, which else `compact` does."""
        return self._changed(removed=ids, mode=mode, progress=progress)

    def replace(
        self,
        ids: Sequence[int] | NDArray[np.integer],
        features: NDArray[Any],
        *,
        names: Sequence[Any] | None = None,
        owners: NDArray[Any] | None = None,
        mode: Mode = "fast",
        progress: Progress | None = None,
    ) -> ChangeSummary:
        """Give the images with these ids other features, and other names if any are given; in one step."""
        addition = Addition(features, owners, names)
        return self._changed(added=addition, removed=ids, replace=True, mode=mode, progress=progress)

    def _changed(self, **what: Any) -> ChangeSummary:
        summary = change(self.path, **what)
        self.refresh()
        return summary

    def compact(self, *, progress: Progress | None = None) -> ChangeSummary:
        """Make the index what a build from its images would make; searches go on meanwhile."""
        summary = compact(self.path, progress=progress)
        self.refresh()
        return summary

    def __len__(self) -> int:
        """The number of images."""
        return len(self._now)

    @property
    def stale(self) -> float:
        """The share of columns that changes concern and that were not solved again."""
        return self._now.stale

    @property
    def manifest(self) -> Manifest:
        """Parameters, counts and files."""
        return self._now.manifest

    @property
    def params(self) -> Params:
        """The parameters it was built with."""
        return self._now.params

    @property
    def dimensions(self) -> int:
        """The dimensions that queries must have: those of the features it was built from, before whitening."""
        return self._now.dimensions

    @property
    def features(self) -> Features:
        """The unit rows that are searched, (n, d), after whitening."""
        return self._now.features

    @property
    def owners(self) -> NDArray[np.int32] | None:
        """The image of each region; None if elements are images."""
        return self._now.owners

    @property
    def graph(self) -> Transition | None:
        """S, the normalised graph of elements; None unless it was built with `with_graph`."""
        return self._now.graph

    @property
    def seeds_are_exact(self) -> bool:
        """Whether seeds are found by comparing a query with all elements, and not along links."""
        return self._now.seeds_are_exact

    @property
    def ids(self) -> Ids:
        """The ids of the images."""
        return self._now.ids

    @property
    def items(self) -> Items:
        """Names and metadata of the images: `index.items[id]`, `index.items.name(id)`."""
        return self._now.items
