"""The search pipeline: Query -> Seeds -> combine -> refine -> districts -> fill -> Hits.

Diffusion is linear in its seeds, so images that are not wanted cost one more sum of columns:

    y = sum of the seeds of what is wanted - NEGATIVE * sum of the seeds of what is not
    f = sum_j y_j * column[j]                            (Algorithm 1)

Images that f reaches come first, ranked anew by the second look; then those that districts reach; the rest follows by
cosine with the score 0.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.ann import nearest_linked_or_added, search_width
from suffuse.core.districts import diffuse_far
from suffuse.core.features import as_array, as_features, check_owners
from suffuse.core.kernels.codes import HEAD
from suffuse.core.kernels.combine import combine_columns, refine_candidates
from suffuse.core.neighbors import (
    Features,
    Lists,
    Neighbors,
    nearest,
    nearest_visible,
    scan_similarities,
    unpack_keys,
    weigh_by_rank,
)
from suffuse.core.regions import match_regions
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index.snapshot import Searcher, Snapshot
from suffuse.store.files import report_damage
from suffuse.store.items import Items

Method = Literal["diffusion", "knn"]
Pooling = Literal["sum", "max", "gmp"]
METHODS, POOLINGS = ("diffusion", "knn"), ("sum", "max", "gmp")

# How much an image that is not wanted counts against one that is. At 1 a single one outweighs what it shares with the
# wanted ones; at 0 it is only left out.
NEGATIVE = 0.5

# Entries of a candidate's column that the second look reads, the largest ones (docs/lab/second-look.md). Coded columns
# have them in front for this. And the candidates that get a second look unless the caller says otherwise.
REFINE_DEPTH, REFINE = HEAD, 500

# What the repr of hits shows.
_SHOWN_HITS, _SHOWN_QUERIES = 20, 3


class Hit(NamedTuple):
    """One image that was found."""

    id: int
    score: float
    name: str


class Hits:
    """Images that were found, best first: of one query, or of several, one row each.

    It unpacks as `ids, scores = hits`. `hits[i]` is a `Hit`, or, of several queries, the `Hits` of query i.
    """

    __slots__ = ("_items", "ids", "scores")

    def __init__(self, ids: NDArray[np.int64], scores: NDArray[np.float32], items: Items | None = None) -> None:
        """`ids` and `scores` (top,) or (m, top); the id -1 stands for nothing. `items` has the names."""
        self.ids, self.scores, self._items = ids, scores, items

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.ids, self.scores))

    def __getitem__(self, i: int) -> Any:
        if self.ids.ndim > 1:
            return Hits(self.ids[i], self.scores[i], self._items)
        return Hit(int(self.ids[i]), float(self.scores[i]), self._name(int(self.ids[i])))

    def _name(self, id: int) -> str:
        return str(id) if self._items is None or id < 0 else self._items.name(id)

    @property
    def names(self) -> list[Any]:
        """The names of the images, as lists of the shape of `ids`; an image without one is called by its id."""
        if self.ids.ndim > 1:
            return [row.names for row in self.rows()]
        return [self._name(id) for id in self.ids.tolist()]

    def rows(self) -> "list[Hits]":
        """The hits of each query."""
        return [self] if self.ids.ndim == 1 else [self[i] for i in range(len(self))]

    def to_list(self) -> list[Any]:
        """The hits as dictionaries with id, score and name; of several queries, a list for each."""
        if self.ids.ndim > 1:
            return [row.to_list() for row in self.rows()]
        return [self[i]._asdict() for i in range(len(self)) if self.ids[i] >= 0]

    def __repr__(self) -> str:
        """A table of the first hits."""
        if self.ids.ndim > 1:
            shown = [f"query {i}\n{self[i]!r}" for i in range(min(len(self), _SHOWN_QUERIES))]
            return "\n".join(shown) + (f"\n... {len(self)} queries" if len(self) > _SHOWN_QUERIES else "")
        hits = [self[i] for i in range(min(len(self), _SHOWN_HITS))]
        wide = max([2, *(len(str(hit.id)) for hit in hits)])
        lines = [f"{hit.id:>{wide}}  {hit.score:8.4f}  {hit.name}" for hit in hits]
        more = [f"... {len(self)} hits"] if len(self) > len(hits) else []
        return "\n".join([f"{'id':>{wide}}  {'score':>8}  name", *lines, *more])


class Query(NamedTuple):
    """What is looked for, in the space of one index: queries of vectors, or one that names images by their rows."""

    vectors: Features  # (v, d)
    ptr: NDArray[np.int64]  # (m + 1,): query q has vectors[ptr[q]:ptr[q + 1]]
    single: bool = False  # whether the answer has no axis for queries
    like: tuple[int, ...] = ()  # images that are wanted
    unlike: tuple[int, ...] = ()  # images that are not
    left_out: tuple[int, ...] = ()  # images that are no hits, besides those above
    allowed: NDArray[np.bool_] | None = None  # (rows of images,), which may be hits; None for all

    @property
    def is_plain(self) -> bool:
        """Whether it consists of vectors alone, and every image may be a hit."""
        return self.allowed is None and not (self.like or self.unlike or self.left_out)


class Seeds(NamedTuple):
    """y: query q starts from the elements ids[ptr[q]:ptr[q + 1]]; weights of what is not wanted are negative."""

    ptr: NDArray[np.int64]  # (m + 1,)
    ids: NDArray[np.int32]
    weights: NDArray[np.float64]
    sims: NDArray[np.float32]  # to the vector of the query that each is near to

    def take(self, chosen: slice | NDArray[np.bool_]) -> "Seeds":
        """Some of them, as the seeds of one query."""
        ids = self.ids[chosen]
        return Seeds(np.array([0, len(ids)]), ids, self.weights[chosen], self.sims[chosen])


class _Found(NamedTuple):
    """Rows of images, best first, with their scores; of query q the first counts[q] are set."""

    rows: NDArray[np.int64]  # (m, top)
    scores: NDArray[np.float32]  # (m, top)
    counts: NDArray[np.int64]  # (m,)

    def select(self, chosen: slice | NDArray[np.bool_]) -> "_Found":
        """Some of the images of each query."""
        rows, scores = np.ascontiguousarray(self.rows[:, chosen]), np.ascontiguousarray(self.scores[:, chosen])
        return _Found(rows, scores, np.minimum(self.counts, rows.shape[1]))


def _nothing(m: int, top: int) -> _Found:
    return _Found(np.zeros((m, top), np.int64), np.zeros((m, top), np.float32), np.zeros(m, np.int64))


# --- the query


def ask(searcher: Searcher, queries: Any, owners: Any = None) -> Query:
    """A query of vectors: one (d,), or several (m, d), where `owners` tells which query each row belongs to."""
    given = as_features(queries, "queries")
    single = given.ndim == 1
    if single and owners is not None:
        raise InvalidInput("owners are for several vectors; give queries of shape (m, d)")
    rows = searcher.prepare(given[None] if single else given)
    if owners is None:
        return Query(rows, np.arange(len(rows) + 1, dtype=np.int64), single)
    query_of = check_owners(as_array(owners, "query owners"), len(rows), "query owners")
    numbers, sizes = np.unique(query_of, return_counts=True)
    if len(gaps := np.flatnonzero(numbers != np.arange(len(numbers)))):
        raise InvalidInput(
            f"query {gaps[0]} has no regions, although there are {int(numbers[-1]) + 1} queries; number them anew"
        )
    order = np.argsort(query_of, kind="stable")
    return Query(rows[order], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def compose(
    searcher: Searcher, like: Sequence[int] = (), unlike: Sequence[int] = (), vectors: Features | None = None
) -> Query:
    """One query of images by id, wanted and not, and of vectors that `prepare` made, which are wanted."""
    rows = np.empty((0, searcher.shape[1]), np.float32) if vectors is None else vectors
    for id in (*like, *unlike):
        if not len(searcher.elements(searcher.ids.find_row(id))):
            raise InvalidInput(f"image {id} has no regions to search by; choose another")
    if both := sorted(set(like) & set(unlike)):
        raise InvalidInput(f"image {both[0]} is both wanted and not wanted; choose one")
    if not len(rows) and not like:
        raise InvalidInput("nothing is wanted; give at least one positive image or vector")
    wanted, unwanted = (tuple(map(searcher.ids.find_row, dict.fromkeys(ids))) for ids in (like, unlike))
    return Query(rows, np.array([0, len(rows)]), True, wanted, unwanted)


# --- the pipeline


@report_damage
def search(
    snapshot: Snapshot,
    query: Query,
    top: int = 10,
    seeds: int = 10,
    *,
    method: Method = "diffusion",
    refine: int | None = None,
    pooling: Pooling = "sum",
    exact: bool = False,
    ef: int | None = None,
    found: Neighbors | None = None,
    likeness: "Likeness | None" = None,
) -> Hits:
    """The `top` best images for each query; `Index.search` says what the options are.

    Images that a query names are left out. `found` are the nearest elements of each vector, where they are known
    already. `likeness` is that of this query, where the same one is searched for several times.
    """
    check_count("top", top)
    check_count("seeds", seeds)
    if ef is not None:
        check_count("ef", ef)
    refine = check_refine(snapshot, refine)
    for name, choice, choices in (("method", method, METHODS), ("pooling", pooling, POOLINGS)):
        if choice not in choices:
            raise InvalidParams(f"{name} must be one of {', '.join(choices)}, got {choice!r}")
    if pooling != "sum" and (not snapshot.is_regional or snapshot.is_pooled):
        raise InvalidParams(f"pooling must be 'sum' unless the index has regions and pool='none', got {pooling!r}")
    top = min(int(top), len(snapshot))
    rank = _Ranking(snapshot, query, likeness)
    if method == "knn":
        return _name(snapshot, query, rank.best(top))
    if not len(snapshot):
        return _name(snapshot, query, _nothing(len(query.ptr) - 1, 0))
    y = find_seeds(snapshot, query, seeds, exact=exact, ef=ef, found=found, likeness=likeness)
    if pooling != "sum":
        reached = _pool_regions(snapshot, y, top, pooling)
    else:
        reached = diffuse(snapshot, y, top, refine, rank.may_hit)
    reached = reach_districts(snapshot, y, reached, top, rank.may_hit)
    return _name(snapshot, query, rank.fill(reached, top))


def check_count(name: str, value: Any) -> None:
    """Refuse what is no count of something."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidParams(f"{name} must be a whole number of at least 1, got {value!r}")


