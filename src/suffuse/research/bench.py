"""What an index costs on this machine: the build by stage, its size, and queries beside plain k-NN."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import cores, load_faiss
from suffuse.core.neighbors import nearest
from suffuse.core.params import Params, Progress
from suffuse.errors import InvalidInput
from suffuse.index.index import Index, build
from suffuse.index.search import REFINE
from suffuse.research.baselines import Online
from suffuse.research.comparison import Latency, time_ways
from suffuse.research.methods import make_graphs

TOP = 10
# Fewer rows than this cannot be split into an index and queries that say anything.
LEAST_ROWS = 20
# Queries that online diffusion answers: each goes through the whole graph.
_ONLINE_QUERIES = 20


class Figures(NamedTuple):
    """Everything `suffuse bench` shows."""

    elements: int
    dimensions: int
    queries: int
    params: dict[str, Any]
    seconds: dict[str, float]  # by stage of the build
    bytes: dict[str, int]  # by file of the index
    graph: dict[str, float]  # see graph.GraphSummary
    unconverged: int
    latency: dict[str, Latency]  # by way of answering
    threads: int  # of the build; queries run on one
    cpu: str


def run(
    features: NDArray[Any],
    directory: Path,
    params: Params,
    *,
    queries: int = 200,
    seeds: int = 10,
    jobs: int | None = None,
    online: bool = True,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> Figures:
    """Build an index of all but `queries` of the features in `directory`, ask for the rest, and time both.

    online  whether to compare with diffusion at query time; its graph needs the neighbours once more
    """
    if len(features) < LEAST_ROWS:
        raise InvalidInput(f"there are {len(features)} features; at least {LEAST_ROWS} are needed for a measurement")
    # A tenth at most: the index should stay what it would be with all of them.
    asked = np.zeros(len(features), bool)
    asked[rng.choice(len(features), max(1, min(queries, len(features) // 10)), replace=False)] = True
    index = build(features[~asked], directory / "bench.index", params, jobs=jobs, progress=progress)
    summary, manifest = index.summary, index.manifest
    assert summary is not None
    return Figures(
        elements=summary.elements,
        dimensions=summary.dimensions,
        queries=int(asked.sum()),
        params=params.to_dict(),
        seconds=summary.seconds,
        bytes={name: int(described["bytes"]) for name, described in manifest.files.items()},
        graph=manifest.graph,
        unconverged=summary.unconverged,
        latency=time_queries(index, features[asked], seeds, online=online),
        threads=jobs or cores(),
        cpu=name_cpu(),
    )


def time_queries(index: Index, queries: NDArray[Any], seeds: int, *, online: bool) -> dict[str, Latency]:
    """Every way to answer, each with the same raw queries (m, d); warm, one at a time, on one thread."""
    faiss, rows, features = load_faiss(), index.prepare(queries), index.features
    found, count = nearest(rows, features, seeds), min(seeds, len(features))
    ways: dict[str, Callable[[int], Any]] = {
        "k-NN alone": lambda q: faiss.knn(rows[q : q + 1], features, count, metric=faiss.METRIC_INNER_PRODUCT),
        "whole query": lambda q: index.search(queries[q : q + 1], TOP, seeds, refine=0),
        "whole query, second look": lambda q: index.search(queries[q : q + 1], TOP, seeds, refine=REFINE),
        "diffusion part": lambda q: index.combine(found.ids[q : q + 1], found.sims[q : q + 1], TOP, refine=0),
    }
    slow: dict[str, Callable[[int], Any]] = {}
    if online:
        method = Online(features, make_graphs(features, index.params).scale(index.params.alpha), index.params, seeds)
        slow["online diffusion"] = lambda q: method.rank(rows[q : q + 1], TOP)
    return time_ways(ways, len(rows)) | time_ways(slow, min(len(rows), _ONLINE_QUERIES))


def name_cpu() -> str:
    """What the machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
