"""The bars of a query: combination, second look, the whole of it, against k-NN alone and against online diffusion."""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import references
from benchmarks.measure import Row, Times, interleaved, interleaved_queries, milliseconds, number, single_thread
from benchmarks.subjects import SEEDS, Bench
from suffuse.core.blas import one_thread
from suffuse.core.params import Params
from suffuse.index.index import Index

TOP, REFINE = 100, 500
# Queries of each bar; online diffusion takes so long that fewer must do.
_COUNT, _ONLINE_COUNT = 300, 10
# Recall of the seeds below which a quick search does not count.
_RECALL = 0.99


def combine(bench: Bench) -> Iterator[Row]:
    """The combination of ten columns and the best 100, and what the second look adds; one thread, warm."""
    index, seeds = _open(bench), bench.seeds
    index.combine(seeds.ids[:_COUNT], seeds.sims[:_COUNT], TOP, refine=REFINE)  # warm: all that is read is in memory
    with single_thread():
        plain, refined = interleaved_queries(
            _COUNT,
            lambda q: index.combine(seeds.ids[q : q + 1], seeds.sims[q : q + 1], TOP, refine=0),
            lambda q: index.combine(seeds.ids[q : q + 1], seeds.sims[q : q + 1], TOP, refine=REFINE),
        )
    look = refined.cpu - plain.cpu
    yield Row(
        key="combine", what=f"{SEEDS} columns + top {TOP}, n={bench.n:,}", unit="ms", bar=0.15, aim=0.05,
        value=1000 * plain.typical_cpu, ours=_spread(plain), raw={"plain": plain.to_dict()},
    )  # fmt: skip
    yield Row(
        key="combine", what=f"second look at {REFINE} candidates", unit="ms", bar=0.5, aim=0.2,
        value=1000 * float(np.median(look)), raw={"refined": refined.to_dict()},
        ours=f"with the combination: {_spread(refined)}",
    )  # fmt: skip


def query(bench: Bench) -> Iterator[Row]:
    """The whole query by exact search against the same k-NN by faiss alone, one query at a time, one thread."""
    index, rows = _open(bench), bench.queries
    features = index.features  # the same pages for both
    with single_thread():
        ours, alone = interleaved_queries(
            _COUNT,
            lambda q: index.search(rows[q : q + 1], TOP, SEEDS, refine=0),
            lambda q: references.knn_one(rows[q : q + 1], features, SEEDS),
        )
    yield Row(
        key="query", what=f"whole query, exact k-NN, n={bench.n:,}", bar=1.05, aim=1.01,
        value=ours.typical_cpu / alone.typical_cpu, ours=_spread(ours), reference=f"faiss k-NN {_spread(alone)}",
        quality=f"median of the ratios, query by query: {number(float(np.median(ours.cpu / alone.cpu)))}",
        raw={"ours": ours.to_dict(), "knn": alone.to_dict()},
    )  # fmt: skip
    with single_thread():
        ours, alone = interleaved(
            3,
            lambda: index.search(rows, TOP, SEEDS, refine=0),
            lambda: references.knn_batch(rows, features, SEEDS),
        )
    yield Row(
        key="query", what=f"the same, {len(rows)} queries in one batch", value=ours.typical_cpu / alone.typical_cpu,
        ours=f"{milliseconds(ours.typical_cpu / len(rows))} CPU a query",
        reference=f"faiss k-NN {milliseconds(alone.typical_cpu / len(rows))} CPU a query",
        raw={"ours": ours.to_dict(), "knn": alone.to_dict()},
    )  # fmt: skip


def hnsw(bench: Bench) -> Iterator[Row]:
    """The whole query with seeds by HNSW, against exact ones: one at a time, and in batches on two threads."""
    path, measured = bench.built(_hnsw_params(bench.params))
    index, rows = Index.open(path), bench.queries
    recall = seed_recall(path, bench)
    index.search(rows[:_COUNT], TOP, SEEDS, refine=0)  # warm, as above
    # Beside the exact search of the same index, which shows whether it was HNSW that answered.
    with single_thread():
        ours, exact = interleaved_queries(
            _COUNT,
            lambda q: index.search(rows[q : q + 1], TOP, SEEDS, refine=0),
            lambda q: index.search(rows[q : q + 1], TOP, SEEDS, refine=0, exact=True),
        )
    quality = f"recall@{SEEDS} of the seeds {recall:.4f}"
    sound = recall >= _RECALL
    yield Row(
        key="hnsw", what=f"whole query, HNSW seeds, n={bench.n:,}, p50", unit="ms", bar=1, aim=0.5, quality=quality,
        value=1000 * ours.typical_wall, sound=sound, ours=_spread(ours), reference=f"exact seeds {_spread(exact)}",
        raw={"ours": ours.to_dict(), "exact": exact.to_dict(), "recall": recall, "build": measured},
    )  # fmt: skip
    many = np.tile(rows, (8, 1))
    halves = np.array_split(many, 2)

    def search(half: Any) -> None:
        with one_thread():
            index.search(half, TOP, SEEDS, refine=0)

    with ThreadPoolExecutor(2) as pool:
        (batch,) = interleaved(3, lambda: list(pool.map(search, halves)))
    yield Row(
        key="hnsw", what="the same in batches", unit="queries/s", at_least=True, bar=2000, aim=2000, threads="2",
        value=len(many) / float(batch.wall.min()), sound=sound, quality=quality, raw={"batch": batch.to_dict()},
    )  # fmt: skip


