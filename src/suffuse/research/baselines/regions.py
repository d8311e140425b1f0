"""Regional search without diffusion: R-match, with and without query expansion."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffuse.core.neighbors import Features
from suffuse.core.regions import Regions, match_regions
from suffuse.research.baselines.expansion import expand_queries
from suffuse.research.baselines.ranking import Ranking, by_score

# `Regions` is what these methods are made of, hence found here too.
__all__ = ["RMatch", "RMatchExpansion", "Regions", "r_match", "r_match_aqe"]


def r_match(query_regions: Features, query_ptr: NDArray[np.int64], gallery: Regions, top: int) -> Ranking:
    """For each query region the best similarity within an image, summed: sum_r max_i q_r . x_i.

    Query q has the rows query_ptr[q]:query_ptr[q + 1]. Images without regions come last, with the score -inf.
    """
    scores = [
        match_regions(query_regions[a:b], gallery.features, gallery.owners, gallery.images)
        for a, b in itertools.pairwise(query_ptr.tolist())
    ]
    return by_score(np.array(scores), top)


def r_match_aqe(
    query_regions: Features,
    query_ptr: NDArray[np.int64],
    gallery: Regions,
    top: int,
    expand: int = 10,
    alpha: float = 0.0,
) -> Ranking:
    """R-match with each query region averaged with its `expand` nearest regions, weighted as in alpha-QE."""
    return r_match(expand_queries(query_regions, gallery.features, expand, alpha), query_ptr, gallery, top)


@dataclass(frozen=True, eq=False)
class RMatch:
    """`r-match`."""

    gallery: Regions

    def rank(self, query_regions: Features, query_ptr: NDArray[np.int64], top: int) -> Ranking:
        """The `top` images for each query, whose regions are query_regions[query_ptr[q]:query_ptr[q + 1]]."""
        return r_match(query_regions, query_ptr, self.gallery, top)


@dataclass(frozen=True, eq=False)
class RMatchExpansion:
    """`r-match-aqe`."""

    gallery: Regions
    expand: int = 10
    alpha: float = 0.0

    def rank(self, query_regions: Features, query_ptr: NDArray[np.int64], top: int) -> Ranking:
        """The `top` images for each query, whose regions are query_regions[query_ptr[q]:query_ptr[q + 1]]."""
        return r_match_aqe(query_regions, query_ptr, self.gallery, top, self.expand, self.alpha)
