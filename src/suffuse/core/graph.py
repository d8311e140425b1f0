"""The mutual k-NN graph: affinity A, the paper's or ours, and transition matrix S."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import on_every_core
from suffuse.core.kernels import graph as kernels
from suffuse.core.neighbors import Neighbors
from suffuse.core.params import Params

# How much less dense places count: A_ij is divided by (d_i d_j) to this power (docs/lab/graph.md).
_DENSITY = 0.3


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


def weigh_edges(neighbors: Neighbors, params: Params, rows: range | None = None) -> Graph:
    """A, as the parameters say: the paper's `affinity`, or ours, `local_affinity`.

    With `rows`, those rows of it alone; for that, the lists may be files that are mapped.
    """
    return affinity(neighbors, params.gamma, rows) if params.graph == "paper" else local_affinity(neighbors, rows)


def affinity(neighbors: Neighbors, gamma: float, rows: range | None = None) -> Graph:
    """A (eq. 1): max(sim, 0) ** gamma where i and j are in each other's lists, i != j; else 0."""
    ids, sims = _for_kernels(neighbors)
    if rows is not None:
        return _fill(kernels.fill_affinity, (ids, sims, gamma), ids.shape[1], rows)
    list_ptr, listers = np.empty(len(ids) + 1, np.uint64), np.empty(ids.size, np.uint32)
    kernels.turn_lists(ids, list_ptr, listers)  # with all lists turned round it is several times faster

    def some_rows(start: int, stop: int) -> Graph:
        a = _room_for(stop - start, ids.shape[1])
        kernels.fill_affinity_of_listed(ids, sims, gamma, start, list_ptr, listers, *a)
        return _cut(a)

    return _join(on_every_core(some_rows, len(ids)))


def local_affinity(neighbors: Neighbors, rows: range | None = None) -> Graph:
    """A_ij = cbrt(x_ij x_ji) K_ij^1.5 exp(-3 d_ij^2 / (s_i s_j)) where i and j are in each other's lists and v_ij > 0.

    v     the cosine of both, d their distance
    x_ij  (v_ij - b_i) / (u_i - b_i), where u_i and b_i are the similarities of the first and the last in i's list
    K_ij  the cosine of both lists, as vectors that hold 1 / (rank + 1) for each member
    s_i   the distance to the 8th neighbour of i
    """
    lists = _for_kernels(neighbors)
    width = lists[0].shape[1]
    if rows is not None:
        return _fill(kernels.fill_local_affinity, lists, width, rows)

    def some_rows(start: int, stop: int) -> Graph:
        return _fill(kernels.fill_local_affinity, lists, width, range(start, stop))

    return _join(on_every_core(some_rows, len(lists[0])))


def _for_kernels(neighbors: Neighbors) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    return np.ascontiguousarray(neighbors.ids).view(np.uint32), np.ascontiguousarray(neighbors.sims)


def _fill(kernel: Callable[..., None], given: tuple[Any, ...], k: int, rows: range) -> Graph:
    a = _room_for(len(rows), k)
    kernel(*given, rows.start, *a)
    return _cut(a)


def _cut(a: Graph) -> Graph:
    """A graph without the room that its edges did not need."""
    count = int(a.indptr[-1])
    return Graph(a.indptr, a.indices[:count].copy(), a.weights[:count].copy())


def _join(parts: Sequence[Graph]) -> Graph:
    """The rows of all parts."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]))])
    indices, weights = (np.concatenate([part[field] for part in parts]) for field in (1, 2))
    return Graph(indptr.astype(np.uint64), indices, weights)


def _room_for(rows: int, k: int) -> Graph:
    """A graph that is not filled yet, of rows with k edges at most."""
    return Graph(np.empty(rows + 1, np.uint64), np.empty(rows * k, np.uint32), np.empty(rows * k, np.float64))


def degrees_of(a: Graph) -> NDArray[np.float64]:
    """The diagonal of D: the sum of each row of A."""
    degrees = np.empty(len(a.indptr) - 1)
    kernels.sum_rows(a.indptr, a.weights, degrees)
    return degrees


def balance(a: Graph, start: int, degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    """Degrees by which dense places count less, of the rows of A from `start` on; `degrees` are those of all nodes.

    With A'_ij = A_ij / (d_i d_j)^p and its sums d'_i, S = D'^-1/2 A' D'^-1/2 is E^-1/2 A E^-1/2 with
    e_i = d'_i d_i^2p = d_i^p sum_j A_ij d_j^-p, so that only degrees change.
    """
    scales = np.zeros(len(degrees))
    np.power(degrees, -_DENSITY, out=scales, where=degrees > 0)
    sums = np.empty(len(a.indptr) - 1)
    kernels.sum_scaled(*a, scales, sums)
    return np.asarray(sums * degrees[start : start + len(sums)] ** _DENSITY)


def sums_of_balanced(degrees: NDArray[np.float64], balanced: NDArray[np.float64]) -> NDArray[np.float64]:
    """d', the sums of A', by the degrees d and what `balance` made of them: e_i = d'_i d_i^2p."""
    sums = np.zeros(len(degrees))
    np.divide(balanced, degrees ** (2 * _DENSITY), out=sums, where=degrees > 0)
    return sums


