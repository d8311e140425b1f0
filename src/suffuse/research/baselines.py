"""The rankings that diffusion is compared with, each as good and as fast as a careful person would write it.

Each is a frozen value made of what is computed offline, with a method `rank(queries, top) -> Hits`, or
`rank(query_regions, query_ptr, top)` where a query has several regions. Below the border: unit rows in float32.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import Graph
from suffuse.core.kernels.solve import diffuse_early, diffuse_late, diffuse_whole, rank_positive
from suffuse.core.neighbors import Features, Neighbors, nearest
from suffuse.core.params import Params
from suffuse.core.regions import Regions, match_regions, pool_seeds
from suffuse.errors import name_extra
from suffuse.index.search import Hits

# Where Iscen et al. stop. On Oxford5k no mAP changes by more than 0.3 if CG goes on to the end, at over twice the time.
ITERATIONS = 20
# Elements that are augmented at a time: each needs `expand` rows in memory.
_BLOCK_ROWS = 1024
# Lanczos keeps 2R vectors orthogonal to each other: up to so many times R the dense algorithm is faster (measured).
_DENSE_UP_TO = 8


class Solution(NamedTuple):
    """f of one query on the elements that a diffusion looked at."""

    ids: NDArray[np.uint32]  # (s,)
    f: NDArray[np.float64]  # (s,)


def fill_by_cosine(solutions: Iterable[Solution], queries: Features, features: Features, top: int) -> Hits:
    """Elements with a positive score first, then the rest by cosine with the score 0: all of them where top = n.

    There is one solution for each of the queries (m, d); `features` (n, d) are what they rank.
    """
    n = len(features)
    top = min(top, n)
    ids, scores = np.empty((len(queries), top), np.int64), np.zeros((len(queries), top), np.float32)
    for q, solution in enumerate(solutions):
        count = rank_positive(*solution, ids[q], scores[q])
        if count < top:
            # At most `count` of the nearest are there already, so these are always enough.
            plain = nearest(queries[q : q + 1], features, min(top + count, n)).ids[0]
            ids[q, count:] = plain[~np.isin(plain, ids[q, :count])][: top - count]
    return Hits(ids, scores)


def sort_scores(scores: NDArray[np.float32], top: int) -> Hits:
    """The `top` best of all elements by their scores (m, n), of whatever sign, ties by id."""
    # A stable sort leaves ties in the order of ids.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return Hits(order, np.take_along_axis(scores, order, axis=1))


@dataclass(frozen=True, eq=False)
class Cosine:
    """`knn`: the ranking by cosine; over augmented features, `dba`."""

    features: Features

    def rank(self, queries: Features, top: int) -> Hits:
        """The `top` nearest elements of each query (m, d)."""
        found = nearest(queries, self.features, top)
        return Hits(found.ids.astype(np.int64), found.sims)


@dataclass(frozen=True, eq=False)
class QueryExpansion:
    """Search, add the `expand` nearest elements to the query, search again with the sum."""

    features: Features
    expand: int = 10
    alpha: float = 0.0  # of the weights max(sim, 0) ** alpha: 0 is `aqe`, any other `alpha-qe` (Radenović et al.)

    def rank(self, queries: Features, top: int) -> Hits:
        """The `top` elements nearest to each expanded query (m, d)."""
        return Cosine(self.features).rank(expand_queries(queries, self.features, self.expand, self.alpha), top)


def expand_queries(queries: Features, features: Features, expand: int, alpha: float = 0.0) -> Features:
    """q + sum_j max(sim_j, 0) ** alpha x_j over the `expand` nearest elements x_j, scaled to unit length, (m, d)."""
    return _add_neighbors(queries, features, nearest(queries, features, expand), alpha)


def augment_database(features: Features, neighbors: Neighbors, expand: int = 10, alpha: float = 0.0) -> Features:
    """DBA: each element becomes the sum of itself and its `expand` nearest, weighted as in alpha-QE, of unit length.

    `neighbors` are the lists of the graph, (n, k) with k > expand, in which each element comes first itself.
    """
    augmented = np.empty(features.shape, np.float32)
    for start in range(0, len(features), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        others = Neighbors(neighbors.ids[rows, 1 : expand + 1], neighbors.sims[rows, 1 : expand + 1])
        augmented[rows] = _add_neighbors(features[rows], features, others, alpha)
    return augmented


def _add_neighbors(rows: Features, features: Features, others: Neighbors, alpha: float) -> Features:
    # 0 ** 0 = 1: AQE counts every neighbour.
    weights = weigh_seeds(others.sims, alpha).astype(np.float32)
    sums = rows + (weights[:, :, None] * features[others.ids]).sum(axis=1)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    # A row that its neighbours cancel out has no direction any more: it stays what it was.
    return np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), rows)


def weigh_seeds(sims: NDArray[np.float32], gamma: float) -> NDArray[np.float64]:
    """y at the seeds: max(sim, 0) ** gamma."""
    return np.asarray(np.maximum(sims, 0).astype(np.float64) ** gamma)


@dataclass(frozen=True, eq=False)
class Online:
    """Diffusion per query (Iscen et al., CVPR 2017), with y = max(sim, 0) ** gamma at its `seeds` nearest elements.

    slicing  "whole" (`online`): f = L_alpha^-1 y on the whole graph.
             "late" (`online-late`): f = L_alpha[J, J]^-1 y on the L nearest elements J of the query, sliced after
             normalisation; L is params.truncation.
             "early" (`online-early`, Iscen et al.): f = (I - alpha S_J)^-1 y, where S_J is A[J, J] normalised by the
             degrees within J.
    """

    features: Features
    graph: Graph  # alpha S; for "early" the affinity A
    params: Params
    seeds: int = 10
    iterations: int = ITERATIONS
    slicing: Literal["whole", "late", "early"] = "whole"

    def rank(self, queries: Features, top: int) -> Hits:
        """The `top` best elements for each query (m, d)."""
        # One search gives both the seeds and the support.
        count = self.seeds if self.slicing == "whole" else max(self.params.truncation, self.seeds)
        solutions = self.solve(nearest(queries, self.features, count))
        return fill_by_cosine(solutions, queries, self.features, top)

    def solve(self, found: Neighbors) -> Iterator[Solution]:
        """f of each query, from its nearest elements (m, s): the first are the seeds, all of them the support."""
        weights = weigh_seeds(found.sims, self.params.gamma)
        weights[:, self.seeds :] = 0.0
        everyone, stop = np.arange(len(self.features), dtype=np.uint32), (self.iterations, self.params.tolerance)
        for support, y in zip(found.ids.view(np.uint32), weights, strict=True):
            if self.slicing == "whole":
                whole, f = np.zeros(len(everyone)), np.empty(len(everyone))
                whole[support] = y
                diffuse_whole(*self.graph, *stop, whole, f)
                yield Solution(everyone, f)
                continue
            f = np.empty(len(support))
            if self.slicing == "late":
                diffuse_late(support, *self.graph, *stop, y, f)
            else:
                diffuse_early(support, *self.graph, self.params.alpha, *stop, y, f)
            yield Solution(support, f)


@dataclass(frozen=True, eq=False)
class OnlineRegional:
    """`online-regional`: diffusion over the regions of the images that are nearest by global features.

    The score of an image is the sum over its regions.
    """

    features: Features  # (images, D), global ones: params.truncation of them bound each query
    regions: Regions
    graph: Graph  # the affinity A of all regions, sliced and normalised as in `online-early`
    params: Params
    seeds: int = 200  # regions that carry y, the best by summed similarity (`pool_seeds`)
    iterations: int = ITERATIONS

    def rank(self, query_regions: Features, query_ptr: NDArray[np.int64], top: int, queries: Features) -> Hits:
        """The `top` best images for each query: its regions are query_regions[query_ptr[q]:query_ptr[q + 1]].

        queries (m, D) are the global features of the queries; images that the regions did not reach follow by them.
        """
        bounds = nearest(queries, self.features, self.params.truncation).ids
        parts = (query_regions[a:b] for a, b in itertools.pairwise(query_ptr.tolist()))
        solutions = (self._solve(regions, images) for regions, images in zip(parts, bounds, strict=True))
        return fill_by_cosine(solutions, queries, self.features, top)

    def _solve(self, query_regions: Features, images: NDArray[np.int32]) -> Solution:
        """f on the regions of the given images, pooled to the images."""
        members = self.regions.members(images)
        if not len(members.rows):
            return Solution(np.empty(0, np.uint32), np.empty(0))
        support = members.rows.astype(np.uint32)
        seeds = pool_seeds(nearest(query_regions, self.regions.features[members.rows], self.seeds), self.seeds)
        y, f = np.zeros(len(support)), np.empty(len(support))
        y[seeds.ids[0]] = weigh_seeds(seeds.sims[0], self.params.gamma)
        diffuse_early(support, *self.graph, self.params.alpha, self.iterations, self.params.tolerance, y, f)
        return Solution(members.images.astype(np.uint32), np.add.reduceat(f, members.starts))


@dataclass(frozen=True, eq=False)
class RMatch:
    """`r-match`: for each query region the best similarity within an image, summed: sum_r max_i q_r . x_i."""

    gallery: Regions
    expand: int = 0  # `r-match-aqe`: first each query region is averaged with so many nearest regions

    def rank(self, query_regions: Features, query_ptr: NDArray[np.int64], top: int) -> Hits:
        """The `top` images for each query, whose regions are query_regions[query_ptr[q]:query_ptr[q + 1]].

        Images without regions come last, with the score -inf.
        """
        gallery = self.gallery
        if self.expand:
            query_regions = expand_queries(query_regions, gallery.features, self.expand)
        scores = [
            match_regions(query_regions[a:b], gallery.features, gallery.owners, gallery.images)
            for a, b in itertools.pairwise(query_ptr.tolist())
        ]
        return sort_scores(np.array(scores), top)


class Component(NamedTuple):
    """A connected component of the graph, and the first eigenvectors of its part of S."""

    nodes: NDArray[np.uint32]  # (c,), sorted
    basis: NDArray[np.float32]  # (c, min(R, c)), U
    response: NDArray[np.float32]  # (min(R, c),), h(lambda) = (1 - alpha) / (1 - alpha lambda)


@dataclass(frozen=True, eq=False)
class Spectral:
    """`spectral` (Iscen et al., CVPR 2018): f = U h(Lambda) U^T y, without what varies too fast along the graph."""

    features: Features
    components: list[Component]
    component_of: NDArray[np.int64]  # (n,)
    gamma: float
    seeds: int = 10

    @classmethod
    def build(cls, features: Features, s: Graph, params: Params, rank: int = 1000, seeds: int = 10) -> Self:
        """The offline part: the eigenvectors of S (not alpha S)."""
        components = decompose(s, rank, params.alpha)
        component_of = np.empty(len(features), np.int64)
        for c, component in enumerate(components):
            component_of[component.nodes] = c
        return cls(features, components, component_of, params.gamma, seeds)

    @property
    def bytes(self) -> int:
        """The size of what is kept for the online part, without the features."""
        return sum(array.nbytes for component in self.components for array in component)

    def rank(self, queries: Features, top: int) -> Hits:
        """The `top` best elements for each query (m, d)."""
        solutions = self.solve(nearest(queries, self.features, self.seeds))
        return fill_by_cosine(solutions, queries, self.features, top)

    def solve(self, seeds: Neighbors) -> Iterator[Solution]:
        """f = U h(Lambda) U^T y for each query, y = max(sim, 0) ** gamma at its seeds (m, s), where it can be non-zero.

        Query by query: the last bits of a product of matrices depend on how many there are.
        """
        for ids, weights in zip(seeds.ids, weigh_seeds(seeds.sims, self.gamma).astype(np.float32), strict=True):
            nodes, scores = [], []
            for c in np.unique(self.component_of[ids]):
                component, here = self.components[c], self.component_of[ids] == c
                frequencies = weights[here] @ component.basis[component.nodes.searchsorted(ids[here])]
                nodes.append(component.nodes)
                scores.append(component.basis @ (component.response * frequencies))
            yield Solution(np.concatenate(nodes), np.concatenate(scores).astype(np.float64))


def decompose(s: Graph, rank: int, alpha: float) -> list[Component]:
    """S ~ U diag(lambda) U^T with the `rank` largest eigenvalues, for each connected component on its own.

    S is block-diagonal, so this costs less, a component no larger than `rank` is exact, and the eigenvalue 1, which
    each component has once, does not become a multiple one, of which Lanczos may miss copies.
    """
    with name_extra("scipy", "research"):
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components
    n = len(s.indptr) - 1
    matrix: Any = csr_array((s.weights, s.indices.astype(np.int64), s.indptr.astype(np.int64)), shape=(n, n))
    count, labels = connected_components(matrix, directed=False)
    order = np.argsort(labels, kind="stable")
    components = []
    for nodes in np.split(order, np.searchsorted(labels[order], np.arange(1, count))):
        values, vectors = _find_largest_eigenpairs(matrix[nodes][:, nodes], rank)
        response = ((1 - alpha) / (1 - alpha * values)).astype(np.float32)
        basis = np.ascontiguousarray(vectors, np.float32)
        components.append(Component(nodes.astype(np.uint32), basis, response))
    return components


def _find_largest_eigenpairs(block: Any, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `rank` largest eigenvalues (r,) of a symmetric sparse block, and their vectors (c, r)."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import eigsh

    size = block.shape[0]
    if size == 1:
        return np.zeros(1), np.ones((1, 1))
    if size <= _DENSE_UP_TO * rank:
        return eigh(block.toarray(), subset_by_index=[max(size - rank, 0), size - 1])
    # A start of our own, since scipy's differs each time; not all ones, which may itself be an eigenvector.
    return eigsh(block, k=rank, which="LA", v0=np.random.default_rng(0).random(size))
