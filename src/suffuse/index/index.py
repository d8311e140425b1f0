"""An index that people use: built, opened, searched, changed, and followed through its generations."""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from suffuse.core.features import as_array, as_features
from suffuse.core.neighbors import Features
from suffuse.core.params import Params, Progress
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index import search as pipeline
from suffuse.index.explain import Explanation, explain
from suffuse.index.own_knn import SeedIndex, ask_seed_index, combine
from suffuse.index.search import Hit, Hits, Method, Pooling, Query, ask, compose
from suffuse.index.snapshot import Snapshot, Transition
from suffuse.index.writer import Addition, ChangeSummary, Mode, change, compact, upgrade
from suffuse.offline.build import BuildSummary
from suffuse.offline.build import build as build_index
from suffuse.store.ids import Ids
from suffuse.store.items import Items
from suffuse.store.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from distributed import Client


def build(
    features: Any,
    path: str | Path,
    params: Params | None = None,
    *,
    owners: Any = None,
    names: Sequence[Any] | None = None,
    pictures: dict[str, Any] | None = None,
    executor: "Executor | Client | None" = None,
    jobs: int | None = None,
    memory: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **parameters: Any,
) -> "Index":
    """Build the index of `features` at `path`: neighbours, graph, columns; and open it.

    Parameters
    ----------
    features : array-like (n, d), or the path of a file
        One row per image, or per region if `owners` says which image each region belongs to. Need not be normalised.
    path : the directory of the index
    params : all parameters at once, in place of keywords
    owners : (n,), the image of each region
    names : a name, or a dictionary with a name and metadata, for each image
    pictures : where the images are and what made features of them; the manifest keeps it
    executor : runs the tasks: an Executor whose workers see the same files, or a Dask client; else `jobs` threads
    memory : gigabytes that the build may hold
    force : replace an index that is already there, once the new one is whole
    progress : called as progress(stage, done, total)
    parameters : every field of `Params` as a keyword: `k=50`, `alpha=0.99`, `whiten=128`, ...

    Returns
    -------
    Index
        The open index; `index.summary` tells what was made and what it took.

    The work is done in a directory beside `path`. A build that was cut short leaves no index, and the same call goes
    on where it stopped.

    >>> import numpy as np, suffuse, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> X = np.random.default_rng(0).normal(size=(200, 16))
    >>> index = suffuse.build(X, folder.name + "/x.index", k=10, names=[f"photo {i}" for i in range(200)])
    >>> index
    Index('...x.index', images=200, dimensions=16)
    >>> index.search(X[7], top=1)[0].name
    'photo 7'
    >>> folder.cleanup()
    """
    if params is not None and parameters:
        raise InvalidParams(f"params and {', '.join(parameters)} were given; give all parameters in one way")
    known = [field.name for field in fields(Params)]
    if unknown := [name for name in parameters if name not in known]:
        raise InvalidParams(f"there is no parameter {unknown[0]!r}; there are {', '.join(known)}")
    chosen = Params(**parameters) if params is None else params
    if not isinstance(features, str | Path):
        features = as_features(features, "features")
    summary = build_index(
        features, path, chosen, owners=None if owners is None else as_array(owners, "owners"), names=names,
        pictures=pictures, executor=executor, jobs=jobs, memory=memory, force=force, progress=progress,
    )  # fmt: skip
    index = Index(path)
    index.summary = summary
    return index


def open(path: str | Path) -> "Index":
    """Open the index directory at `path`; memory-mapped, so it is immediate, whatever its size."""
    return Index(path)


