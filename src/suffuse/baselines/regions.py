"""Regional search without diffusion: R-match, with and without query expansion."""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.baselines.expansion import expand_queries
from suffuse.baselines.ranking import Ranking, by_score
from suffuse.matching import match_regions
from suffuse.neighbors import Features


class Members(NamedTuple):
    """The regions of some images, image after image."""

    images: NDArray[np.int64]  # (i,), those that have any
    starts: NDArray[np.int64]  # (i,), where the regions of each begin
    rows: NDArray[np.int64]  # (r,), the regions


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of a gallery: unit rows (n, d), the image of each (n,), and how many images there are."""

    features: Features
    owners: NDArray[np.int32]
    images: int

    @functools.cached_property
    def _grouped(self) -> Members:
        """All images, also those without regions."""
        sizes = np.bincount(self.owners, minlength=self.images)
        order = np.argsort(self.owners, kind="stable")
        return Members(np.arange(self.images), np.concatenate([[0], np.cumsum(sizes)]), order)

    def members(self, images: NDArray[np.integer]) -> Members:
        """The regions of the given images, in the order of their ids."""
        _, ptr, order = self._grouped
        chosen = np.sort(images)
        chosen = chosen[ptr[chosen + 1] > ptr[chosen]]
        sizes = ptr[chosen + 1] - ptr[chosen]
        starts = np.cumsum(sizes) - sizes
        return Members(chosen, starts, order[np.repeat(ptr[chosen] - starts, sizes) + np.arange(sizes.sum())])


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
