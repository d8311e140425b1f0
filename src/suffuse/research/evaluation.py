"""Ranks and truth in, average precision, precision, recall and their uncertainty out.

A *ranking* lists the ids of gallery elements, best first; a *protocol* is a list of `Judgement`, one per query. Junk is
taken out of a ranking before anything is counted. A query without any positive has the score nan; it is left out of
the mean, and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput

Ids = NDArray[np.integer]
Rankings = Sequence[Ids] | Ids
Kind = Literal["official", "classes"]

# Random choices drawn at a time, so that many rounds over many queries never fill the memory.
_DRAWS = 1 << 20


class Judgement(NamedTuple):
    """What is known about one query: who should be found, and who neither helps nor harms."""

    positives: Ids
    junk: Ids


class Scores(NamedTuple):
    """One measure over all queries of a protocol."""

    per_query: NDArray[np.float64]  # (m,), nan for a query without any positive
    mean: float  # of the others; nan if there are none
    left_out: int  # how many queries have no positive


class Interval(NamedTuple):
    """Where a value lies at the chosen level of confidence."""

    low: float
    high: float


def average_precision(ranking: Ids, positives: Ids, junk: Ids | None = None) -> float:
    """The official average precision of Oxford5k and Paris6k: the area under precision over recall, by trapezoids.

    AP = sum_r (precision_before_r + precision_r) / 2 / |positives| over the ranks r of the positives, where junk
    is taken out of the ranking first. Before rank 1 the precision is 1. Positives that are not in the ranking
    count as never found; without any positive the answer is nan.
    """
    judgement = Judgement(positives, np.empty(0, np.int64) if junk is None else junk)
    return _trapezoids(_relevance(ranking, judgement), len(positives))


def precision_at_hits(relevant: NDArray[np.bool_], positives: int) -> float:
    """The average precision of information retrieval: the mean of the precision at each relevant rank.

    `relevant` says for each rank whether its element is relevant; `positives` is how many there are in all.
    """
    if positives == 0:
        return float("nan")
    ranks = np.flatnonzero(relevant)
    return float(((np.arange(len(ranks)) + 1) / (ranks + 1)).sum() / positives)


def mean_average_precision(rankings: Rankings, judgements: Sequence[Judgement], kind: Kind = "official") -> Scores:
    """mAP of full rankings: `official` by trapezoids (`average_precision`), `classes` by `precision_at_hits`."""
    if kind not in get_args(Kind):
        raise InvalidInput(f"kind of average precision {kind!r} is unknown; use 'official' or 'classes'")
    return _score(rankings, judgements, _trapezoids if kind == "official" else precision_at_hits)


def mean_average_precision_at(rankings: Rankings, judgements: Sequence[Judgement], k: int) -> Scores:
    """mAP@k: sum of the precision at each hit in the first k ranks / min(k, |positives|), so that 1 can be reached."""
    return _score(rankings, judgements, lambda relevant, p: precision_at_hits(relevant[:k], min(k, p)), k)


def precision_at(rankings: Rankings, judgements: Sequence[Judgement], k: int) -> Scores:
    """mP@k of the revisited protocol: hits in the first k' ranks / k', where k' = min(k, rank of the last positive).

    A query with fewer than k positives can so reach 1. If the ranking misses a positive, its last rank is unknown
    and k stays as it is.
    """

    def precision(relevant: NDArray[np.bool_], positives: int) -> float:
        ranks = np.flatnonzero(relevant)
        cut = min(k, int(ranks[-1]) + 1) if len(ranks) == positives else k
        return float((ranks < cut).sum() / cut)

    return _score(rankings, judgements, precision, k)


def any_found_at(rankings: Rankings, judgements: Sequence[Judgement], k: int) -> Scores:
    """Recall@k as metric learning has it: 1 if at least one positive is in the first k ranks; the mean is a share."""
    return _score(rankings, judgements, lambda relevant, _: float(relevant[:k].any()), k)


def share_found_at(rankings: Rankings, judgements: Sequence[Judgement], k: int) -> Scores:
    """Recall@k as information retrieval has it: positives in the first k ranks / |positives|."""
    return _score(rankings, judgements, lambda relevant, positives: float(relevant[:k].sum() / positives), k)


def judge_revisited(truth: Sequence[Mapping[str, Ids]]) -> dict[str, list[Judgement]]:
    """Easy, Medium and Hard of revisited Oxford and Paris, from each query's `easy`, `hard` and `junk`.

    Easy: easy is positive, hard is junk. Medium: both are positive. Hard: hard is positive, easy is junk.
    """
    return {
        "easy": [judge(query["easy"], query["junk"], query["hard"]) for query in truth],
        "medium": [judge(np.concatenate([query["easy"], query["hard"]]), query["junk"]) for query in truth],
        "hard": [judge(query["hard"], query["junk"], query["easy"]) for query in truth],
    }


def judge(positives: Ids, *junk: Ids) -> Judgement:
    """A `Judgement` of distinct, sorted ids; one that is named both positive and junk is positive."""
    distinct = np.unique(positives)
    return Judgement(distinct, np.setdiff1d(np.concatenate([distinct[:0], *junk]), distinct))


def judge_classes(labels: NDArray[Any], query_labels: NDArray[Any]) -> list[Judgement]:
    """Queries that are not in the gallery: an element is positive if it has the query's label; there is no junk."""
    members = {label: np.flatnonzero(labels == label) for label in np.unique(query_labels).tolist()}
    nobody = np.empty(0, np.int64)
    return [Judgement(members[label], nobody) for label in query_labels.tolist()]