def check_refine(snapshot: Snapshot, refine: int | None) -> int:
    """How many candidates get a second look, as the caller says; only an index whose columns hold images has one."""
    possible = not snapshot.is_regional or snapshot.has_image_vectors
    if refine is None:
        refine = REFINE if possible else 0
    if refine:
        check_count("refine", refine)
        if not possible:
            raise InvalidParams(f"refine must be 0 for an index of regions that are not pooled, got {refine!r}")
    return min(int(refine), len(snapshot))


def _name(snapshot: Snapshot, query: Query, found: _Found) -> Hits:
    ids, scores = snapshot.name_rows(found.rows), found.scores
    return Hits(ids[0], scores[0], snapshot.items) if query.single else Hits(ids, scores, snapshot.items)


# --- seeds


@report_damage
def find_seeds(
    snapshot: Snapshot,
    query: Query,
    count: int = 10,
    *,
    exact: bool = False,
    ef: int | None = None,
    found: Neighbors | None = None,
    likeness: "Likeness | None" = None,
) -> Seeds:
    """y: the nearest elements of every vector of each query, weighed as the graph has it (`weigh`).

    Vectors of images that are wanted follow those that were given, then come those of images that are not.
    """
    ptr, vectors, unwanted = query.ptr, query.vectors, 0
    if query.like or query.unlike:
        parts = [snapshot.rows(snapshot.elements(image)) for image in (*query.like, *query.unlike)]
        unwanted = sum(map(len, parts[len(query.like) :]))
        vectors = np.ascontiguousarray(np.concatenate([vectors, *parts]))
        ptr = np.array([0, len(vectors)])
    if found is None:
        # One vector is its own direction, so its similarities are those that the ranking needs.
        known = likeness if len(vectors) == 1 and not snapshot.is_regional else None

        def find(count: int) -> Neighbors:
            if exact or snapshot.seeds_are_exact:
                return nearest(vectors, snapshot.features, count, None if known is None else known.values[None])
            with snapshot.reading_links() as (links, features, on_disk, checksums):
                width = ef or search_width(len(links.links))
                return nearest_linked_or_added(vectors, features, links, count, width, on_disk, checksums)

        found = _without_hidden(snapshot, find, count)
    weights = weigh(snapshot, found)
    if unwanted:
        weights[len(vectors) - unwanted :] *= -NEGATIVE
    return Seeds(ptr * found.ids.shape[1], found.ids.ravel(), weights.ravel(), found.sims.ravel())


