"""A made-up set of any size whose graph looks like that of real features: curves, distractors and strays.

Elements belong to topics of about `TOPIC` elements each, so that what an element sees around itself does not depend
on n: a larger set has more topics, not larger ones. A topic is a random subspace. In it lie

    curves       short arcs, as views of one object are; one in ten leads into the next topic, so that topics connect
    distractors  points without a curve
    strays       a few vectors without a topic: most of them end as isolated nodes

The constants were chosen by trial so that `python -m benchmarks.likeness` shows the figures of Oxford5k.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elements of a topic: as many as Oxford5k has, where a support of 1,000 is a fifth of all there is.
TOPIC = 5000
# The share of each kind; what is neither on a curve nor astray is a distractor.
ON_CURVES, STRAY, BRIDGES = 0.7, 0.01, 0.1
# Dimensions of a topic's subspace, as a share of all: small enough that other topics are far, whatever n is.
SUBSPACE = 1 / 8
# Elements of a curve, and how far they lie from it, in lengths of its axes; both uniform in the logarithm.
SIZES, THICKNESS = (14, 85), (0.4, 0.9)
# A curve covers this part of a circle.
ARC = 0.4
# Length of the noise outside the subspace. It varies, so that some are listed by many and others by few.
NOISE = (0.25, 0.7)
# The label of what is on no curve.
NO_CURVE = -1


class Manifold(NamedTuple):
    """Unit rows, and the number of the curve that each lies on."""

    features: NDArray[np.float32]  # (n, d)
    labels: NDArray[np.int64]  # (n,), NO_CURVE for distractors and strays


def manifold(n: int, dimensions: int = 512, *, rng: np.random.Generator) -> Manifold:
    """n elements on curves and beside them, in random order; takes memory for the result and one topic."""
    features, labels = np.empty((n, dimensions), np.float32), np.full(n, NO_CURVE, np.int64)
    width = max(2, round(SUBSPACE * dimensions))
    topics = max(1, round(n / TOPIC))
    bases = [_normal(rng, width, dimensions) for _ in range(topics)]
    curves = 0
    # In random order: an index must not profit from neighbours that were born together.
    for number, members in enumerate(np.array_split(rng.permutation(n), topics)):
        own, further, of = _topic(rng, len(members), width)
        noise = rng.uniform(*NOISE, len(members)).astype(np.float32)
        stray = rng.random(len(members)) < STRAY
        own[stray], further[stray], noise[stray], of[stray] = 0, 0, 1, NO_CURVE
        rows = own @ bases[number]
        bridging = np.flatnonzero(further.any(axis=1))
        rows[bridging] += further[bridging] @ bases[(number + 1) % topics]
        rows += noise[:, None] * _normal(rng, len(members), dimensions)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        features[members] = rows
        labels[members] = np.where(of == NO_CURVE, NO_CURVE, of + curves)
        curves += int(of.max(initial=NO_CURVE)) + 1
    return Manifold(features, labels)


def _topic(
    rng: np.random.Generator, count: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Coordinates in the topic's own subspace and in the next one's, (count, width) each, and the curve of each."""
    own, further = _normal(rng, count, width), np.zeros((count, width), np.float32)
    of = np.full(count, NO_CURVE, np.int64)
    start, end, curve = 0, round(ON_CURVES * count), 0
    while start < end:
        stop = min(end, start + round(_log_uniform(rng, SIZES)))
        axes, thickness = _normal(rng, 2, width), np.float32(_log_uniform(rng, THICKNESS))
        bridging = rng.random() < BRIDGES
        angles = rng.uniform(0, np.pi / 2 if bridging else 2 * np.pi * ARC, stop - start).astype(np.float32)
        along, across = np.cos(angles)[:, None], np.sin(angles)[:, None]
        if bridging:
            further[start:stop] = across * (axes[1] + thickness * _normal(rng, stop - start, width))
            own[start:stop] = along * (axes[0] + thickness * own[start:stop])
        else:
            own[start:stop] = along * axes[0] + across * axes[1] + thickness * own[start:stop]
        of[start:stop] = curve
        start, curve = stop, curve + 1
    return own, further, of


def _normal(rng: np.random.Generator, count: int, width: int) -> NDArray[np.float32]:
    """Random directions, (count, width), of a length near 1."""
    return rng.standard_normal((count, width), dtype=np.float32) / np.float32(np.sqrt(width))


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))