def judge_leaving_one_out(labels: NDArray[Any], queries: Ids) -> list[Judgement]:
    """Queries that are elements of the gallery, by id: as `judge_classes`, and each is junk for itself."""
    return [
        Judgement(positives[positives != query], np.array([query], np.int64))
        for query, (positives, _) in zip(queries, judge_classes(labels, labels[queries]), strict=True)
    ]


def paired_bootstrap(
    difference_per_query: NDArray[np.floating[Any]], rng: np.random.Generator, rounds: int = 10000, level: float = 0.95
) -> Interval:
    """The percentile bootstrap interval of a mean difference: queries are drawn anew, with repetition, `rounds` times.

    difference_per_query  (m,), one method's score minus the other's on the same query; nan is left out
    """
    if rounds < 1 or not 0.0 < level < 1.0:
        raise InvalidInput(f"rounds {rounds} and level {level} give no interval; use 1 or more, and between 0 and 1")
    differences = difference_per_query[~np.isnan(difference_per_query)]
    if len(differences) == 0:
        return Interval(float("nan"), float("nan"))
    means = np.empty(rounds)
    step = max(1, _DRAWS // len(differences))
    for start in range(0, rounds, step):
        part = means[start : start + step]
        part[:] = differences[rng.integers(len(differences), size=(len(part), len(differences)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _score(
    rankings: Rankings, judgements: Sequence[Judgement], measure: Callable[[NDArray[np.bool_], int], float], k: int = 1
) -> Scores:
    """`measure(relevant, positives)` of every query that has a positive; k is how many ranks it looks at."""
    if k < 1:
        raise InvalidInput(f"k is {k}; at least the first rank must be looked at")
    if len(rankings) != len(judgements):
        raise InvalidInput(f"{len(rankings)} rankings for {len(judgements)} judged queries; give one ranking per query")
    scores = np.full(len(judgements), np.nan)
    for query, (ranking, judgement) in enumerate(zip(rankings, judgements, strict=True)):
        if len(judgement.positives):
            scores[query] = measure(_relevance(ranking, judgement), len(judgement.positives))
    left_out = int(np.isnan(scores).sum())
    mean = float(np.nanmean(scores)) if left_out < len(scores) else float("nan")
    return Scores(scores, mean, left_out)


def _relevance(ranking: Ids, judgement: Judgement) -> NDArray[np.bool_]:
    """For each rank, after junk is taken out, whether its element is positive."""
    if len(judgement.junk):
        ranking = ranking[~np.isin(ranking, judgement.junk)]
    relevant = np.isin(ranking, judgement.positives)
    hits, times = np.unique(ranking[relevant], return_counts=True)
    if len(hits) and times.max() > 1:
        # It would be counted twice, and lift the average precision above what is true.
        raise InvalidInput(f"a ranking lists element {hits[times.argmax()]} {times.max()} times; list each once")
    return relevant


def _trapezoids(relevant: NDArray[np.bool_], positives: int) -> float:
    if positives == 0:
        return float("nan")
    ranks = np.flatnonzero(relevant)
    found = np.arange(len(ranks))
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    return float((before + (found + 1) / (ranks + 1)).sum() / 2 / positives)
