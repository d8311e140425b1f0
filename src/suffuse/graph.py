"""The mutual k-NN graph: affinity A and transition matrix S."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.kernels.mutual import count_edges, fill_affinity, normalize_affinity
from suffuse.kernels.order import number_along, renumber
from suffuse.neighbors import Neighbors


class Graph(NamedTuple):
    """A symmetric sparse matrix in compressed rows; the ids of a row are sorted."""

    indptr: NDArray[np.uint64]  # (n + 1,)
    indices: NDArray[np.uint32]
    weights: NDArray[np.float64]


class GraphSummary(NamedTuple):
    """What the graph looks like."""

    edges: int
    degree_mean: float
    degree_median: float
    degree_largest: int
    isolated: int
    components: int
    largest_component: int


def affinity(neighbors: Neighbors, gamma: float) -> Graph:
    """A (eq. 1): max(sim, 0) ** gamma where i and j are in each other's lists, i != j; else 0."""
    ids = np.ascontiguousarray(neighbors.ids).view(np.uint32)
    sims = np.ascontiguousarray(neighbors.sims)
    indptr = np.empty(len(ids) + 1, np.uint64)
    count_edges(ids, sims, gamma, indptr)
    np.cumsum(indptr, out=indptr)
    indices, weights = np.empty(int(indptr[-1]), np.uint32), np.empty(int(indptr[-1]), np.float64)
    fill_affinity(ids, sims, gamma, indptr, indices, weights)
    return Graph(indptr, indices, weights)


def transition(a: Graph) -> Graph:
    """S = D^-1/2 A D^-1/2 (eq. 2); a node without neighbours keeps an empty row."""
    weights = np.empty_like(a.weights)
    normalize_affinity(a.indptr, a.indices, a.weights, np.empty(len(a.indptr) - 1), weights)
    return Graph(a.indptr, a.indices, weights)


def order_along(graph: Graph, group: int) -> NDArray[np.uint32]:
    """All nodes, so that each `group` of them, one after the other, are near to each other on the graph.

    What is near on the graph is then near in memory, and what is solved together has nearly one support.
    """
    degrees = np.diff(graph.indptr)
    order = np.empty(len(degrees), np.uint32)
    # Groups are made where the graph is densest first: what is left over lies at the edge.
    densest_first = np.argsort(degrees.max(initial=0) - degrees, kind="stable").astype(np.uint32)
    number_along(densest_first, group, *graph, order)
    return order


def reordered(graph: Graph, order: NDArray[np.uint32]) -> Graph:
    """The same graph with node order[i] as its node i."""
    indptr = np.zeros_like(graph.indptr)
    np.cumsum(np.diff(graph.indptr)[order], out=indptr[1:])
    new = Graph(indptr, np.empty_like(graph.indices), np.empty_like(graph.weights))
    renumber(order, *graph, *new)
    return new


def summarize(graph: Graph) -> GraphSummary:
    """Degrees, isolated nodes and connected components."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = len(graph.indptr) - 1
    degrees = np.diff(graph.indptr).astype(np.int64)
    matrix: Any = csr_array(
        (graph.weights, graph.indices.astype(np.int64), graph.indptr.astype(np.int64)), shape=(n, n)
    )
    count, labels = connected_components(matrix, directed=False)
    return GraphSummary(
        edges=len(graph.indices) // 2,
        degree_mean=round(float(degrees.mean()), 3),
        degree_median=float(np.median(degrees)),
        degree_largest=int(degrees.max()),
        isolated=int((degrees == 0).sum()),
        components=int(count),
        largest_component=int(np.bincount(labels).max()),
    )