def weigh(snapshot: Snapshot, found: Neighbors) -> NDArray[np.float64]:
    """What each of the nearest elements counts, (m, s): by ranks, or as in the paper max(sim, 0) ** gamma."""
    if (params := snapshot.params).graph == "paper":
        return np.asarray(np.maximum(found.sims, 0).astype(np.float64) ** params.gamma)
    return weigh_by_rank(found.sims, snapshot.marks(found.ids.ravel()), params.k)


def _without_hidden(snapshot: Snapshot, find: Callable[[int], Neighbors], count: int) -> Neighbors:
    """What a search finds, without elements that were removed."""
    hidden = snapshot.hidden_elements
    return find(min(int(count), snapshot.shape[0])) if hidden is None else nearest_visible(find, hidden, count)


# --- combine and refine


def diffuse(snapshot: Snapshot, y: Seeds, top: int, refine: int, may_hit: NDArray[np.bool_] | None) -> _Found:
    """The images that diffusion from y reaches, best first; `may_hit` drops others before the second look."""
    if may_hit is None:
        found = _combine(snapshot, y, max(top, refine))
    else:
        found = _combine(snapshot, y, _room(snapshot, y))
        found = found.select(slice(int(found.counts[0])))
        found = found.select(may_hit[found.rows[0]])
    if refine and found.rows.size:
        found = _refine(snapshot, y, found, refine)
    return found.select(slice(top)) if found.rows.shape[1] > top else found


