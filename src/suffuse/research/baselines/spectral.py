"""Fast spectral ranking (Iscen et al., CVPR 2018): diffusion as a low-pass filter on the graph's eigenvectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import Graph
from suffuse.core.neighbors import Features, Neighbors, nearest
from suffuse.core.params import Params
from suffuse.research.baselines.per_query import seed_weights
from suffuse.research.baselines.ranking import Ranking, Scored, positive_first

# Lanczos keeps 2R vectors orthogonal to each other: up to so many times R the dense algorithm is faster (measured).
_DENSE_UP_TO = 8


class Component(NamedTuple):
    """A connected component of the graph, and the first eigenvectors of its part of S."""

    nodes: NDArray[np.uint32]  # (c,), sorted
    basis: NDArray[np.float32]  # (c, min(R, c)), U
    response: NDArray[np.float32]  # (min(R, c),), h(lambda) = (1 - alpha) / (1 - alpha lambda)


def decompose(s: Graph, rank: int, alpha: float) -> list[Component]:
    """S ~ U diag(lambda) U^T with the `rank` largest eigenvalues, for each connected component on its own.

    S is block-diagonal, so this costs less, a component no larger than `rank` is exact, and the eigenvalue 1, which
    each component has once, does not become a multiple one, of which Lanczos may miss copies.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = len(s.indptr) - 1
    matrix: Any = csr_array((s.weights, s.indices.astype(np.int64), s.indptr.astype(np.int64)), shape=(n, n))
    count, labels = connected_components(matrix, directed=False)
    order = np.argsort(labels, kind="stable")
    components = []
    for nodes in np.split(order, np.searchsorted(labels[order], np.arange(1, count))):
        values, vectors = _largest_eigenpairs(matrix[nodes][:, nodes], rank)
        response = (1 - alpha) / (1 - alpha * values)
        components.append(
            Component(nodes.astype(np.uint32), np.ascontiguousarray(vectors, np.float32), response.astype(np.float32))
        )
    return components


def _largest_eigenpairs(block: Any, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


@dataclass(frozen=True, eq=False)
class Spectral:
    """`spectral`: f = U h(Lambda) U^T y, the diffusion without what varies too fast along the graph."""

    features: Features
    components: list[Component]
    component_of: NDArray[np.int64]  # (n,)
    row_of: NDArray[np.int64]  # (n,), where a node stands in its component
    gamma: float
    seeds: int = 10

    @classmethod
    def build(cls, features: Features, s: Graph, params: Params, rank: int = 1000, seeds: int = 10) -> Self:
        """The offline part: the eigenvectors of S (not alpha S)."""
        components = decompose(s, rank, params.alpha)
        component_of, row_of = np.empty(len(features), np.int64), np.empty(len(features), np.int64)
        for c, component in enumerate(components):
            component_of[component.nodes] = c
            row_of[component.nodes] = np.arange(len(component.nodes))
        return cls(features, components, component_of, row_of, params.gamma, seeds)

    @property
    def bytes(self) -> int:
        """The size of what is kept for the online part, without the features."""
        return sum(array.nbytes for component in self.components for array in component)

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` best elements for each query (m, d)."""
        seeds = nearest(queries, self.features, self.seeds)
        return positive_first(self.filter(seeds), queries, self.features, top)

    def filter(self, seeds: Neighbors) -> Iterator[Scored]:
        """f = U h(Lambda) U^T y for each query, y = max(sim, 0) ** gamma at its seeds (m, s), where it can be non-zero.

        Query by query: the last bits of a product of matrices depend on how many there are.
        """
        for ids, weights in zip(seeds.ids, seed_weights(seeds.sims, self.gamma).astype(np.float32), strict=True):
            nodes, scores = [], []
            for c in np.unique(self.component_of[ids]):
                component, here = self.components[c], self.component_of[ids] == c
                frequencies = weights[here] @ component.basis[self.row_of[ids[here]]]
                nodes.append(component.nodes)
                scores.append(component.basis @ (component.response * frequencies))
            yield Scored(np.concatenate(nodes), np.concatenate(scores).astype(np.float64))
