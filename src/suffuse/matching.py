"""R-match: how well the regions of a query match an image."""

import numpy as np
from numpy.typing import NDArray

from suffuse.kernels.match import raise_to_best
from suffuse.neighbors import Features

# Gallery rows that are compared at a time: their similarities stay in the cache until they are reduced.
_BLOCK_ROWS = 4096


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