def _room(snapshot: Snapshot, y: Seeds) -> int:
    """No fewer than the images that y reaches: a column has no more entries than numbers or bytes that it takes."""
    columns = snapshot.kernel_columns(y.ids)
    return max(min(snapshot.image_rows, int((columns.stops[y.ids] - columns.starts[y.ids]).sum())), 1)


def _combine(snapshot: Snapshot, y: Seeds, top: int, *, by_element: bool = False) -> _Found:
    """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1), what is above zero, largest first.

    By image; by element if `by_element`, where the columns are not pooled.
    """
    owners, hidden, targets = snapshot.owners, snapshot.ids.hidden, snapshot.image_rows
    if by_element:
        owners, hidden, targets = None, hidden[:0], snapshot.shape[0]
    elif snapshot.is_pooled:
        owners = None
    m = len(y.ptr) - 1
    found = _nothing(m, top)
    with snapshot.reading_columns(y.ids) as columns:
        combine_columns(
            y.ptr, y.ids.view(np.uint32), y.weights, *columns,
            np.empty(0, np.uint32) if owners is None else owners.view(np.uint32), hidden, targets, *found,
        )  # fmt: skip
    name = "codes" if snapshot.is_coded else "rows"
    _check_counts(found.counts, f"{name}.npy or owners.npy holds ids that do not exist")
    return found


def _check_counts(counts: NDArray[np.int64], damage: str) -> None:
    """Raise if a kernel returned a negative count instead of entries."""
    if (least := counts.min()) < 0:
        raise Damaged(damage if least == -1 else "indptr.npy points outside the columns")


