"""Images and their regions: which belong together, how well they match a query, how their scores become one."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.kernels.nearest import raise_to_best
from suffuse.core.neighbors import Features, Neighbors

# Gallery rows that are compared at a time: few enough that all similarities are never held at once.
_BLOCK_ROWS = 16384


class Members(NamedTuple):
    """The regions of some images, image after image."""

    images: NDArray[np.int64]  # (i,), those that have any
    starts: NDArray[np.int64]  # (i,), where the regions of each begin
    rows: NDArray[np.int64]  # (r,), the regions


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of a gallery: unit rows (n, d), the image of each (n,), in any order, and the number of images."""

    features: Features
    owners: NDArray[np.int32]
    images: int

    @functools.cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.owners, kind="stable")

    @functools.cached_property
    def _ptr(self) -> NDArray[np.int64]:
        sizes = np.bincount(self.owners, minlength=self.images)
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def members(self, images: NDArray[np.integer]) -> Members:
        """The regions of the given images, in the order of their ids; images without regions are left out."""
        ptr, chosen = self._ptr, np.sort(images)
        chosen = chosen[ptr[chosen + 1] > ptr[chosen]]
        sizes = ptr[chosen + 1] - ptr[chosen]
        starts = np.cumsum(sizes) - sizes
        return Members(chosen, starts, self._order[np.repeat(ptr[chosen] - starts, sizes) + np.arange(sizes.sum())])


def match_regions(
    regions: Features, features: Features, owners: NDArray[np.int32] | None, images: int
) -> NDArray[np.float32]:
    """sum_r max_i regions[r] . features[i] over the elements i of each image; -inf for an image without any, (images,).

    regions (r, d) are those of one query, features (n, d) those of the gallery, `owners` (n,) the image of each, in any
    order; None where each element is an image.
    """
    best = np.full((images, len(regions)), -np.inf, np.float32)
    transposed = np.ascontiguousarray(regions.T)
    for start in range(0, len(features), _BLOCK_ROWS):
        sims = features[start : start + _BLOCK_ROWS] @ transposed
        if owners is None:
            best[start : start + _BLOCK_ROWS] = sims
        else:
            raise_to_best(sims, owners[start : start + _BLOCK_ROWS].view(np.uint32), best)
    return np.asarray(best.sum(axis=1))


def pool_seeds(found: Neighbors, count: int) -> Neighbors:
    """The seeds of a query with several regions (Iscen et al.): similarities summed over its regions, the best `count`.

    `found` are the nearest elements of each region, (r, s); the result has one row, ties by id. To sum before the
    exponent gamma is applied favours elements that several regions agree on.
    """
    ids, row = np.unique(found.ids, return_inverse=True)
    sums = np.bincount(row.ravel(), found.sims.ravel().astype(np.float64)).astype(np.float32)
    order = np.argsort(-sums, kind="stable")[:count]
    return Neighbors(ids[order][None], sums[order][None])


def pooling_weights(regions: Regions, ridge: float = 1.0) -> NDArray[np.float64]:
    """Generalised max pooling: w of each image with (K + ridge I) w = 1, where K are products of its regions, (n,).

    The weighted sum of an image's scores then counts regions that resemble each other about once.
    """
    weights = np.empty(len(regions.features))
    for image in range(regions.images):
        rows = regions.members(np.array([image])).rows
        own = regions.features[rows].astype(np.float64)
        weights[rows] = np.linalg.solve(own @ own.T + ridge * np.eye(len(rows)), np.ones(len(rows)))
    return weights
