"""Nearest neighbours of all elements within the nearest cells: for graphs of sets too large for all pairs.

k-means puts the elements into some sqrt(n) cells. The elements of a cell are compared, exactly and in one product, with
those of the `probes` cells nearest to it. So work grows as n^1.5, not n^2; what is farther away stays missing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import load_faiss
from suffuse.core.neighbors import TILE, Features, Lists, Neighbors, product, proposals, ranked, unpacked

# k-means: elements drawn for each cell, and rounds. More change little: cells only have to hold what is near together.
_DRAWN, _ROUNDS = 64, 10


class Cells(NamedTuple):
    """Which elements share a cell; positions are places in `order`."""

    order: NDArray[np.int32]  # (n,), the elements, cell after cell, by id within one
    starts: NDArray[np.int64]  # (cells + 1,), where each cell begins in `order`
    near: NDArray[np.int32]  # (cells, probes), the nearest cells of each, itself first


def make_cells(features: Features, probes: int) -> Cells:
    """Cells of unit rows (n, d); the same rows give the same cells."""
    n, dimensions = features.shape
    count = max(1, round(n**0.5))
    faiss = load_faiss()
    drawn = np.random.default_rng(0).choice(n, min(n, _DRAWN * count), replace=False)
    kmeans = faiss.Kmeans(
        dimensions, count, niter=_ROUNDS, spherical=True, seed=1, min_points_per_centroid=1,
        max_points_per_centroid=_DRAWN,
    )  # fmt: skip
    kmeans.train(np.ascontiguousarray(features[np.sort(drawn)]))
    centres = kmeans.centroids
    cell = np.concatenate(
        [product(features[i : i + TILE], centres).argmax(axis=1) for i in range(0, n, TILE)]
    )  # fmt: skip
    sims = product(centres, centres)
    np.fill_diagonal(sims, np.inf)  # a cell is the nearest to itself, even among equal ones
    near = np.argsort(-sims, axis=1, kind="stable")[:, :probes]
    starts = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=count))])
    return Cells(np.argsort(cell, kind="stable").astype(np.int32), starts.astype(np.int64), near.astype(np.int32))


def nearest_in_cells(features: Features, cells: Cells, start: int, stop: int, k: int) -> Neighbors:
    """NN_k of the elements at the positions start..stop, each first in its own list, by id.

    A list with fewer than k ends with the element itself, similarity 0 (see `Neighbors`).
    """
    ids, sims = np.empty((stop - start, k), np.int32), np.empty((stop - start, k), np.float32)
    first = int(np.searchsorted(cells.starts, start, side="right")) - 1
    while start < stop:
        end = min(stop, int(cells.starts[first + 1]))
        if end > start:
            found = _nearest_in_cell(features, cells, first, cells.order[start:end], k)
            place = slice(len(ids) - (stop - start), len(ids) - (stop - end))
            ids[place], sims[place] = found
        start, first = end, first + 1
    return Neighbors(ids, sims)


def _nearest_in_cell(features: Features, cells: Cells, cell: int, rows: NDArray[np.int32], k: int) -> Neighbors:
    """NN_k of some elements of one cell."""
    near = [cells.order[cells.starts[c] : cells.starts[c + 1]] for c in cells.near[cell]]
    candidates = np.concatenate(near)
    queries, others = features[rows], features[candidates]
    best = Lists(len(rows), proposals(k, len(candidates)))
    for j in range(0, len(others), TILE):
        best.enter_rows(0, product(queries, others[j : j + TILE]), j)
    _, places = unpacked(best.largest())
    ids = candidates[places].astype(np.uint32)
    own = rows.astype(np.uint32)
    lost = ~(ids == own[:, None]).any(axis=1)
    ids[lost, -1] = own[lost]
    found = ranked(queries, features, ids, min(k, ids.shape[1]), own)
    short = k - found.ids.shape[1]
    return Neighbors(
        np.hstack([found.ids, np.repeat(rows[:, None], short, axis=1)]),
        np.pad(found.sims, ((0, 0), (0, short))),
    )
