"""Does diffusion help here? Signs in the graph, and in a little truth where there is any, that it may not."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import one_thread
from suffuse.research.baselines.ranking import Ranking
from suffuse.research.datasets import Dataset
from suffuse.research.evaluation import (
    any_found_at,
    mean_average_precision,
    mean_average_precision_at,
    paired_bootstrap,
    precision_at,
    share_found_at,
)
from suffuse.research.methods import Prepared, Queries, Workshop, prepare

# From these shares on a person should know; chosen on the class sets of docs/results, not fitted to any of them.
_MANY_ISOLATED = 0.2
# Twice: on Oxford5k a typical query has 25 relevant photographs, and diffusion with k = 50 gains 30 points.
_TIES = 2
_HUB_SHARE = 0.3


def advise(
    graph: Mapping[str, float], elements: int, k: int, positives: NDArray[np.integer] | None = None
) -> list[str]:
    """Warnings in plain words; empty if nothing speaks against diffusion.

    graph      the `graph` of a manifest (see graph.GraphSummary)
    positives  how many relevant elements each query has, where the truth is known
    """
    warnings = []
    if positives is not None and len(positives) and _TIES * (typical := float(np.median(positives))) < k - 1:
        warnings.append(
            f"k is {k}, but a typical query has only {typical:g} relevant images: the graph ties them to strangers,"
            f" and diffusion can lose to k-NN; try k of {max(2, int(typical / 2) + 1)} or less"
        )
    if graph["isolated"] > _MANY_ISOLATED * elements:
        warnings.append(
            f"{graph['isolated'] / elements:.0%} of the elements have no mutual neighbour: diffusion cannot reach"
            " them or start from them; try a larger k or other features"
        )
    if (listed := graph.get("most_listed", 0)) > max(_HUB_SHARE * elements, 2 * k):
        warnings.append(
            f"one element is among the {k} nearest of {listed / elements:.0%} of all others: such a hub is near to"
            " everything and says nothing; try whitening"
        )
    return warnings


# Hits that a timed query asks for; the quality is that of full rankings.
TIMED_TOP = 10
# Queries that are timed one by one; the median of so many is steady enough.
TIMED_QUERIES = 100
# Queries that are ranked in full at a time, so that m x n ids are never held at once.
_BATCH = 64

Report = Callable[[str], None]


class Result(NamedTuple):
    """One method on one data set."""

    method: str
    quality: dict[str, float]  # mAP by protocol, in per cent
    more: dict[str, dict[str, float]]  # other measures by protocol, in per cent
    per_query: dict[str, list[float | None]]  # average precision by protocol; None where there is no positive
    left_out: dict[str, int]  # queries without any positive, by protocol
    gain: dict[str, tuple[float, float, float]]  # mAP minus that of k-NN, and its 95% interval; empty without k-NN
    milliseconds: float  # median per query, one at a time, one thread
    offline_seconds: float
    bytes_per_image: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self._asdict()


def compare(shop: Workshop, names: Sequence[str], report: Report | None = None) -> list[Result]:
    """Run the methods of these names on the workshop's data set; `report` hears the name of each before it starts."""
    results: list[Result] = []
    for name in names:
        if report is not None:
            report(name)
        results.append(_measure(name, prepare(name, shop), shop.dataset))
    plain = next((result for result in results if result.method == "knn"), None)
    return results if plain is None else [_with_gain(result, plain) for result in results]


def queries_of(dataset: Dataset) -> Queries:
    """All queries of a data set; their regions sorted by query."""
    if dataset.query_regions is None or dataset.query_region_owners is None:
        return Queries(dataset.queries)
    order = np.argsort(dataset.query_region_owners, kind="stable")
    owners = dataset.query_region_owners[order].astype(np.int64)
    return Queries(dataset.queries, dataset.query_regions[order], owners)


def pick(queries: Queries, start: int, stop: int) -> Queries:
    """The queries start..stop, numbered from 0."""
    if queries.regions is None or queries.owners is None:
        return Queries(queries.features[start:stop])
    first, last = np.searchsorted(queries.owners, [start, stop])
    return Queries(queries.features[start:stop], queries.regions[first:last], queries.owners[first:last] - start)


def rank_all(prepared: Prepared, queries: Queries, images: int) -> NDArray[np.int32]:
    """Full rankings of all queries (m, n)."""
    count = len(queries.features)
    rankings = np.empty((count, images), np.int32)
    for start in range(0, count, _BATCH):
        stop = min(start + _BATCH, count)
        rankings[start:stop] = prepared.rank(pick(queries, start, stop), images).ids
    return rankings


def median_milliseconds(rank: Callable[[Queries, int], Ranking], queries: Queries, images: int) -> float:
    """The median time of one query on its own, on one thread."""
    from threadpoolctl import threadpool_limits

    top, times = min(TIMED_TOP, images), []
    with threadpool_limits(1), one_thread():
        rank(pick(queries, 0, 1), top)  # the first one loads kernels and touches the files
        for q in range(min(len(queries.features), TIMED_QUERIES)):
            query = pick(queries, q, q + 1)
            started = time.perf_counter()
            rank(query, top)
            times.append(time.perf_counter() - started)
    return 1000 * float(np.median(times))


def _measure(name: str, prepared: Prepared, dataset: Dataset) -> Result:
    queries, images = queries_of(dataset), len(dataset.features)
    rankings = rank_all(prepared, queries, images)
    quality, more, per_query, left_out = {}, {}, {}, {}
    for protocol, judgements in dataset.protocols.items():
        scores = mean_average_precision(rankings, judgements, dataset.kind)
        quality[protocol] = _percent(scores.mean)
        per_query[protocol] = [None if np.isnan(score) else round(float(score), 6) for score in scores.per_query]
        left_out[protocol] = scores.left_out
        measures = {f"mP@{k}": precision_at(rankings, judgements, k) for k in (1, 5, 10)}
        if dataset.kind == "classes":
            measures = {f"any found@{k}": any_found_at(rankings, judgements, k) for k in (1, 5, 10)}
            measures["recall@100"] = share_found_at(rankings, judgements, 100)
            measures["mAP@100"] = mean_average_precision_at(rankings, judgements, 100)
        more[protocol] = {measure: _percent(found.mean) for measure, found in measures.items()}
    return Result(
        method=name,
        quality=quality,
        more=more,
        per_query=per_query,
        left_out=left_out,
        gain={},
        milliseconds=round(median_milliseconds(prepared.rank, queries, images), 4),
        offline_seconds=round(prepared.offline_seconds, 3),
        bytes_per_image=round(prepared.bytes / images, 1),
    )


def _with_gain(result: Result, plain: Result) -> Result:
    gain = {}
    for protocol, scores in result.per_query.items():
        ours, theirs = (np.array(s, np.float64) for s in (scores, plain.per_query[protocol]))
        interval = paired_bootstrap(ours - theirs, np.random.default_rng(0))
        difference = round(result.quality[protocol] - plain.quality[protocol], 3)
        gain[protocol] = (difference, _percent(interval.low), _percent(interval.high))
    return result._replace(gain=gain)


def _percent(share: float) -> float:
    return round(100 * share, 3)
