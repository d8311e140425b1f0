"""One feature map to vectors: the regions of R-MAC, their sum, and GeM.

Tolias, Sicre and Jégou, "Particular object retrieval with integral max-pooling of CNN activations" (ICLR 2016):
square regions at three scales; each is max-pooled and scaled to unit length; their sum, scaled, describes the picture.
"""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SCALES = 3
OVERLAP = Fraction("0.4")

# Lengths below this are of regions where nothing was found; dividing by them would make noise out of nothing.
_NOTHING = 1e-12


class Region(NamedTuple):
    """A square of the feature map."""

    top: int
    left: int
    side: int


def list_regions(height: int, width: int) -> list[Region]:
    """The regions of a map: at scale l, squares of side 2 min(h, w) / (l + 1), l along the shorter side.

    Along the longer side there are `more` of them: neighbours of the largest overlap by nearly OVERLAP of their area.
    """
    shorter, longer = min(height, width), max(height, width)
    more = 0
    if longer > shorter:
        # As fractions: ties are real, and rounding must not break them.
        more = min(range(1, 7), key=lambda extra: abs(Fraction(longer - shorter, extra * shorter) - (1 - OVERLAP)))
    regions = []
    for scale in range(1, SCALES + 1):
        side = 2 * shorter // (scale + 1)
        if side < 1:
            break
        tops = _spread_windows(height, side, scale + (more if height > width else 0))
        lefts = _spread_windows(width, side, scale + (more if width > height else 0))
        regions += [Region(top, left, side) for top in tops for left in lefts]
    return regions


def _spread_windows(length: int, side: int, count: int) -> list[int]:
    """Where `count` windows begin that are spread evenly from one end to the other."""
    return [(length - side) * number // (count - 1) if count > 1 else 0 for number in range(count)]


def pool_regions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each region of a map (c, h, w) max-pooled and of unit length: (r, c)."""
    squares = [features[:, y : y + side, x : x + side] for y, x, side in list_regions(*features.shape[1:])]
    return normalize(np.array([square.max(axis=(1, 2)) for square in squares], np.float32))


def pool_rmac(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """The R-MAC vector of a map (c, h, w): the sum of its regions, of unit length."""
    return normalize(pool_regions(features).sum(axis=0))


def pool_gem(features: NDArray[np.float32], power: float = 3.0) -> NDArray[np.float32]:
    """Generalised mean of each channel, (mean x^p)^(1/p), of unit length (Radenović, Tolias and Chum, 2019)."""
    positive = np.maximum(features, 1e-6).astype(np.float64)
    return normalize((positive**power).mean(axis=(1, 2)) ** (1 / power))


def normalize(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of length 1, as float32; a row of nothing stays as it is."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > _NOTHING, lengths, 1), np.float32)
