"""What an index costs on this machine: the build by stage, its size, and queries beside plain k-NN."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import cores, load_faiss, one_thread
from suffuse.core.graph import affinity, transition
from suffuse.core.neighbors import Features, Neighbors, nearest, nearest_to_rows
from suffuse.core.params import Params
from suffuse.errors import InvalidInput
from suffuse.index.index import Index
from suffuse.index.online import REFINE
from suffuse.offline.build import build
from suffuse.offline.runner import Progress
from suffuse.research.baselines import Online

TOP = 10
# Fewer rows than this cannot be split into an index and queries that say anything.
LEAST_ROWS = 20
# Rows whose neighbours are searched at a time.
_BLOCK_ROWS = 2048
# Queries that online diffusion answers: each goes through the whole graph.
_ONLINE_QUERIES = 20


class Latency(NamedTuple):
    """One way to answer a query: milliseconds, one query at a time, on one thread."""

    p50: float
    p99: float


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
    summary = build(features[~asked], directory / "bench.index", params, jobs=jobs, progress=progress)
    index = Index.open(summary.path)
    manifest = index.manifest
    return Figures(
        elements=summary.elements,
        dimensions=summary.dimensions,
        queries=int(asked.sum()),
        params=params.to_dict(),
        seconds=summary.seconds,
        bytes={name: int(described["bytes"]) for name, described in manifest.files.items()},
        graph=manifest.graph,
        unconverged=summary.unconverged,
        latency=latencies(index, features[asked], seeds, online=online),
        threads=jobs or cores(),
        cpu=cpu_name(),
    )


def latencies(index: Index, queries: NDArray[Any], seeds: int, *, online: bool) -> dict[str, Latency]:
    """Every way to answer, each with the same raw queries (m, d); warm, one at a time, on one thread."""
    from threadpoolctl import threadpool_limits

    faiss, rows, features = load_faiss(), index.prepare(queries), index.features
    found = nearest(rows, features, seeds)
    ways: dict[str, Callable[[int], Any]] = {
        "k-NN alone": lambda q: faiss.knn(
            rows[q : q + 1], features, min(seeds, len(features)), metric=faiss.METRIC_INNER_PRODUCT
        ),
        "whole query": lambda q: index.search(queries[q : q + 1], TOP, seeds, refine=0),
        "whole query, second look": lambda q: index.search(queries[q : q + 1], TOP, seeds, refine=REFINE),
        "diffusion part": lambda q: index.combine(found.ids[q : q + 1], found.sims[q : q + 1], TOP, refine=0),
    }
    with threadpool_limits(1), one_thread():
        measured = _timed(ways, len(rows))
    if online:
        method = Online(features, *_online_graph(features, index.params), seeds)
        with threadpool_limits(1), one_thread():
            measured |= _timed(
                {"online diffusion": lambda q: method.rank(rows[q : q + 1], TOP)}, min(len(rows), _ONLINE_QUERIES)
            )
    return measured


def _timed(ways: dict[str, Callable[[int], Any]], count: int) -> dict[str, Latency]:
    """Each way in turn for each query, so that what disturbs the machine disturbs all of them."""
    taken = np.empty((count, len(ways)))
    for answer in ways.values():
        answer(0)  # the first one loads kernels and touches the files
    for q in range(count):
        for way, answer in enumerate(ways.values()):
            started = time.perf_counter()
            answer(q)
            taken[q, way] = time.perf_counter() - started
    low, high = 1000 * np.percentile(taken, [50, 99], axis=0)
    return {name: Latency(float(low[way]), float(high[way])) for way, name in enumerate(ways)}


def _online_graph(features: Features, params: Params) -> tuple[Any, Params]:
    """alpha S of all features, by exact neighbours."""
    starts = range(0, len(features), _BLOCK_ROWS)
    blocks = [nearest_to_rows(features, a, min(a + _BLOCK_ROWS, len(features)), params.k) for a in starts]
    lists = Neighbors(*(np.concatenate(part) for part in zip(*blocks, strict=True)))
    s = transition(affinity(lists, params.gamma))
    return s._replace(weights=params.alpha * s.weights), params


def cpu_name() -> str:
    """What the machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