def rerank(
    features: Any, queries: Any, top: int = 100, seeds: int = 10, *, method: Method = "diffusion", **parameters: Any
) -> Hits:
    """The `top` best rows of `features` for each query, by diffusion; arrays in, arrays out, no files are kept.

    It builds an index in a temporary directory, so for many calls with the same features `build` is faster.

    >>> import numpy as np, suffuse
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> ids, scores = suffuse.rerank(X, X[:3], top=5, k=10)
    >>> ids.shape, ids[:, 0].tolist()
    ((3, 5), [0, 1, 2])
    """
    with (
        tempfile.TemporaryDirectory(prefix="suffuse-") as folder,
        build(features, Path(folder) / "x.index", **parameters) as index,
    ):
        return Hits(*index.search(queries, top, seeds, method=method))


class Index:
    """An open index. It stays with the generation that it opened until it is changed through it, or refreshed.

    Safe to search from many threads at once, also while it is changed: a search sees one generation and no other.
    A context manager: nothing has to be closed, but files are let go at its end.
    """

    summary: BuildSummary | None = None  # what a build made, where this is its result

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._now: Snapshot | None = Snapshot.open(self.path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The same as `suffuse.open`."""
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the files go; searching it afterwards is an error."""
        self._now = None

    def __repr__(self) -> str:
        if self._now is None:
            return f"Index({str(self.path)!r}, closed)"
        return f"Index({str(self.path)!r}, images={len(self)}, dimensions={self.dimensions})"

    @property
    def now(self) -> Snapshot:
        """The generation that is searched: it never changes, so several questions to it fit each other."""
        if self._now is None:
            raise InvalidInput(f"the index {self.path} was closed; open it again")
        return self._now

    def refresh(self) -> bool:
        """Go on to the newest generation; whether there was one."""
        if read_manifest(self.path) == self.now.manifest:
            return False
        self._now = Snapshot.open(self.path)
        return True

    def search(
        self,
        queries: Any = None,
        top: int = 10,
        seeds: int = 10,
        *,
        like: int | Sequence[int] = (),
        unlike: int | Sequence[int] = (),
        where: Mapping[str, Any] | None = None,
        method: Method = "diffusion",
        refine: int | None = None,
        pooling: Pooling = "sum",
        owners: Any = None,
        exact: bool = False,
        ef: int | None = None,
        seed_index: SeedIndex | None = None,
        knn: Any = None,
    ) -> Hits:
        """The `top` best images for a query (d,), or for each of several (m, d).

        Parameters
        ----------
        queries : array-like (d,) or (m, d); may be left out where `like` is given
        top : how many images
        seeds : nearest elements of a query vector whose columns are summed (paper: 10; 200 for regions)
        like, unlike : ids of images that are wanted, and that are not; they are no hits themselves. All vectors that
            are given then belong to one query
        where : only images whose metadata fits: `{"year": 1990}`, `{"year": {"min": 1990, "max": 1999}}`,
            `{"place": ["Paris", "Rome"]}`
        method : "diffusion", or "knn" for the plain ranking by cosine
        refine : candidates that get a second look (500 unless said otherwise, 0 for none): ranked by the cosine between
            the query's combined vector and their own column, or, in a regional index, between the roots of both
        pooling : how the scores of an image's regions become one: "sum", or, for an index built with pool="none", "max"
            or "gmp" (generalised max pooling, Iscen et al.: regions that resemble each other count about once)
        owners : which query each row belongs to, where a query has several regions
        exact : find the seeds exactly in an index that was built with seed_search="hnsw", too
        ef : candidates that such a search keeps; higher: better recall, slower; by default more for larger indexes
        seed_index : an index of your own that finds the seeds: of faiss, or with the same `search(queries, k)`, over
            the elements of this one in the same order; it gets the queries as they are given here

        Returns
        -------
        Hits
            `hits.ids` and `hits.scores` of shape (top,) or (m, top); also `ids, scores = hits`.

        Images that diffusion reached come first, then those that the coarser diffusion over districts reaches; the
        rest follow by cosine with the score 0, so that top=len(index) is a full ranking. In a regional index hits are
        images: diffusion scores are summed over an image's regions, and the plain ranking sums the best similarity for
        each query region.
        """
        now, found = self.now, None
        like, unlike = _as_ids(like), _as_ids(unlike)
        if knn is not None:
            raise InvalidParams("knn was renamed; write seed_index=... instead")
        if owners is None and where is not None and not like and np.ndim(queries) == 2:
            each = [
                self.search(one, top, seeds, unlike=unlike, where=where, method=method, refine=refine, pooling=pooling,
                            exact=exact, ef=ef, seed_index=seed_index)
                for one in as_features(queries, "queries")
            ]  # fmt: skip
            return _stack(each, now)
        query = self._ask(queries, like, unlike, where, owners)
        if seed_index is not None:
            if owners is not None or not query.is_plain:
                raise InvalidParams(
                    "seed_index must be None where queries have owners, like, unlike or where; find the seeds first,"
                    " then use combine"
                )
            found = ask_seed_index(now, seed_index, queries, query, seeds)
        return pipeline.search(
            now, query, top, seeds, method=method, refine=refine, pooling=pooling, exact=exact, ef=ef, found=found
        )

    def _ask(self, queries: Any, like: list[int], unlike: list[int], where: Any, owners: Any = None) -> Query:
        if not like and not unlike and where is None:
            if queries is None:
                raise InvalidInput("nothing is asked for; give a query, or images by like=[...]")
            return ask(self.now, queries, owners)
        if owners is not None:
            raise InvalidInput("owners cannot be given with like, unlike or where; all vectors are one query then")
        vectors = None if queries is None else self.now.prepare(np.atleast_2d(as_features(queries, "queries")))
        query = compose(self.now, like, unlike, vectors)
        return query if where is None else query._replace(allowed=self.now.catalogue.match(where))

    def combine(self, ids: Any, sims: Any, top: int = 10, *, refine: int | None = None) -> Hits:
        """The `top` best images for queries whose nearest elements are known already: bring your own k-NN.

        ids     (m, s), the seeds of each query, as any other search found them: images, or regions of an index of
                regions; a negative id stands for nothing found, and so does that of an image that was removed
        sims    (m, s), their cosines, of which the order of the seeds is taken; what is not above 0 weighs nothing
        refine  as for `search`

        Images that no diffusion reaches are not ranked: what stays empty holds the id -1 and the score 0.
        """
        return combine(self.now, ids, sims, top, refine=refine)

    def explain(
        self,
        item: int | Hit,
        queries: Any = None,
        *,
        like: int | Sequence[int] = (),
        unlike: int | Sequence[int] = (),
        seeds: int = 10,
    ) -> Explanation:
        """Why an image has its score for a query: what each seed gave, and the strongest chain that leads to it.

        item    the id of an image, or a hit
        queries, like, unlike, seeds  as they were given to `search`, for one query
        """
        id = item.id if isinstance(item, Hit) else int(item)
        query = self._ask(queries, _as_ids(like), _as_ids(unlike), None)
        return explain(self.now, pipeline.find_seeds(self.now, query, seeds), id)

    def prepare(self, queries: Any) -> Features:
        """Check queries and bring them into the space of the index: unit length, and whitened as the gallery was."""
        return self.now.prepare(as_features(queries, "queries"))

    def add(
        self,
        features: Any,
        *,
        names: Sequence[Any] | None = None,
        owners: Any = None,
        mode: Mode = "fast",
        progress: Progress | None = None,
    ) -> ChangeSummary:
        """Add images; `ids` of the summary are theirs from now on. Ids are never reused.

        features  (a, d), as for `build`; they are whitened as the first ones were
        names     a name, or a dictionary with a name and metadata, for each image
        owners    in an index of regions: which of the new images, from 0 on, each row belongs to
        mode      "fast": the columns of the new elements and of their neighbours are solved now; others that the change
                  concerns are stale until `compact`. "exact": afterwards the index is as if built from all its images
        """
        return self._change(added=_addition(features, owners, names), mode=mode, progress=progress)

    def remove(
        self, ids: Sequence[int] | NDArray[np.integer], *, mode: Mode = "fast", progress: Progress | None = None
    ) -> ChangeSummary:
        """Remove images by id: hidden at once; "exact" takes them out of the graph too, which else `compact` does."""
        return self._change(removed=ids, mode=mode, progress=progress)

    def replace(
        self,
        ids: Sequence[int] | NDArray[np.integer],
        features: Any,
        *,
        names: Sequence[Any] | None = None,
        owners: Any = None,
        mode: Mode = "fast",
        progress: Progress | None = None,
    ) -> ChangeSummary:
        """Give the images with these ids other features, and other names if any are given; in one step."""
        addition = _addition(features, owners, names)
        return self._change(added=addition, removed=ids, replace=True, mode=mode, progress=progress)

    def _change(self, **what: Any) -> ChangeSummary:
        summary = change(self.path, **what)
        self.refresh()
        return summary

    def compact(self, *, progress: Progress | None = None) -> ChangeSummary:
        """Make the index what a build from its images would make; searches go on meanwhile."""
        summary = compact(self.path, progress=progress)
        self.refresh()
        return summary

    def upgrade(self, *, progress: Progress | None = None) -> ChangeSummary:
        """Give an index of an older version the graph, the seeds and the districts of today; nothing is searched again.

        It ranks by other scores from then on. An index that has them already stays as it is.
        """
        summary = upgrade(self.path, progress=progress)
        self.refresh()
        return summary

    def __len__(self) -> int:
        """The number of images."""
        return len(self.now)

    def __contains__(self, id: object) -> bool:
        """Whether there is an image with this id."""
        if isinstance(id, bool) or not isinstance(id, int | np.integer):
            return False
        return bool(self.now.ids.find_rows(np.array([id]))[0] >= 0) if 0 <= id < 2**62 else False

    @property
    def stale(self) -> float:
        """The share of columns that changes concern and that were not solved again."""
        return self.now.stale

    @property
    def manifest(self) -> Manifest:
        """Parameters, counts and files."""
        return self.now.manifest

    @property
    def params(self) -> Params:
        """The parameters it was built with."""
        return self.now.params

    @property
    def dimensions(self) -> int:
        """The dimensions that queries must have: those of the features it was built from, before whitening."""
        return self.now.dimensions

    @property
    def features(self) -> Features:
        """The unit rows that are searched, (n, d), after whitening."""
        return self.now.features

    @property
    def owners(self) -> NDArray[np.int32] | None:
        """The image of each region; None if elements are images."""
        return self.now.owners

    @property
    def graph(self) -> Transition | None:
        """S, the normalised graph of elements; None unless it was built with `with_graph`."""
        return self.now.graph

    @property
    def ids(self) -> Ids:
        """The ids of the images."""
        return self.now.ids

    @property
    def items(self) -> Items:
        """Names and metadata of the images: `index.items[id]`, `index.items.name(id)`."""
        return self.now.items


def _addition(features: Any, owners: Any, names: Sequence[Any] | None) -> Addition:
    rows = as_features(features, "features")
    return Addition(rows, None if owners is None else as_array(owners, "owners"), names)


def _as_ids(ids: int | Sequence[int]) -> list[int]:
    if isinstance(ids, tuple) and not ids:
        return []
    array = np.atleast_1d(np.asarray(ids))
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise InvalidInput(f"like and unlike are ids of images, got {ids!r}")
    return [int(id) for id in array.tolist()]


def _stack(each: list[Hits], snapshot: Snapshot) -> Hits:
    """The hits of several queries in one; where a query has fewer, the id is -1."""
    width = max(map(len, each), default=0)
    ids, scores = np.full((len(each), width), -1, np.int64), np.zeros((len(each), width), np.float32)
    for row, hits in enumerate(each):
        ids[row, : len(hits)], scores[row, : len(hits)] = hits
    return Hits(ids, scores, snapshot.items)
