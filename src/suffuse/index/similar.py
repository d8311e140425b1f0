"""Search by pictures of the index: several that are wanted and several that are not, and vectors beside them.

Diffusion is linear in its seeds, so feedback costs one more sum of columns:

    y = sum of the seeds of what is wanted - NEGATIVE * sum of the seeds of what is not
    f = sum_j y_j * column[j]                            (Algorithm 1)

Only what f is above zero for is found; the rest follows by cosine with the score 0.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.neighbors import Features, Lists, similarities, unpacked
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index.online import METHODS, Generation, Hits, Method, Seeds

# How much a picture that is not wanted counts against one that is. At 1 a single one outweighs what it shares with the
# wanted ones; at 0 it is only left out.
NEGATIVE = 0.5


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is looked for: vectors in the space of the index, and the places of pictures that are wanted or not."""

    vectors: Features  # (v, d)
    positive: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()  # pictures that are no hits, besides those above


class Start(NamedTuple):
    """y of one query: element ids[j] with the similarity sims[j] to what it came from, and the signed weight."""

    ids: NDArray[np.int32]
    sims: NDArray[np.float32]
    weights: NDArray[np.float64]


class Found(NamedTuple):
    """Images, best first."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


class Likeness:
    """Similarity of every image to what is wanted, minus NEGATIVE times that to what is not, per wanted picture.

    For an index of images that is one product with one direction. Of a picture with regions it is R-match, as in
    `Index.search`; the vectors of a query to an index of regions are one picture.
    """

    def __init__(self, index: Generation, query: Wanted) -> None:
        self._index, self._query = index, query

    def compute(self) -> None:
        """Compute them now."""
        _ = self.values

    def as_row(self) -> NDArray[np.float32]:
        """The same as a matrix with one row."""
        return self.values[None]

    @functools.cached_property
    def values(self) -> NDArray[np.float32]:
        """(images,), computed when they are first asked for: both rankings and the seeds of one vector need them."""
        index, query = self._index, self._query
        signed = [(query.positive, 1.0), (query.negative, -NEGATIVE)]
        if index.owners is None:
            direction = query.vectors.sum(axis=0, dtype=np.float64)
            for images, sign in signed:
                direction += sign * index.rows(np.array(images, np.int64)).sum(axis=0, dtype=np.float64)
            mean = (direction / (len(query.vectors) + len(query.positive))).astype(np.float32)
            return similarities(mean[None], index.features).ravel()
        total = index._image_similarities(query.vectors).astype(np.float64)
        with np.errstate(invalid="ignore"):  # an image without regions is infinitely far from all others
            for images, sign in signed:
                for image in images:
                    total += sign * index._image_similarities(index.rows(elements(index, image)))
        return (total / (bool(len(query.vectors)) + len(query.positive))).astype(np.float32)


def wanted(
    index: Generation, positive: Sequence[int] = (), negative: Sequence[int] = (), vectors: Features | None = None
) -> Wanted:
    """Pictures by id, checked, and vectors that `prepare` made; from here on pictures go by their places."""
    rows = np.empty((0, index.shape[1]), np.float32) if vectors is None else vectors
    for id in (*positive, *negative):
        if not len(elements(index, index.ids.place(id))):
            raise InvalidInput(f"image {id} has no regions to search by; choose another")
    if both := sorted(set(positive) & set(negative)):
        raise InvalidInput(f"image {both[0]} is both wanted and not wanted; choose one")
    if not len(rows) and not positive:
        raise InvalidInput("nothing is wanted; give at least one positive image or vector")
    return Wanted(rows, *(tuple(map(index.ids.place, dict.fromkeys(ids))) for ids in (positive, negative)))


def search(
    index: Generation,
    query: Wanted,
    top: int = 10,
    seeds: int = 10,
    *,
    method: Method = "diffusion",
    refine: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
    likeness: Likeness | None = None,
) -> Found:
    """The `top` best images for one query, those of the query left out; fewer only if there are no more.

    seeds    nearest elements of each vector whose columns are summed
    method   "diffusion"; or "knn": by similarity alone, see `Likeness`
    refine   as for `Index.search`; with pictures that are not wanted see `_second_look`
    allowed  (places,), which images may be hits: others are dropped before the second look, so it looks at these only
    likeness of this query, where the same one is searched for several times
    """
    for name, value in (("top", top), ("seeds", seeds)):
        if value < 1:
            raise InvalidParams(f"{name} must be a whole number of at least 1, got {value!r}")
    if method not in METHODS:
        raise InvalidParams(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    hits = np.ones(index.places, bool) if allowed is None else allowed.copy()
    if len(index.ids.hidden):
        hits &= index.ids.hidden == 0
    hits[[*query.positive, *query.negative, *query.left_out]] = False
    likeness = likeness or Likeness(index, query)
    if method == "knn":
        return _named(index, _nearest(likeness, top, hits))
    found = _diffused(index, start(index, query, seeds, likeness), index._check_refine(refine), hits)
    if len(found.ids) >= top:
        return _named(index, Found(found.ids[:top], found.scores[:top]))
    hits[found.ids] = False
    rest = _nearest(likeness, top - len(found.ids), hits)
    scores = np.concatenate([found.scores, np.zeros_like(rest.scores)])
    return _named(index, Found(np.concatenate([found.ids, rest.ids]), scores))


def _named(index: Generation, found: Found) -> Found:
    """Images by their ids instead of their places."""
    return found._replace(ids=index.ids.of(found.ids))


def start(index: Generation, query: Wanted, seeds: int, likeness: Likeness | None = None) -> Start:
    """y: the seeds of every vector of the query, wanted ones first; an element may occur for several vectors."""
    rows = [query.vectors, *(index.rows(elements(index, id)) for id in (*query.positive, *query.negative))]
    unwanted = sum(len(part) for part in rows[len(rows) - len(query.negative) :]) if query.negative else 0
    together = np.ascontiguousarray(np.concatenate(rows))
    # One vector is its own direction.
    known = likeness.as_row if likeness is not None and len(together) == 1 and index.owners is None else None
    found = index._seeds(together, np.arange(len(together) + 1, dtype=np.int64), seeds, index._width, known)
    count = int(found.query_ptr[1])
    # Seeds.weights is sim ** gamma, so this is the similarity, clipped at zero.
    sims = (found.weights ** (1 / index.params.gamma)).astype(np.float32)
    signs = np.repeat([1.0, -NEGATIVE], [(len(together) - unwanted) * count, unwanted * count])
    return Start(found.ids, sims, signs * found.weights)


def elements(index: Generation, image: int) -> NDArray[np.int64]:
    """The elements of the image at a place: itself, or its regions."""
    return np.array([image]) if index.owners is None else np.flatnonzero(index.owners == image)


def _diffused(index: Generation, y: Start, refine: int, hits: NDArray[np.bool_]) -> Found:
    """All images with a sum above zero that may be hits, best first."""
    found = _sums(index, y.ids, y.weights)
    keep = hits[found.ids]
    found = Found(found.ids[keep], found.scores[keep])
    if not refine or not len(found.ids):
        return found
    first = _second_look(index, y, found.ids[:refine])
    behind = Found(found.ids[refine:], found.scores[refine:])
    # Hits behind the candidates keep their order, on a scale that continues below them.
    scale = first.scores[-1] / behind.scores[0] if len(first.scores) and len(behind.scores) else np.float32(0)
    return Found(
        np.concatenate([first.ids, behind.ids]), np.concatenate([first.scores, behind.scores * scale], dtype=np.float32)
    )


def _second_look(index: Generation, y: Start, candidates: NDArray[np.int64]) -> Found:
    """The candidates by cos(f, c_j), as `Index.search` ranks them; those that are not above zero are dropped.

    The kernel takes sums that are nowhere negative: it reads a negative cosine as damage, and takes roots in an index
    of regions. So it looks twice, with f+ from what is wanted and f- from what is not, f = f+ - f-:

        cos(f, c_j) = (|f+| cos(f+, c_j) - |f-| cos(f-, c_j)) / |f|

    which is exact for images. For regions it takes the roots of f+ and of f-, and the difference is by definition.
    """
    wanted, length = _cosines(index, y, candidates, y.weights > 0), 1.0
    if (unwanted := y.weights < 0).any():
        plus, minus = (_sums(index, y.ids[part], np.abs(y.weights[part])) for part in (~unwanted, unwanted))
        # Squares of roots are the sums themselves.
        power = 2 if index.owners is None else 1
        lengths = [float((part.scores.astype(np.float64) ** power).sum()) ** 0.5 for part in (plus, minus)]
        f = np.zeros(index.places)
        f[plus.ids] += plus.scores
        f[minus.ids] -= minus.scores
        length = float((np.abs(f) ** power).sum()) ** 0.5
        wanted = lengths[0] * wanted - lengths[1] * _cosines(index, y, candidates, unwanted)
    scores = (wanted / length).astype(np.float32)
    order = np.lexsort((candidates, -scores))
    order = order[scores[order] > 0]
    return Found(candidates[order], scores[order])


def _cosines(
    index: Generation, y: Start, candidates: NDArray[np.int64], part: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """cos(f, c_j) of each candidate, where f is the sum over a part of y, without signs."""
    found = Hits(candidates[None].copy(), np.zeros((1, len(candidates)), np.float32))
    index._refine(_seeds(y.ids[part], np.abs(y.weights[part])), found, np.array([len(candidates)]))
    cosines = np.empty(len(candidates))
    cosines[np.argsort(candidates)] = found.scores[0, np.argsort(found.ids[0])]
    return cosines


def _sums(index: Generation, ids: NDArray[np.int32], weights: NDArray[np.float64]) -> Found:
    """f of these seeds, all that is above zero, largest first."""
    columns = index._stored.columns
    # A column has no more entries than numbers or bytes that it takes.
    room = min(index.places, int((columns.stops[ids] - columns.starts[ids]).sum()))
    found, scores, counts = index._combine(_seeds(ids, weights), max(room, 1))
    return Found(found[0, : counts[0]], scores[0, : counts[0]])


def _seeds(ids: NDArray[np.int32], weights: NDArray[np.float64]) -> Seeds:
    return Seeds(np.array([0, len(ids)]), np.ascontiguousarray(ids), np.ascontiguousarray(weights))


def _nearest(likeness: Likeness, top: int, hits: NDArray[np.bool_]) -> Found:
    """The ranking without diffusion, of images that may be hits and have a vector, ties to the smaller id."""
    scores = np.where(hits, likeness.values, np.float32(-np.inf)) + np.float32(0.0)  # which makes 0 of -0
    best = Lists(1, min(top, len(scores)))
    best.enter_rows(0, scores[None], 0)
    (found,), (ids,) = unpacked(best.largest())
    keep = np.isfinite(found)
    return Found(ids[keep], found[keep])