def _refine(snapshot: Snapshot, y: Seeds, found: _Found, refine: int) -> _Found:
    """The second look: the first `refine` images by cos(f, c_j); those behind keep their order, with scores below."""
    first = found.scores[:, refine : refine + 1].copy()
    if y.weights.min() >= 0:
        _rank_candidates(snapshot, y, found._replace(counts=np.minimum(found.counts, refine)))
        lowest = found.scores[:, refine - 1 : refine]
    else:
        rows, scores = _rank_signed(snapshot, y, found.rows[0, :refine])
        lowest = scores[None, -1:]
        found = _Found(
            np.concatenate([rows[None], found.rows[:, refine:]], axis=1),
            np.concatenate([scores[None], found.scores[:, refine:]], axis=1),
            np.array([len(rows) + found.rows[:, refine:].shape[1]]),
        )
        refine = len(rows)
    scale = np.zeros(first.shape, np.float32)
    if lowest.size:
        np.divide(lowest, first, out=scale, where=first > 0)
    found.scores[:, refine:] *= scale
    return found


def _rank_candidates(snapshot: Snapshot, y: Seeds, found: _Found) -> None:
    """Rank the first `counts` images of each query anew, in place, by cos(f, c_j); f is what `_combine` has summed."""
    candidates = found.rows[np.arange(found.rows.shape[1]) < found.counts[:, None]]
    own, vectors = snapshot.candidates(candidates), snapshot.has_image_vectors
    columns = snapshot.kernel_columns(y.ids) if vectors else own  # those of y were checked when they were summed
    entries = np.empty_like(found.counts)
    # Where there is a second look, columns hold images.
    refine_candidates(
        y.ptr, y.ids.view(np.uint32), y.weights, *columns, *own,
        found.counts, snapshot.image_rows, snapshot.image_rows if vectors else REFINE_DEPTH, vectors, *found[:2],
        entries,
    )  # fmt: skip
    _check_counts(entries, "the columns of candidates are damaged")


