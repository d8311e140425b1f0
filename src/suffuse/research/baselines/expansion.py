"""Plain search, query expansion, and its mirror image, database augmentation."""

from dataclasses import dataclass

import numpy as np

from suffuse.core.neighbors import Features, Neighbors, nearest
from suffuse.research.baselines.ranking import Ranking, by_similarity

# Elements that are augmented at a time: each needs `expand` rows in memory.
_BLOCK_ROWS = 1024


def average_query_expansion(queries: Features, features: Features, top: int, expand: int = 10) -> Neighbors:
    """AQE: search, average the query with its `expand` nearest elements, search again with that."""
    return alpha_query_expansion(queries, features, top, expand, alpha=0.0)


def alpha_query_expansion(
    queries: Features, features: Features, top: int, expand: int = 10, alpha: float = 3.0
) -> Neighbors:
    """Alpha-QE (Radenović et al.): as AQE, each neighbour weighted by max(sim, 0) ** alpha, the query by 1."""
    return nearest(expand_queries(queries, features, expand, alpha), features, top)


def expand_queries(queries: Features, features: Features, expand: int, alpha: float) -> Features:
    """q + sum_j max(sim_j, 0) ** alpha x_j over the `expand` nearest elements x_j, scaled to unit length, (m, d)."""
    return _expanded(queries, features, nearest(queries, features, expand), alpha)


def augment_database(features: Features, neighbors: Neighbors, expand: int = 10, alpha: float = 0.0) -> Features:
    """DBA: each element becomes the sum of itself and its `expand` nearest, weighted as in alpha-QE, of unit length.

    `neighbors` are the lists of the graph, (n, k) with k > expand, in which each element comes first itself.
    """
    augmented = np.empty(features.shape, np.float32)
    for start in range(0, len(features), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        others = Neighbors(neighbors.ids[rows, 1 : expand + 1], neighbors.sims[rows, 1 : expand + 1])
        augmented[rows] = _expanded(features[rows], features, others, alpha)
    return augmented


def _expanded(rows: Features, features: Features, others: Neighbors, alpha: float) -> Features:
    # 0 ** 0 = 1: AQE counts every neighbour.
    weights = (np.maximum(others.sims, 0).astype(np.float64) ** alpha).astype(np.float32)
    sums = rows + (weights[:, :, None] * features[others.ids]).sum(axis=1)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    # A row that its neighbours cancel out has no direction any more: it stays what it was.
    return np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), rows)


@dataclass(frozen=True, eq=False)
class Cosine:
    """`knn`: the ranking by cosine; over augmented features, `dba`."""

    features: Features

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` nearest elements of each query (m, d)."""
        return by_similarity(nearest(queries, self.features, top))


@dataclass(frozen=True, eq=False)
class QueryExpansion:
    """`aqe` with alpha = 0, `alpha-qe` with any other."""

    features: Features
    expand: int = 10
    alpha: float = 0.0

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` elements nearest to each expanded query (m, d)."""
        return by_similarity(alpha_query_expansion(queries, self.features, top, self.expand, self.alpha))
