"""Scores in, rankings out: one rule for all methods."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.kernels.solve import rank_positive
from suffuse.core.neighbors import Features, Neighbors, nearest


class Ranking(NamedTuple):
    """The elements found for each query, best first, ties by id."""

    ids: NDArray[np.int64]  # (m, top)
    scores: NDArray[np.float32]  # (m, top)


class Scored(NamedTuple):
    """What a diffusion gave to the elements it looked at, for one query."""

    ids: NDArray[np.uint32]  # (s,)
    scores: NDArray[np.float64]  # (s,)


def by_similarity(found: Neighbors) -> Ranking:
    """The ranking of a plain search."""
    return Ranking(found.ids.astype(np.int64), found.sims)


def by_score(scores: NDArray[np.float32], top: int) -> Ranking:
    """The ranking by scores of all elements, of whatever sign, (m, n)."""
    # A stable sort leaves ties in the order of ids.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return Ranking(order, np.take_along_axis(scores, order, axis=1))


def positive_first(scored: Iterable[Scored], queries: Features, features: Features, top: int) -> Ranking:
    """Elements with a positive score first, then the rest by cosine with the score 0: all of them where top = n.

    `scored` gives one answer for each of the queries (m, d); `features` (n, d) are what they rank.
    """
    n = len(features)
    top = min(top, n)
    ids, scores = np.empty((len(queries), top), np.int64), np.zeros((len(queries), top), np.float32)
    for q, answer in enumerate(scored):
        count = rank_positive(*answer, ids[q], scores[q])
        if count < top:
            # At most `count` of the nearest are there already, so these are always enough.
            plain = nearest(queries[q : q + 1], features, min(top + count, n)).ids[0]
            ids[q, count:] = plain[~np.isin(plain, ids[q, :count])][: top - count]
    return Ranking(ids, scores)