def _rank_signed(
    snapshot: Snapshot, y: Seeds, candidates: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The candidates of a query with unwanted images, by cos(f, c_j); those that are not above zero are dropped.

    The kernel takes sums that are nowhere negative: it reads a negative cosine as damage, and takes roots in an index
    of regions. So it looks twice, with f+ from what is wanted and f- from what is not, f = f+ - f-:

        cos(f, c_j) = (|f+| cos(f+, c_j) - |f-| cos(f-, c_j)) / |f|

    which is exact for images. For regions it takes the roots of f+ and of f-, and the difference is by definition.
    """
    f = np.zeros(snapshot.image_rows)
    lengths, cosines = [], []
    # Squares of roots are the sums themselves.
    power = 1 if snapshot.is_regional else 2
    for sign in (1, -1):
        part = y.weights * sign > 0
        one = y.take(part)
        one = one._replace(weights=np.abs(one.weights))
        sums = _combine(snapshot, one, _room(snapshot, one))
        rows, scores = (array[0, : sums.counts[0]] for array in sums[:2])
        f[rows] += sign * scores
        lengths.append(float((scores.astype(np.float64) ** power).sum()) ** 0.5)
        seen = _Found(candidates[None].copy(), np.zeros((1, len(candidates)), np.float32), np.array([len(candidates)]))
        _rank_candidates(snapshot, one, seen)
        ordered = np.empty(len(candidates))
        ordered[np.argsort(candidates)] = seen.scores[0, np.argsort(seen.rows[0])]
        cosines.append(ordered)
    length = float((np.abs(f) ** power).sum()) ** 0.5
    scores = ((lengths[0] * cosines[0] - lengths[1] * cosines[1]) / length).astype(np.float32)
    order = np.lexsort((candidates, -scores))
    order = order[scores[order] > 0]
    return candidates[order], scores[order]


def _pool_regions(snapshot: Snapshot, y: Seeds, top: int, pooling: Pooling) -> _Found:
    """Diffusion over regions, pooled to images when all regions of a query have been added up."""
    owners, m = snapshot.owners, len(y.ptr) - 1
    assert owners is not None
    found = _nothing(m, top)
    weights = None if pooling == "max" else snapshot.pooling_weights
    for q, (start, stop) in enumerate(itertools.pairwise(y.ptr.tolist())):
        one = y.take(slice(start, stop))
        sums = _combine(snapshot, one, snapshot.shape[0], by_element=True)
        regions, f = (part[0, : sums.counts[0]] for part in sums[:2])
        scores = np.zeros(snapshot.image_rows)
        if weights is None:
            np.maximum.at(scores, owners[regions], f.astype(np.float64))
        else:
            np.add.at(scores, owners[regions], weights[regions] * f.astype(np.float64))
        scores[: len(snapshot.ids.hidden)][snapshot.ids.hidden != 0] = 0
        order = np.lexsort((np.arange(len(scores)), -scores))[:top]
        found.rows[q], found.scores[q] = order, np.maximum(scores[order], 0)
        found.counts[q] = int((scores[order] > 0).sum())
    return found


# --- the far field


def reach_districts(
    snapshot: Snapshot, y: Seeds, reached: _Found, top: int, may_hit: NDArray[np.bool_] | None
) -> _Found:
    """Rankings that columns left short, with the images that districts order behind them, with scores below theirs."""
    short = np.flatnonzero(reached.counts < top)
    if not len(short) or not snapshot.has_districts:
        return reached
    found, hidden = _nothing(len(reached.counts), top), snapshot.ids.hidden if may_hit is None else ~may_hit
    found.rows[:, : reached.rows.shape[1]], found.scores[:, : reached.rows.shape[1]], found.counts[:] = reached
    for q in short:
        count = found.counts[q]
        one = y.take(slice(*y.ptr[q : q + 2]))
        field = diffuse_far(snapshot.districts, one.ids, one.weights)
        field[found.rows[q, :count]] = 0
        if one.weights.min() < 0:  # what columns reach and push below zero stays there
            met = _combine(snapshot, one._replace(weights=np.abs(one.weights)), _room(snapshot, one))
            field[met.rows[0, : met.counts[0]]] = 0
        field[: len(hidden)][hidden != 0] = 0
        near = np.flatnonzero(field > 0)
        near = near[np.lexsort((near, -field[near]))][: top - count]
        stop = found.counts[q] = count + len(near)
        found.rows[q, count:stop], last = near, found.scores[q, count - 1] if count else np.float32(1)
        found.scores[q, count:stop] = last * (field[near] / field[near[:1]])
    return found if may_hit is None else found.select(slice(int(found.counts[0])))


# --- the ranking by cosine: what diffusion did not reach, and method="knn"


class Likeness:
    """Similarity of every image to what one query wants, minus NEGATIVE times that to what it does not, per wanted one.

    For an index of images that is one product with one direction. Of an image with regions it is R-match; the vectors
    of a query to an index of regions are one image.
    """

    def __init__(self, snapshot: Snapshot, query: Query) -> None:
        self._snapshot, self._query = snapshot, query

    @functools.cached_property
    def values(self) -> NDArray[np.float32]:
        """(rows of images,), computed when they are first asked for: both rankings and the seeds need them."""
        snapshot, query = self._snapshot, self._query
        signed = [(query.like, 1.0), (query.unlike, -NEGATIVE)]
        if not snapshot.is_regional:
            direction = query.vectors.sum(axis=0, dtype=np.float64)
            for images, sign in signed:
                direction += sign * snapshot.rows(np.array(images, np.int64)).sum(axis=0, dtype=np.float64)
            mean = (direction / (len(query.vectors) + len(query.like))).astype(np.float32)
            return scan_similarities(mean[None], snapshot.features).ravel()
        total = _match_images(snapshot, query.vectors).astype(np.float64)
        with np.errstate(invalid="ignore"):  # an image without regions is infinitely far from all others
            for images, sign in signed:
                for image in images:
                    total += sign * _match_images(snapshot, snapshot.rows(snapshot.elements(image)))
        return (total / (bool(len(query.vectors)) + len(query.like))).astype(np.float32)


class _Ranking:
    """The images by cosine, and which may be hits: all of them (None), or those that a single query leaves over."""

    def __init__(self, snapshot: Snapshot, query: Query, likeness: Likeness | None) -> None:
        self._snapshot, self._query, self._likeness = snapshot, query, likeness
        self.may_hit: NDArray[np.bool_] | None = None
        if likeness is not None or not query.is_plain:
            self._likeness = likeness or Likeness(snapshot, query)
            self.may_hit = np.ones(snapshot.image_rows, bool) if query.allowed is None else query.allowed.copy()
            self.may_hit[: len(snapshot.ids.hidden)][snapshot.ids.hidden != 0] = False
            self.may_hit[[*query.like, *query.unlike, *query.left_out]] = False

    def best(self, top: int) -> _Found:
        """The `top` nearest images of each query, fewer only if a query leaves fewer over."""
        if self.may_hit is not None:
            return self._most_alike(top, self.may_hit)
        snapshot, query = self._snapshot, self._query
        rows, ptr, counts = query.vectors, query.ptr, np.full(len(query.ptr) - 1, top)
        if not snapshot.is_regional and len(ptr) == len(rows) + 1:
            found = _without_hidden(snapshot, lambda count: nearest(rows, snapshot.features, count), top)
            return _Found(found.ids.astype(np.int64), found.sims, counts)
        sims = np.stack([_match_images(snapshot, rows[a:b]) for a, b in itertools.pairwise(ptr)])
        # What is hidden comes behind images without regions, which are as far.
        hidden = snapshot.ids.hidden if len(snapshot.ids.hidden) else np.zeros(sims.shape[1], np.uint8)
        keys = (np.broadcast_to(key, sims.shape) for key in (np.arange(sims.shape[1]), -sims, hidden))
        order = np.lexsort(tuple(keys), axis=1)[:, :top]
        return _Found(order.astype(np.int64), np.take_along_axis(sims, order, axis=1), counts)

    def _most_alike(self, top: int, may_hit: NDArray[np.bool_]) -> _Found:
        assert self._likeness is not None
        scores = np.where(may_hit, self._likeness.values, np.float32(-np.inf)) + np.float32(0.0)  # makes 0 of -0
        best = Lists(1, min(top, len(scores)))
        best.enter_rows(0, scores[None], 0)
        sims, rows = unpack_keys(best.largest())
        keep = np.isfinite(sims[0])
        return _Found(rows[:, keep].astype(np.int64), sims[:, keep], np.array([keep.sum()]))

    def fill(self, reached: _Found, top: int) -> _Found:
        """Rankings that diffusion left short, completed by images that it did not reach, nearest first."""
        if self.may_hit is not None:
            if (missing := top - int(reached.counts[0])) <= 0:
                return reached
            self.may_hit[reached.rows[0]] = False
            rest = self._most_alike(missing, self.may_hit)
            rows = np.concatenate([reached.rows, rest.rows], axis=1)
            scores = np.concatenate([reached.scores, np.zeros_like(rest.scores)], axis=1)
            return _Found(rows, scores, np.array([rows.shape[1]]))
        query = self._query
        for q in (reached.counts < top).nonzero()[0]:
            vectors, count = query.vectors[query.ptr[q] : query.ptr[q + 1]], reached.counts[q]
            one = Query(vectors, np.array([0, len(vectors)]))
            # At most `count` of the `top` nearest are there already, so these are always enough.
            ranking = _Ranking(self._snapshot, one, None).best(top).rows[0]
            reached.rows[q, count:] = ranking[~np.isin(ranking, reached.rows[q, :count])][: top - count]
        return reached


def _match_images(snapshot: Snapshot, regions: Features) -> NDArray[np.float32]:
    """R-match of one query's regions with every image; removed ones come last."""
    sims = match_regions(regions, snapshot.features, snapshot.owners, snapshot.image_rows)
    sims[: len(snapshot.ids.hidden)][snapshot.ids.hidden != 0] = -np.inf  # none, or one for each image
    return sims