def online(bench: Bench) -> Iterator[Row]:
    """Our query against diffusion on the whole graph at query time: with and without the k-NN that both need."""
    index, seeds, rows = _open(bench), bench.seeds, bench.queries
    alpha_s = references.as_scipy(bench.synthetic.alpha_s)
    weights = np.maximum(seeds.sims, 0).astype(np.float64) ** bench.params.gamma
    features = index.features

    def diffuse(q: int) -> Any:
        return references.best(references.online_diffusion(alpha_s, seeds.ids[q], weights[q]), TOP)

    def search_and_diffuse(q: int) -> Any:
        references.knn_one(rows[q : q + 1], features, SEEDS)
        return diffuse(q)

    by_hnsw = Index.open(bench.built(_hnsw_params(bench.params))[0])
    by_hnsw.search(rows[:_ONLINE_COUNT], TOP, SEEDS, refine=0)  # warm, as above
    ways: list[Callable[[int], Any]] = [
        lambda q: index.combine(seeds.ids[q : q + 1], seeds.sims[q : q + 1], TOP, refine=0),
        lambda q: index.search(rows[q : q + 1], TOP, SEEDS, refine=0),
        diffuse,
        search_and_diffuse,
        lambda q: by_hnsw.search(rows[q : q + 1], TOP, SEEDS, refine=0),
    ]
    with single_thread():
        times = interleaved_queries(_ONLINE_COUNT, *ways)
        same = [_overlap(ways[0](q).ids[0], diffuse(q)) for q in range(_ONLINE_COUNT)]
    combined, searched, theirs, theirs_searched, fast = times
    quality = f"{100 * float(np.mean(same)):.0f}% of the first {TOP} hits in common"
    cases = [
        ("seeds known to both", combined, theirs),
        ("with exact k-NN in both", searched, theirs_searched),
        ("ours with HNSW seeds, theirs with exact ones", fast, theirs_searched),
    ]
    for words, ours, reference in cases:
        yield Row(
            key="online", what=f"against online diffusion, n={bench.n:,}, {words}", at_least=True, bar=100, aim=500,
            value=reference.typical_cpu / ours.typical_cpu, ours=_spread(ours), quality=quality,
            reference=f"20 iterations on the whole graph {_spread(reference)}",
            raw={"ours": ours.to_dict(), "reference": reference.to_dict()},
        )  # fmt: skip


def seed_recall(path: Path, bench: Bench) -> float:
    """The share of the exact seeds that the search of an index finds, with the candidates it keeps by default."""
    from suffuse.core.ann import nearest_by_hnsw, search_width
    from suffuse.index.snapshot import Snapshot

    stored = Snapshot.open(path)
    with stored.reading_links() as (links, features, _, _):
        found = nearest_by_hnsw(bench.queries, features, links, SEEDS, search_width(len(features)))
    return float(np.mean([_overlap(ours, exact) for ours, exact in zip(found.ids, bench.seeds.ids, strict=True)]))


def _hnsw_params(params: Params) -> Params:
    return dataclasses.replace(params, seed_search="hnsw")


def _open(bench: Bench) -> Index:
    path: Path = bench.built()[0]
    return Index.open(path)


def _overlap(found: Any, expected: Any) -> float:
    return len(np.intersect1d(found, expected)) / len(expected)


def _spread(times: Times) -> str:
    """p50 in CPU and wall, and p99 in wall time."""
    slow = float(np.percentile(times.wall, 99))
    return f"{milliseconds(times.typical_cpu)} CPU, {milliseconds(times.typical_wall)} wall, p99 {milliseconds(slow)}"
