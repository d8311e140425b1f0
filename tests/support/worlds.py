"""A small gallery with its graph for the baselines, and what their rankings of it must be."""

import dataclasses

import numpy as np
from tests.support import reference
from tests.support import reference_baselines as twin

from suffuse.core.graph import Graph, affinity, transition
from suffuse.core.neighbors import Neighbors, nearest_to_rows
from suffuse.core.params import Params
from suffuse.research import baselines

N, D, IMAGES = 90, 10, 31
EXACT = 1000  # iterations, far more than conjugate gradient needs
PARAMS = Params(k=8, truncation=30, alpha=0.95, tolerance=1e-10)
# Image 30 has no regions; the others about three each, in no order.
OWNERS = np.random.default_rng(5).permutation(np.arange(N) % 30).astype(np.int32)


@dataclasses.dataclass
class World:
    """A small gallery with its graph, sparse for the methods and dense for their twins."""

    features: np.ndarray
    neighbors: Neighbors
    a: Graph
    s: Graph
    alpha_s: Graph
    dense_a: np.ndarray
    dense_s: np.ndarray

    def method(self, name, **changes):
        """A method by name, made from this gallery."""
        params = dataclasses.replace(PARAMS, **changes)
        return {
            "knn": lambda: baselines.Cosine(self.features),
            "aqe": lambda: baselines.QueryExpansion(self.features),
            "alpha-qe": lambda: baselines.QueryExpansion(self.features, alpha=3.0),
            "dba": lambda: baselines.Cosine(baselines.augment_database(self.features, self.neighbors, 5)),
            "online": lambda: baselines.Online(self.features, self.alpha_s, params, 5, EXACT),
            "online-early": lambda: baselines.Online(self.features, self.a, params, 5, EXACT, "early"),
            "online-late": lambda: baselines.Online(self.features, self.alpha_s, params, 5, EXACT, "late"),
            "spectral": lambda: baselines.Spectral.build(self.features, self.s, params, 20, 5),
        }[name]()


def world_of(features):
    neighbors = nearest_to_rows(features, 0, len(features), PARAMS.k)
    a = affinity(neighbors, PARAMS.gamma)
    s = transition(a)
    alpha_s = s._replace(weights=PARAMS.alpha * s.weights)
    return World(features, neighbors, a, s, alpha_s, reference.dense(a), reference.dense(s))


def scores_by_id(ranking, n):
    """The scores of full rankings, (m, n), by id."""
    scores = np.empty(ranking.scores.shape)
    np.put_along_axis(scores, ranking.ids, ranking.scores, axis=1)
    assert scores.shape[1] == n
    return scores


def assert_ranks(ranking, expected, similarities):
    """Full rankings agree with expected scores (m, n) up to rounding, and follow the common rule to the letter."""
    found = scores_by_id(ranking, expected.shape[1])
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-4, atol=1e-6 * expected.max())
    for ids, scores, sims in zip(ranking.ids, found, similarities, strict=True):
        assert ids.tolist() == twin.ranked(scores, sims)