def transition(a: Graph, start: int = 0, degrees: NDArray[np.float64] | None = None) -> Graph:
    """S = D^-1/2 A D^-1/2 (eq. 2); a node without neighbours keeps an empty row.

    Where `a` holds only the rows of A from `start` on, `degrees` are those of all nodes.
    """
    weights = np.empty_like(a.weights)
    kernels.normalize_affinity(*a, start, degrees_of(a) if degrees is None else degrees, weights)
    return a._replace(weights=weights)


def transition_of(lists: Neighbors, params: Params) -> Graph:
    """S of the graph of these lists, as the parameters say."""
    a = weigh_edges(lists, params)
    degrees = degrees_of(a)
    return transition(a, 0, degrees if params.graph == "paper" else balance(a, 0, degrees))


def order_along(graph: Graph, group: int) -> NDArray[np.uint32]:
    """All nodes, so that each `group` of them, one after the other, are near to each other on the graph.

    What is near on the graph is then near in memory, and what is solved together has nearly one support.
    """
    return order_of_wanted(graph, group, np.ones(len(graph.indptr) - 1, bool))[0]


def order_of_wanted(graph: Graph, group: int, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.uint32], int]:
    """The same with the wanted nodes first, and how many that are: a few others may fill up their groups."""
    degrees = np.diff(graph.indptr)
    order = np.empty(len(degrees), np.uint32)
    # Groups are made where the graph is densest first: what is left over lies at the edge.
    densest_first = np.argsort(degrees.max(initial=0) - degrees, kind="stable").astype(np.uint32)
    count = kernels.number_along(densest_first, wanted.view(np.uint8), group, *graph, order)
    return order, count


def inverse(order: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """At which row of the order each node stands."""
    row = np.empty_like(order)
    row[order] = np.arange(len(order), dtype=order.dtype)
    return row


def number_rows(graph: Graph, nodes: NDArray[np.uint32], number: NDArray[np.uint32]) -> Graph:
    """The rows of `nodes`, one after another, where node i is now called number[i]."""
    new = _with_rows_of(graph, nodes)
    kernels.renumber(nodes, number, *graph, new.indices, new.weights)
    return new


def reorder(graph: Graph, order: NDArray[np.uint32]) -> Graph:
    """The same graph with node order[i] as its node i."""
    number, new = inverse(order), _with_rows_of(graph, order)

    def some_rows(start: int, stop: int) -> None:
        rows = slice(int(new.indptr[start]), int(new.indptr[stop]))
        kernels.renumber(order[start:stop], number, *graph, new.indices[rows], new.weights[rows])

    on_every_core(some_rows, len(order))
    return new


def _with_rows_of(graph: Graph, nodes: NDArray[np.uint32]) -> Graph:
    """A graph that is not filled yet, whose rows are as long as those of these nodes."""
    indptr = np.zeros(len(nodes) + 1, np.uint64)
    np.cumsum(graph.indptr[nodes + 1] - graph.indptr[nodes], out=indptr[1:])
    return Graph(indptr, np.empty(int(indptr[-1]), np.uint32), np.empty(int(indptr[-1]), np.float64))


def summarize(graph: Graph) -> GraphSummary:
    """Degrees, isolated nodes and connected components."""
    degrees = np.diff(graph.indptr).astype(np.int64)
    components = np.empty(len(degrees), np.uint32)
    kernels.join_components(graph.indptr, graph.indices, components)
    sizes = np.bincount(components)
    return GraphSummary(
        edges=len(graph.indices) // 2,
        degree_mean=round(float(degrees.mean()), 3),
        degree_median=float(np.median(degrees)),
        degree_largest=int(degrees.max()),
        isolated=int((degrees == 0).sum()),
        components=int(np.count_nonzero(sizes)),
        largest_component=int(sizes.max()),
    )
