"""Diffusion solved for each query when it is asked (Iscen et al., CVPR 2017): on the whole graph, or a slice of it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import Graph
from suffuse.core.kernels.solve import diffuse_early, diffuse_late, diffuse_whole
from suffuse.core.neighbors import Features, Neighbors, nearest
from suffuse.core.params import Params
from suffuse.core.regions import Regions, pool_seeds
from suffuse.research.baselines.ranking import Ranking, Scored, positive_first

# Where Iscen et al. stop. On Oxford5k no mAP changes by more than 0.3 if CG goes on to the end, at over twice the time.
ITERATIONS = 20


def seed_weights(sims: NDArray[np.float32], gamma: float) -> NDArray[np.float64]:
    """y at the seeds: max(sim, 0) ** gamma."""
    return np.asarray(np.maximum(sims, 0).astype(np.float64) ** gamma)


def online_diffusion(
    alpha_s: Graph, seeds: Neighbors, gamma: float, iterations: int = ITERATIONS, tolerance: float = 1e-6
) -> Iterator[Scored]:
    """f = L_alpha^-1 y for each query on the whole graph, y = max(sim, 0) ** gamma at its seeds (m, s)."""
    everyone = np.arange(len(alpha_s.indptr) - 1, dtype=np.uint32)
    for ids, weights in zip(seeds.ids, seed_weights(seeds.sims, gamma), strict=True):
        y, f = np.zeros(len(everyone)), np.empty(len(everyone))
        y[ids] = weights
        diffuse_whole(*alpha_s, iterations, tolerance, y, f)
        yield Scored(everyone, f)


def late_diffusion(
    alpha_s: Graph,
    support: Neighbors,
    seeds: int,
    gamma: float,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-6,
) -> Iterator[Scored]:
    """f = L_alpha[J, J]^-1 y on the L nearest elements J of each query (m, L), whose first `seeds` carry y."""
    for ids, y in _on_supports(support, seeds, gamma):
        f = np.empty(len(ids))
        diffuse_late(ids, *alpha_s, iterations, tolerance, y, f)
        yield Scored(ids, f)


def early_diffusion(
    affinity: Graph,
    alpha: float,
    support: Neighbors,
    seeds: int,
    gamma: float,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-6,
) -> Iterator[Scored]:
    """f = (I - alpha S_J)^-1 y: as `late_diffusion`, but S_J is A[J, J] normalised by the degrees within J."""
    for ids, y in _on_supports(support, seeds, gamma):
        f = np.empty(len(ids))
        diffuse_early(ids, *affinity, alpha, iterations, tolerance, y, f)
        yield Scored(ids, f)


def _on_supports(support: Neighbors, seeds: int, gamma: float) -> Iterator[Scored]:
    """The ids of each support, and y on it: the support is sorted, so its first elements are the seeds."""
    weights = seed_weights(support.sims, gamma)
    weights[:, seeds:] = 0.0
    for ids, y in zip(support.ids.view(np.uint32), weights, strict=True):
        yield Scored(ids, y)


@dataclass(frozen=True, eq=False)
class Online:
    """`online`: each query on the whole graph alpha_s = alpha S; of `params` it uses gamma and tolerance."""

    features: Features
    alpha_s: Graph
    params: Params
    seeds: int = 10
    iterations: int = ITERATIONS

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` best elements for each query (m, d)."""
        seeds = nearest(queries, self.features, self.seeds)
        scored = online_diffusion(self.alpha_s, seeds, self.params.gamma, self.iterations, self.params.tolerance)
        return positive_first(scored, queries, self.features, top)


@dataclass(frozen=True, eq=False)
class OnlineLate:
    """`online-late`: each query on its L nearest, sliced from alpha_s after normalisation; L is params.truncation."""

    features: Features
    alpha_s: Graph
    params: Params
    seeds: int = 10
    iterations: int = ITERATIONS

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` best elements for each query (m, d)."""
        support, p = _support(queries, self.features, self.params.truncation, self.seeds), self.params
        scored = late_diffusion(self.alpha_s, support, self.seeds, p.gamma, self.iterations, p.tolerance)
        return positive_first(scored, queries, self.features, top)


@dataclass(frozen=True, eq=False)
class OnlineEarly:
    """`online-early`: each query on its L nearest, sliced from the affinity A and normalised then (Iscen et al.)."""

    features: Features
    affinity: Graph
    params: Params
    seeds: int = 10
    iterations: int = ITERATIONS

    def rank(self, queries: Features, top: int) -> Ranking:
        """The `top` best elements for each query (m, d)."""
        support, p = _support(queries, self.features, self.params.truncation, self.seeds), self.params
        scored = early_diffusion(self.affinity, p.alpha, support, self.seeds, p.gamma, self.iterations, p.tolerance)
        return positive_first(scored, queries, self.features, top)


def _support(queries: Features, features: Features, truncation: int, seeds: int) -> Neighbors:
    # One search gives both the support and the seeds.
    return nearest(queries, features, max(truncation, seeds))


@dataclass(frozen=True, eq=False)
class OnlineRegional:
    """`online-regional`: diffusion over the regions of the images that are nearest by global features.

    features  (images, D), global ones: params.truncation of them bound each query
    graph     over all regions: the affinity A for slicing="early" (Iscen et al.), alpha S for "late"
    seeds     regions that carry y, the best by summed similarity (`pool_seeds`)
    pooling   how the scores of an image's regions become one: np.add or np.maximum, of scores times `weights` if there
              are any (`pooling_weights` with np.add: generalised max pooling, the choice of Iscen et al.)
    """

    features: Features
    regions: Regions
    graph: Graph
    params: Params
    seeds: int = 200
    iterations: int = ITERATIONS
    slicing: Literal["early", "late"] = "early"
    pooling: np.ufunc = np.add
    weights: NDArray[np.float64] | None = None

    def rank(self, query_regions: Features, query_ptr: NDArray[np.int64], top: int, queries: Features) -> Ranking:
        """The `top` best images for each query: its regions are query_regions[query_ptr[q]:query_ptr[q + 1]].

        queries (m, D) are the global features of the queries; images that the regions did not reach follow by them.
        """
        bounds = nearest(queries, self.features, self.params.truncation).ids
        parts = (query_regions[a:b] for a, b in itertools.pairwise(query_ptr.tolist()))
        scored = (self._score(regions, images) for regions, images in zip(parts, bounds, strict=True))
        return positive_first(scored, queries, self.features, top)

    def _score(self, query_regions: Features, images: NDArray[np.int32]) -> Scored:
        """f on the regions of the given images, pooled to the images."""
        members = self.regions.members(images)
        if not len(members.rows):
            return Scored(np.empty(0, np.uint32), np.empty(0))
        support = members.rows.astype(np.uint32)
        seeds = pool_seeds(nearest(query_regions, self.regions.features[members.rows], self.seeds), self.seeds)
        y, f = np.zeros(len(support)), np.empty(len(support))
        y[seeds.ids[0]] = seed_weights(seeds.sims[0], self.params.gamma)
        stop = (self.iterations, self.params.tolerance)
        if self.slicing == "early":
            diffuse_early(support, *self.graph, self.params.alpha, *stop, y, f)
        else:
            diffuse_late(support, *self.graph, *stop, y, f)
        if self.weights is not None:
            f *= self.weights[members.rows]
        return Scored(members.images.astype(np.uint32), self.pooling.reduceat(f, members.starts))
