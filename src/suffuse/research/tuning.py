"""Which parameters suit this data? One is varied at a time, on half of the queries; the other half is the judge."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suffuse.errors import InvalidInput
from suffuse.research.comparison import compare
from suffuse.research.datasets import Dataset
from suffuse.research.methods import Setting, Workshop

Values = dict[str, Any]  # of the parameters of an index, and of the seeds of a query

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

    values: Values
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
    tuning, judging = split_queries(dataset)
    start: Values = {name: getattr(setting.params, name) for name in GRID if name != "seeds"} | {"seeds": setting.seeds}
    best = measure(tuning, setting, start)
    points = [best]
    for name, candidates in (grid or GRID).items():
        for value in candidates:
            values = {**best.values, name: value}
            if any(point.values == values for point in points):
                continue
            points.append(measure(tuning, setting, values))
            if report is not None:
                report(points[-1])
        best = _choose([point for point in points if {**point.values, name: best.values[name]} == best.values])
    before, after = (measure(judging, setting, values).quality for values in (start, best.values))
    return Tuned(points, best, before, after)


def split_queries(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Every other query to tune on, the rest to judge by; both with the whole gallery, without regions."""
    if (count := len(dataset.queries)) < 4:
        raise InvalidInput(f"{dataset.name} has {count} queries; tuning needs at least 4, half of them to judge by")

    # Neighbouring queries often show the same object: an object's queries should be on both sides.
    def take_every_other(start: int) -> Dataset:
        return dataset._replace(
            queries=dataset.queries[start::2],
            query_names=dataset.query_names[start::2],
            protocols={name: judged[start::2] for name, judged in dataset.protocols.items()},
            regional=None,
        )

    return take_every_other(0), take_every_other(1)


def measure(dataset: Dataset, setting: Setting, values: Values) -> Point:
    """Build and search with these values."""
    params = replace(setting.params, **{name: value for name, value in values.items() if name != "seeds"})
    changed = replace(setting, params=params, seeds=values["seeds"])
    with tempfile.TemporaryDirectory() as folder:
        (result,) = compare(Workshop(dataset, changed, Path(folder)), ["graph"])
    quality = round(float(np.mean(list(result.quality.values()))), 3)
    return Point(values, quality, result.milliseconds, result.offline_seconds, result.bytes_per_image)


def find_pareto(points: list[Point]) -> list[Point]:
    """The points that no other beats in quality at the same or a lower cost per query and per image."""
    costs = np.array([(-point.quality, point.bytes_per_image, point.milliseconds) for point in points])
    # Each is as good as itself.
    return [point for point, cost in zip(points, costs, strict=True) if (costs <= cost).all(axis=1).sum() == 1]


def _choose(points: list[Point]) -> Point:
    """The best quality; among those within `WORTH_IT` of it, the smallest and then the quickest."""
    best = max(point.quality for point in points)
    near = [point for point in points if point.quality >= best - WORTH_IT]
    return min(near, key=lambda point: (point.bytes_per_image, point.values["seeds"], -point.quality))
