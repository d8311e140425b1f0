"""Districts: a coarse graph of groups of nodes, whose diffusion orders what columns do not reach.

A column holds some hundred images; a class may have thousands. Nodes are grouped twice along the strongest edges, some
45 to a district. With A' the affinity and d' its sums, districts have A_2 = P^T A' P and d_2 = P^T d', and the columns
c_h of the inverse of I - alpha S_2 tell how near districts are. Each element belongs to two districts with shares m_i:

    G_j = sum_i y_i m_i^T R C R m_j,    R = D_2^-1/2

is what diffusion from the seeds y would be, far away from them.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.columns import Columns, Solved, group_size, solve_columns
from suffuse.core.graph import Graph, inverse, order_along, reorder, transition
from suffuse.core.kernels import graph as kernels
from suffuse.core.params import Params

# Nodes of a group, and the most that it can get; two levels of groups are a district. Components of no more nodes than
# this are too small for districts of their own (docs/lab/graph.md).
_GROUP, _MOST, _SMALL = 8, 12, 20
_NONE = np.uint32(0xFFFFFFFF)


class Districts(NamedTuple):
    """Districts, and who belongs to them."""

    members: NDArray[np.int32]  # (n, 2), the two districts of each element; -1 where it has none
    shares: NDArray[np.float16]  # (n,), that of the first
    columns: Columns  # R C R, of each district


class Coarse(NamedTuple):
    """A graph whose nodes are groups."""

    group: NDArray[np.uint32]  # (n,), the group of each node
    alpha_s: Graph
    degrees: NDArray[np.float64]


def coarsen(alpha_s: Graph, degrees: NDArray[np.float64]) -> Coarse:
    """Groups of nodes that are tied the most, and alpha S between them; `degrees` are the sums of A'."""
    group, edges = np.empty(len(degrees), np.uint32), np.diff(alpha_s.indptr)
    densest_first = np.argsort(edges.max(initial=0) - edges, kind="stable").astype(np.uint32)
    groups = kernels.group_nodes(densest_first, _GROUP, _MOST, *alpha_s, group)
    grouped = group != _NONE
    members = np.argsort(group, kind="stable")[: grouped.sum()].astype(np.uint32)
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(group[grouped], minlength=groups))]).astype(np.uint64)
    sums = np.bincount(group[grouped], degrees[grouped], minlength=groups).astype(np.float64, copy=False)
    # A'_ij = S_ij sqrt(d'_i d'_j); and back again with the degrees of groups.
    roots, indptr = np.sqrt(degrees), np.empty(groups + 1, np.uint64)
    nothing = np.empty(0, np.uint32), np.empty(0)
    kernels.merge_groups(group_ptr, members, group, roots, *alpha_s, indptr, *nothing)
    indices, weights = np.empty(int(indptr[-1]), np.uint32), np.empty(int(indptr[-1]))
    kernels.merge_groups(group_ptr, members, group, roots, *alpha_s, indptr, indices, weights)
    return Coarse(group, transition(Graph(indptr, indices, weights), 0, sums), sums)


def find_homes(
    alpha_s: Graph, groups: Coarse, districts: Coarse, order: NDArray[np.uint32], lists: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The district of each element, -1 for none. Node i is element order[i]; `lists` are the k-NN lists of elements.

    Elements of small components take that of the first in their list that lies in a larger one.
    """
    grouped, components = groups.group != _NONE, np.empty(len(order), np.uint32)
    kernels.join_components(alpha_s.indptr, alpha_s.indices, components)
    home, small = np.full(len(order), -1, np.int32), np.empty(len(order), bool)
    home[order[grouped]] = districts.group[groups.group[grouped]].view(np.int32)  # no group is -1
    small[order] = np.bincount(components, minlength=len(order))[components] <= _SMALL
    alone = np.flatnonzero(small)
    return adopt_homes(home, small, alone, lists[alone])


def adopt_homes(
    home: NDArray[np.int32], homeless: NDArray[np.bool_], elements: NDArray[np.int64], lists: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The homes, where these elements have that of the first in their lists that is not homeless, if there is one."""
    there = ~homeless[lists]
    first = lists[np.arange(len(elements)), there.argmax(axis=1)]
    adopted = home.copy()
    adopted[elements] = np.where(there.any(axis=1), home[first], home[elements])
    return adopted


def solve_districts(districts: Coarse, params: Params) -> Columns:
    """R C R of all districts, coded."""
    alpha_s, scales = districts.alpha_s, 1 / np.sqrt(np.maximum(districts.degrees, np.finfo(np.float64).tiny))
    params = dataclasses.replace(params, support="graph", values="uint8")
    group = group_size(params)
    order = order_along(alpha_s, group)
    solved = solve_columns(reorder(alpha_s, order), 0, len(order), params, order=order)
    (starts, stops, entries, values), lengths, residuals = solved
    column_of = np.repeat(np.arange(len(order)), lengths)
    scaled = (values * scales[entries] * scales[order][column_of]).astype(np.float32)
    largest_first = np.lexsort((-scaled, column_of))
    by_district = Columns(starts, stops, entries[largest_first], scaled[largest_first]).decode(inverse(order))
    return Solved(by_district, by_district.stops - by_district.starts, residuals).encode().columns


def place_columns(heads: Columns, home: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The two districts with the most of each column, by its largest entries, and the share of the first."""
    members, shares = np.empty((len(heads.starts), 2), np.int32), np.empty(len(heads.starts), np.float32)
    kernels.find_districts(heads.indptr, heads.entries.view(np.uint32), heads.values, home, members, shares)
    return members, shares.astype(np.float16)


def diffuse_far(districts: Districts, seeds: NDArray[np.integer], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """G of all elements for one query (n,): 0 for those without a district."""
    members, shares, columns = districts
    of, first = members[seeds], weights * shares[seeds]
    starts, given = of.T.ravel(), np.concatenate([first, weights - first])
    there = (starts >= 0) & (given != 0)
    read = columns.decode(starts[there])
    amounts = np.repeat(given[there], np.diff(read.indptr)) * read.values
    field = np.append(np.bincount(read.entries, amounts, minlength=len(columns.starts)), 0).astype(np.float32)
    first_share = shares.astype(np.float32)
    return np.asarray(first_share * field[members[:, 0]] + (1 - first_share) * field[members[:, 1]])
