"""Ranks and truth in, average precision out."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]


def average_precision(ranking: Ids, positives: Ids, junk: Ids | None = None) -> float:
    """The official average precision of Oxford5k and Paris6k: the area under precision over recall, by trapezoids.

    AP = sum_r (precision_before_r + precision_r) / 2 / |positives| over the ranks r of the positives, where junk
    is taken out of the ranking first. Before rank 1 the precision is 1. Positives that are not in the ranking
    count as never found; without any positive the answer is nan.
    """
    if len(positives) == 0:
        return float("nan")
    if junk is not None and len(junk):
        ranking = ranking[~np.isin(ranking, junk)]
    ranks = np.flatnonzero(np.isin(ranking, positives))
    found = np.arange(len(ranks))
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    return float((before + (found + 1) / (ranks + 1)).sum() / 2 / len(positives))


def precision_at_hits(relevant: NDArray[np.bool_], positives: int) -> float:
    """The average precision of information retrieval: the mean of the precision at each relevant rank.

    `relevant` says for each rank whether its element is relevant; `positives` is how many there are in all.
    """
    if positives == 0:
        return float("nan")
    ranks = np.flatnonzero(relevant)
    return float(((np.arange(len(ranks)) + 1) / (ranks + 1)).sum() / positives)


def class_mean_average_precision(
    rankings: Ids, labels: NDArray[np.generic], query_labels: NDArray[np.generic]
) -> float:
    """mAP of full rankings (m, n), where an element is relevant if it has the query's label.

    Queries whose label nobody has are left out.
    """
    scores = [
        precision_at_hits(labels[ranking] == label, int((labels == label).sum()))
        for ranking, label in zip(rankings, query_labels, strict=True)
    ]
    return float(np.nanmean(scores))
