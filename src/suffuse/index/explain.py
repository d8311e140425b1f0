"""Why a picture was found: what each seed gave to its score, and the strongest chain of pictures that leads to it."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.kernels.chain import strongest_path
from suffuse.index.search import Seeds
from suffuse.index.snapshot import Snapshot, Transition
from suffuse.store.files import report_damage

NO_GRAPH = "the index holds no graph; build it again with with_graph=True"
NO_PATH = "no chain of neighbours leads from a seed to this picture"


class Contribution(NamedTuple):
    """What one seed gave: amount = weight * entry, and its share of the score."""

    seed: int  # an image
    similarity: float  # to what the query wants; the largest, where it is near to several vectors of the query
    weight: float  # in y, summed over the vectors it is near to; negative for what is not wanted
    entry: float  # of the seed's column at the hit; of several regions the mean by weight
    amount: float
    share: float


class Chain(NamedTuple):
    """The path from a seed to the hit whose strength = start * product of steps is the largest there is."""

    nodes: list[int]  # images, the seed first and the hit last
    steps: list[float]  # alpha * S between one and the next
    start: float  # the weight of the seed
    strength: float


class Explanation(NamedTuple):
    """The plain score f of a hit, before the second look, and where it comes from."""

    score: float
    contributions: list[Contribution]
    chain: Chain | None
    chain_missing: str | None  # why there is no chain


@report_damage
def explain(index: Snapshot, y: Seeds, item: int) -> Explanation:
    """Explain the score of an image for the query that starts from y (`search.find_seeds`).

    Contributions are exact: each is a stored number times a weight, and they sum to the score of `Index.search` with
    refine=0, for an image that columns reach. Those above zero come first, the largest first; shares are of the size of
    the score, so that they sum to 1 for every such image. Seeds that gave nothing are not listed.
    """
    row = index.ids.find_row(item)
    ids, sims, weights = _merge(y)
    amounts = weights * _entries(index, ids, row)
    score = float(amounts.sum())
    images = ids.astype(np.int64) if index.owners is None else index.owners[ids].astype(np.int64)
    given: list[Contribution] = []
    for image in np.unique(images[amounts != 0]).tolist():
        of = images == image
        amount, weight = float(amounts[of].sum()), float(weights[of].sum())
        entry = amount / weight if weight else 0.0
        share = amount / abs(score) if score else 0.0
        given.append(
            Contribution(int(index.name_rows(np.array(image))), float(sims[of].max()), weight, entry, amount, share)
        )
    given.sort(key=lambda one: (-one.amount, one.seed))
    graph = index.graph
    if graph is None:
        return Explanation(score, given, None, NO_GRAPH)
    chain = strongest_chain(graph, index.params.alpha, ids, weights, index.elements(row))
    if chain is not None:
        images_of = np.array(chain.nodes) if index.owners is None else index.owners[chain.nodes].astype(np.int64)
        chain = chain._replace(nodes=index.name_rows(images_of).tolist())
    return Explanation(score, given, chain, None if chain else NO_PATH)


def _merge(y: Seeds) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]:
    """Each element once: its largest similarity, clipped at zero, and the sum of its weights."""
    ids, at = np.unique(y.ids, return_inverse=True)
    sims, weights = np.zeros(len(ids), np.float32), np.zeros(len(ids))
    np.maximum.at(sims, at, y.sims)
    np.add.at(weights, at, y.weights)
    return ids, sims, weights


def _entries(index: Snapshot, ids: NDArray[np.int32], row: int) -> NDArray[np.float64]:
    """The entry of each of these columns at an image, as stored; summed over its regions where columns hold those."""
    columns = index.columns(ids).decode(ids)
    there = np.array([row]) if index.is_pooled else index.elements(row)
    matching = np.isin(columns.entries, there)
    column_of = np.repeat(np.arange(len(ids)), np.diff(columns.indptr))
    entries = np.zeros(len(ids))
    np.add.at(entries, column_of[matching], columns.values[matching])
    return entries


def strongest_chain(
    graph: Transition,
    alpha: float,
    seeds: NDArray[np.integer],
    weights: NDArray[np.float64],
    targets: NDArray[np.integer],
) -> Chain | None:
    """The path from any seed with a positive weight to any target that maximises weight * product of alpha * S.

    `graph` is S. Exact: Dijkstra on -log from both ends (`kernels.chain`), which ends long before the whole graph has
    been seen. None if there is no path.
    """
    path = np.empty(2 * (len(graph.indptr) - 1), np.uint32)
    count = strongest_path(
        graph.indptr.view(np.uint64), graph.indices.view(np.uint32), graph.weights, alpha,
        np.asarray(seeds, np.uint32), np.asarray(weights, np.float64), np.asarray(targets, np.uint32), path,
    )  # fmt: skip
    if count < 0:
        raise Damaged("the graph holds ids or rows that do not exist")
    if not count:
        return None
    nodes = path[:count].tolist()
    steps = [alpha * _weight(graph, a, b) for a, b in itertools.pairwise(nodes)]
    start = float(weights[np.flatnonzero(np.asarray(seeds) == nodes[0])[0]])
    return Chain(nodes, steps, start, start * math.prod(steps))


def _weight(graph: Transition, a: int, b: int) -> float:
    row = slice(int(graph.indptr[a]), int(graph.indptr[a + 1]))
    return float(graph.weights[row][graph.indices[row] == b][0])
