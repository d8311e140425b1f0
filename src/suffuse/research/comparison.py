"""Methods side by side on one data set: quality, time and size; and signs that diffusion may not help there."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import one_thread
from suffuse.core.params import Params
from suffuse.index.search import Hits
from suffuse.research import evaluation
from suffuse.research.datasets import Dataset
from suffuse.research.methods import Prepared, Queries, Workshop, prepare

# Hits that a timed query asks for; the quality is that of full rankings.
TIMED_TOP = 10
# Queries that are timed one by one; the median of so many is steady enough.
TIMED_QUERIES = 100
# Queries that are ranked in full at a time, so that m x n ids are never held at once.
_BATCH = 64
# From these shares on a person should know; chosen on the class sets of docs/results, not fitted to any of them.
_MANY_ISOLATED = 0.2
# Twice: on Oxford5k a typical query has 25 relevant photographs, and diffusion with k = 50 gains 30 points.
_TIES = 2
_HUB_SHARE = 0.3

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


def compare(shop: Workshop, names: Sequence[str], report: Report | None = None, stage: str = "") -> list[Result]:
    """Run the methods of these names on the workshop's data set.

    report  hears the stage and the name of each method before it starts
    """
    results: list[Result] = []
    for name in names:
        if report is not None:
            report(f"{stage}{name}")
        results.append(_measure(name, prepare(name, shop), shop.dataset))
    plain = next((result for result in results if result.method == "knn"), None)
    return results if plain is None else [_add_gain(result, plain) for result in results]


class Latency(NamedTuple):
    """One way to answer a query: milliseconds, one query at a time, on one thread."""

    p50: float
    p99: float


def time_ways(ways: Mapping[str, Callable[[int], Any]], count: int) -> dict[str, Latency]:
    """Time `way(q)` of each way in turn for each query q, so that what disturbs the machine disturbs all of them."""
    from threadpoolctl import threadpool_limits

    taken = np.empty((count, len(ways)))
    with threadpool_limits(1), one_thread():
        for answer in ways.values():
            answer(0)  # the first one loads kernels and touches the files
        for q in range(count):
            for way, answer in enumerate(ways.values()):
                started = time.perf_counter()
                answer(q)
                taken[q, way] = time.perf_counter() - started
    low, high = 1000 * np.percentile(taken, [50, 99], axis=0)
    return {name: Latency(float(low[way]), float(high[way])) for way, name in enumerate(ways)}


def time_query(rank: Callable[[Queries, int], Hits], queries: Queries, images: int) -> float:
    """The median milliseconds of one query on its own, on one thread."""
    top, singles = min(TIMED_TOP, images), [queries.take(q, q + 1) for q in range(len(queries.features))]
    latency = time_ways({"rank": lambda q: rank(singles[q], top)}, min(len(singles), TIMED_QUERIES))
    return latency["rank"].p50


def _measure(name: str, prepared: Prepared, dataset: Dataset) -> Result:
    queries, images = Queries.of(dataset), len(dataset.features)
    rankings = np.empty((len(queries.features), images), np.int32)
    for start in range(0, len(rankings), _BATCH):
        rankings[start : start + _BATCH] = prepared.rank(queries.take(start, start + _BATCH), images).ids
    quality, more, per_query, left_out = {}, {}, {}, {}
    for protocol, judgements in dataset.protocols.items():
        scores = evaluation.mean_average_precision(rankings, judgements, dataset.kind)
        quality[protocol] = _to_percent(scores.mean)
        per_query[protocol] = [None if np.isnan(score) else round(float(score), 6) for score in scores.per_query]
        left_out[protocol] = scores.left_out
        measures = {f"mP@{k}": evaluation.precision_at(rankings, judgements, k) for k in (1, 5, 10)}
        if dataset.kind == "classes":
            measures = {f"any found@{k}": evaluation.any_found_at(rankings, judgements, k) for k in (1, 5, 10)}
            measures["recall@100"] = evaluation.share_found_at(rankings, judgements, 100)
            measures["mAP@100"] = evaluation.mean_average_precision_at(rankings, judgements, 100)
        more[protocol] = {measure: _to_percent(found.mean) for measure, found in measures.items()}
    milliseconds, seconds = round(time_query(prepared.rank, queries, images), 4), round(prepared.offline_seconds, 3)
    size = round(prepared.bytes / images, 1)
    return Result(name, quality, more, per_query, left_out, {}, milliseconds, seconds, size)


def _add_gain(result: Result, plain: Result) -> Result:
    gain = {}
    for protocol, scores in result.per_query.items():
        ours, theirs = (np.array(s, np.float64) for s in (scores, plain.per_query[protocol]))
        interval = evaluation.paired_bootstrap(ours - theirs, np.random.default_rng(0))
        difference = round(result.quality[protocol] - plain.quality[protocol], 3)
        gain[protocol] = (difference, _to_percent(interval.low), _to_percent(interval.high))
    return result._replace(gain=gain)


def _to_percent(share: float) -> float:
    return round(100 * share, 3)


def count_positives(dataset: Dataset) -> NDArray[np.int64]:
    """How many relevant elements each query has, in the widest protocol: however hard they are to find, (m,)."""
    counts = [[len(judgement.positives) for judgement in judged] for judged in dataset.protocols.values()]
    return np.array(np.max(counts, axis=0), np.int64)


def advise(
    graph: Mapping[str, float],
    elements: int,
    params: Params,
    positives: NDArray[np.integer],
    results: Sequence[Result] = (),
) -> list[str]:
    """Warnings in plain words; empty if nothing speaks against diffusion.

    graph      the `graph` of a manifest (see graph.GraphSummary)
    positives  see `count_positives`
    results    what was measured, where k-NN was, too
    """
    warnings, k = [], params.k
    for protocol, (gain, _, most) in [
        pair for result in results if result.method == "refined" for pair in result.gain.items()
    ]:
        if most < 0:
            warnings.append(f"{protocol}: the default search has {-gain:.1f} points less than k-NN; use k-NN here")
    # Our own graph looks at what is near; in the paper's, every neighbour counts about the same.
    if params.graph == "paper" and len(positives) and _TIES * (typical := float(np.median(positives))) < k - 1:
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
