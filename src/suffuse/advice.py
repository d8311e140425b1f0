"""Does diffusion help here? Signs in the graph, and in a little truth where there is any, that it may not."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

# From these shares on a person should know; chosen on the class sets of docs/results, not fitted to any of them.
_MANY_ISOLATED = 0.2
# Twice: on Oxford5k a typical query has 25 relevant photographs, and diffusion with k = 50 gains 30 points.
_TIES = 2
_HUB_SHARE = 0.3


def advise(
    graph: Mapping[str, float], elements: int, k: int, positives: NDArray[np.integer] | None = None
) -> list[str]:
    """Warnings in plain words; empty if nothing speaks against diffusion.

    graph      the `graph` of a manifest (see graph.GraphSummary)
    positives  how many relevant elements each query has, where the truth is known
    """
    warnings = []
    if positives is not None and len(positives) and _TIES * (typical := float(np.median(positives))) < k - 1:
        warnings.append(
            f"k is {k}, but a typical query has only {typical:g} relevant images: the graph ties them to strangers,"
            f" and diffusion can lose to k-NN; try k of {max(2, int(typical / 2) + 1)} or less"
        )
    if graph["isolated"] > _MANY_ISOLATED * elements:
        warnings.append(
            f"{graph['isolated'] / elements:.0%} of the elements have no mutual neighbour: diffusion cannot reach"
            " them or start from them; try a larger k or other features"
        )
    if (listed := graph.get("most_listed", 0)) > max(_HUB_SHARE * elements, 2 * k):
        warnings.append(
            f"one element is among the {k} nearest of {listed / elements:.0%} of all others: such a hub is near to"
            " everything and says nothing; try whitening"
        )
    return warnings
