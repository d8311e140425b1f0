"""Is the synthetic set like real features? Its graph and supports beside those of Oxford5k.

    python -m benchmarks.likeness [--n 5000,20000] [-o out/bench] [--data ../shared/data] [--dimensions 512]

k = 50; supports on the graph, L = 1000, of a sample of nodes; raw results go to likeness.json. The k-NN of n =
100,000 takes minutes.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import references
from benchmarks.measure import machine, markdown, number
from benchmarks.subjects import DIMENSIONS, PARAMS, Subject, subject
from suffuse.core.blas import cores
from suffuse.core.columns import WALK_STEPS
from suffuse.core.features import apply_whitening, learn_whitening, unit_rows
from suffuse.core.graph import Graph, summarize
from suffuse.core.kernels.supports import walk_supports
from suffuse.core.neighbors import Features
from suffuse.core.params import Params
from suffuse.research.datasets import read_folder
from suffuse.research.synthetic import manifold
from suffuse.store.files import write_json

# Neighbours of a node whose supports are compared with its own.
GROUP = 16
_SAMPLE, _SOLVED = 60, 20
_WORDS = {
    "degree_mean": "mutual degree, mean",
    "degree_median": "median",
    "isolated": "isolated nodes, %",
    "largest_component": "largest component, %",
    "first": "similarity of the nearest",
    "tenth": "of the 10th",
    "last": "of the 49th",
    "support": "nodes in a support",
    "inside": "share of a support's edges that stay inside",
    "edges": "edges inside, per node",
    "jaccard": f"Jaccard index with the supports of {GROUP} nearest",
    "union": f"union of those {GROUP + 1} supports / one",
    "iterations": "CG iterations to 1e-6",
}


def statistics(found: Subject, params: Params, rng: np.random.Generator, sample: int = _SAMPLE) -> dict[str, float]:
    """The figures of `_WORDS` for one set."""
    n, alpha_s = len(found.features), found.alpha_s
    facts = summarize(alpha_s)
    degrees = np.diff(alpha_s.indptr).astype(np.int64)
    others = np.where(found.neighbors.ids == np.arange(n)[:, None], -1, found.neighbors.ids)
    sorted_sims = -np.sort(-np.where(others < 0, -1.0, found.neighbors.sims), axis=1)  # without the element itself
    connected = np.flatnonzero(degrees)
    nodes = rng.choice(connected, min(sample, len(connected)), replace=False)
    sizes, inside, edges, jaccard, union, iterations = [], [], [], [], [], []
    l_alpha = references.laplacian(alpha_s)
    for number_, node in enumerate(nodes):
        near = others[node][others[node] >= 0][:GROUP]
        own, *theirs = supports_of(alpha_s, np.array([node, *near[degrees[near] > 0]]), params.truncation)
        block = l_alpha[own][:, own]
        staying = block.nnz - len(own)  # the diagonal is no edge
        sizes.append(len(own))
        inside.append(staying / degrees[own].sum())
        edges.append(staying / len(own))
        jaccard.append(float(np.mean([_jaccard(own, other) for other in theirs])) if theirs else 0.0)
        everyone = np.unique(np.concatenate([own, *theirs]))
        union.append(len(everyone) / float(np.mean([len(own), *map(len, theirs)])))
        if number_ < _SOLVED:
            iterations.append(_iterations(block))
    return {
        "n": n, "dimensions": found.features.shape[1],
        "degree_mean": facts.degree_mean, "degree_median": facts.degree_median,
        "isolated": 100 * facts.isolated / n, "largest_component": 100 * facts.largest_component / n,
        "first": float(sorted_sims[:, 0].mean()), "tenth": float(sorted_sims[:, min(9, params.k - 2)].mean()),
        "last": float(sorted_sims[:, params.k - 2].mean()), "support": float(np.mean(sizes)),
        "inside": float(np.mean(inside)), "edges": float(np.mean(edges)), "jaccard": float(np.mean(jaccard)),
        "union": float(np.mean(union)), "iterations": float(np.mean(iterations)),
    }  # fmt: skip


def supports_of(alpha_s: Graph, nodes: NDArray[np.integer], truncation: int) -> list[NDArray[np.uint32]]:
    """The support that each node would have for itself, the node first."""
    found = []
    room, size = np.empty((1, truncation), np.uint32), np.empty(1, np.int64)
    for node in nodes.tolist():
        walk_supports(node, node + 1, 1, *alpha_s, WALK_STEPS, room, size)
        support = room[0, : size[0]]
        found.append(np.concatenate([[np.uint32(node)], support[support != node]]))
    return found


def _jaccard(one: Any, other: Any) -> float:
    common = len(np.intersect1d(one, other))
    return common / (len(one) + len(other) - common)


def _iterations(block: Any) -> int:
    """Steps of conjugate gradient until the residual of the first column is 1e-6."""
    from scipy.sparse.linalg import cg

    steps = 0

    def count(_: Any) -> None:
        nonlocal steps
        steps += 1

    e = np.zeros(block.shape[0])
    e[0] = 1.0
    cg(block, e, rtol=1e-6, atol=0.0, maxiter=1000, callback=count)
    return steps


def sets(data: Path, counts: list[int], dimensions: int) -> Iterator[tuple[str, Features]]:
    """Oxford5k in three whitenings where it is there, then the synthetic set in several sizes."""
    if (data / "oxford5k").is_dir():
        raw = read_folder(data / "oxford5k").features
        rows = unit_rows(raw, "Oxford5k")
        for words, power in (("512, full", 1.0), ("512, power 0.5", 0.5)):
            whitening = learn_whitening(raw, "Oxford5k", DIMENSIONS, power)
            yield f"Oxford5k {words}", apply_whitening(rows, whitening, "Oxford5k")
        yield "Oxford5k as it is", rows
    for n in counts:
        yield f"synthetic {n:,}", manifold(n, dimensions, rng=np.random.default_rng(0)).features


def main() -> None:
    """Measure, write raw results, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--n", default="5000,20000", help="sizes of the synthetic set")
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS)
    options = parser.parse_args()
    params, table = PARAMS, {}
    counts = [int(count) for count in options.n.split(",")]
    for name, features in sets(options.data, counts, options.dimensions):
        lists = references.knn_graph(features, params.k, cores())
        table[name] = statistics(subject(name, features, lists, params), params, np.random.default_rng(1))
    options.output.mkdir(parents=True, exist_ok=True)
    write_json(options.output / "likeness.json", {"sets": table, "machine": machine()})
    lines = [[words, *(number(figures[key]) for figures in table.values())] for key, words in _WORDS.items()]
    print(markdown(["", *table], lines))


if __name__ == "__main__":
    main()
