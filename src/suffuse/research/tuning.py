"""Which parameters suit this data? One is varied at a time, on half of the queries; the other half is the judge."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suffuse.errors import InvalidInput
from suffuse.research.comparison import Result, compare
from suffuse.research.datasets import Dataset
from suffuse.research.methods import Setting, Workshop

# In this order: what matters most comes first, and the best value of each is kept for the next.
GRID: dict[str, tuple[Any, ...]] = {
    "k": (10, 20, 50, 100),
    "alpha": (0.9, 0.99),
    "truncation": (300, 1000, 3000),
    "keep": (100, 200, 500, 1000),
    "seeds": (3, 5, 10, 20),
}
# A gain below this, in per cent of mAP, is not worth a larger index or a slower query.
WORTH_IT = 0.2


class Point(NamedTuple):
    """One setting, with what it costs and gives on the tuning queries."""

    values: dict[str, Any]
    quality: float  # mean of the mAP over all protocols, in per cent
    milliseconds: float
    offline_seconds: float
    bytes_per_image: float


class Tuned(NamedTuple):
    """The outcome: every point tried, the one chosen, and both ends on the queries that were held back."""

    points: list[Point]
    chosen: Point
    held_out_before: float
    held_out_after: float


def tune(
    dataset: Dataset,
    setting: Setting,
    grid: dict[str, tuple[Any, ...]] | None = None,
    report: Callable[[Point], None] | None = None,
) -> Tuned:
    """Search the grid, one parameter after the other, for the method `graph`."""
    tuning, judging = halves(dataset)
    start = _values(setting)
    best = measure(tuning, setting)
    points = [best]
    for name, candidates in (grid or GRID).items():
        for value in candidates:
            changed = _with(setting, {**best.values, name: value})
            if any(point.values == _values(changed) for point in points):
                continue
            points.append(measure(tuning, changed))
            if report is not None:
                report(points[-1])
        along = [p for p in points if all(p.values[key] == best.values[key] for key in start if key != name)]
        best = _preferred(along)
    before, after = (measure(judging, _with(setting, values)).quality for values in (start, best.values))
    return Tuned(points, best, before, after)


def halves(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Every other query to tune on, the rest to judge by; both with the whole gallery."""
    count = len(dataset.queries)
    if count < 4:
        raise InvalidInput(f"{dataset.name} has {count} queries; tuning needs at least 4, half of them to judge by")
    # Neighbouring queries often show the same object: an object's queries should be on both sides.
    first = np.arange(count) % 2 == 0
    return _subset(dataset, np.flatnonzero(first)), _subset(dataset, np.flatnonzero(~first))


def _subset(dataset: Dataset, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Dataset:
    protocols = {name: [judged[q] for q in chosen] for name, judged in dataset.protocols.items()}
    return dataset._replace(
        queries=dataset.queries[chosen],
        query_names=[dataset.query_names[q] for q in chosen],
        protocols=protocols,
        query_regions=None,
        query_region_owners=None,
        regions=None,
        region_owners=None,
    )


def pareto(points: list[Point]) -> Iterator[Point]:
    """The points that no other beats in quality at the same or a lower cost per query and per image."""
    for point in points:
        better = (
            other.quality >= point.quality
            and other.bytes_per_image <= point.bytes_per_image
            and other.milliseconds <= point.milliseconds
            and other is not point
            for other in points
        )
        if not any(better):
            yield point


def _preferred(points: list[Point]) -> Point:
    """The best quality; among those within `WORTH_IT` of it, the smallest and then the quickest."""
    best = max(point.quality for point in points)
    near = [point for point in points if point.quality >= best - WORTH_IT]
    return min(near, key=lambda point: (point.bytes_per_image, point.values["seeds"], -point.quality))


def _values(setting: Setting) -> dict[str, Any]:
    params = setting.params
    return {
        "k": params.k,
        "alpha": params.alpha,
        "truncation": params.truncation,
        "keep": params.keep,
        "seeds": setting.seeds,
    }


def _with(setting: Setting, values: dict[str, Any]) -> Setting:
    index_values = {name: value for name, value in values.items() if name != "seeds"}
    return replace(setting, params=replace(setting.params, **index_values), seeds=values["seeds"])


def measure(dataset: Dataset, setting: Setting) -> Point:
    """Build and search with this setting."""
    with tempfile.TemporaryDirectory() as folder:
        (result,) = compare(Workshop(dataset, setting, Path(folder)), ["graph"])
    return Point(
        values=_values(setting),
        quality=round(_mean_quality(result), 3),
        milliseconds=result.milliseconds,
        offline_seconds=result.offline_seconds,
        bytes_per_image=result.bytes_per_image,
    )


def _mean_quality(result: Result) -> float:
    return float(np.mean(list(result.quality.values())))
