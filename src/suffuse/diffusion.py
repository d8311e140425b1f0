"""Columns of the inverse of L_alpha = I - alpha S, each solved on its own support (late truncation)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.graph import Graph
from suffuse.kernels.pool import pool_columns, pool_images
from suffuse.kernels.solve import solve_on_supports, solve_on_walks
from suffuse.neighbors import Features, Find, nearest_to_rows
from suffuse.params import Params

# Images whose vectors are summed at a time.
_IMAGE_BLOCK = 1024

# Steps of the walk that chooses a support; measured on Oxford5k, more change nothing (design.md).
WALK_STEPS = 8


class Columns(NamedTuple):
    """Columns of consecutive elements: entries of column i are rows[indptr[i]:indptr[i + 1]], largest first."""

    indptr: NDArray[np.int64]  # (b + 1,)
    rows: NDArray[np.int32]
    values: NDArray[np.float16] | NDArray[np.float32]
    residuals: NDArray[np.float64]  # (b,), |e_i - L_alpha c_i| on the support


def columns(
    alpha_s: Graph,
    start: int,
    stop: int,
    params: Params,
    features: Features | None = None,
    owners: NDArray[np.int32] | None = None,
    find: Find = nearest_to_rows,
) -> Columns:
    """c_i for i in start..stop: L_alpha[J, J] c = e_i on the support J of i, the largest `keep` entries.

    `alpha_s` is alpha * S. `features` are the unit rows, needed for `support="features"` only,
    and `find` is the search for its supports.
    With `owners`, the entries of an image's regions are summed, and rows are images.
    Columns that are to be coded (`codes.encode`) are float32 here.
    """
    count, n = stop - start, len(alpha_s.indptr) - 1
    dtype = np.dtype(plain_type(params))
    floor = np.float32(np.finfo(dtype).smallest_subnormal)  # what rounds to zero is not stored
    solved = min(params.truncation, n)
    width = min(params.keep, solved) if owners is None else solved
    rows, values = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
    lengths, residuals = np.empty(count, np.int64), np.empty(count, np.float64)
    out = (rows, values, lengths, residuals)
    if params.support == "graph":
        solve_on_walks(
            start, stop, *alpha_s, params.truncation, WALK_STEPS, params.iterations, params.tolerance, floor, *out
        )
    else:
        assert features is not None
        # The paper's NN_L, searched block by block so that n x L ids are never held at once.
        supports = find(features, start, stop, params.truncation).ids.view(np.uint32)
        alpha_s, supports = _without_repeats(alpha_s, supports)
        solve_on_supports(supports, *alpha_s, params.iterations, params.tolerance, floor, *out)
    if owners is not None:
        rows, values, lengths = _pool(rows, values, lengths, owners, min(params.keep, solved))
    stored = np.arange(rows.shape[1]) < lengths[:, None]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return Columns(indptr, rows[stored].view(np.int32), values[stored].astype(dtype), residuals)


def plain_type(params: Params) -> str:
    """The type of column entries before they are coded, if they are."""
    return "float32" if params.values == "uint8" else params.values


def _without_repeats(alpha_s: Graph, supports: NDArray[np.uint32]) -> tuple[Graph, NDArray[np.uint32]]:
    """Supports (b, L) in which a further node, n, stands where an approximate search found nothing (`Neighbors`).

    The graph gets that node, without edges: its entry of a column is zero, which is not stored.
    """
    repeated = supports == supports[:, :1]
    repeated[:, 0] = False
    if not repeated.any():
        return alpha_s, supports
    n = len(alpha_s.indptr) - 1
    graph = alpha_s._replace(indptr=np.append(alpha_s.indptr, alpha_s.indptr[-1]))
    return graph, np.where(repeated, np.uint32(n), supports)


def _pool(
    rows: NDArray[np.uint32],
    values: NDArray[np.float32],
    lengths: NDArray[np.int64],
    owners: NDArray[np.int32],
    keep: int,
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.int64]]:
    """Columns over regions (b, L) summed to columns over images (b, keep)."""
    pooled_rows, pooled_values = np.empty((len(rows), keep), np.uint32), np.empty((len(rows), keep), np.float32)
    pooled_lengths = np.empty(len(rows), np.int64)
    images = int(owners.max()) + 1
    pool_columns(rows, values, lengths, owners.view(np.uint32), images, pooled_rows, pooled_values, pooled_lengths)
    return pooled_rows, pooled_values, pooled_lengths


class Entries(NamedTuple):
    """Sparse vectors: the entries of vector i are rows[indptr[i]:indptr[i + 1]] and the same of values."""

    indptr: NDArray[np.int64]  # (b + 1,)
    rows: NDArray[np.int32]
    values: NDArray[np.float16] | NDArray[np.float32]


def take(entries: Entries, ids: NDArray[np.integer]) -> Entries:
    """The vectors of these ids."""
    lengths = entries.indptr[ids + 1] - entries.indptr[ids]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(indptr[-1]) + np.repeat(entries.indptr[ids] - indptr[:-1], lengths)
    return Entries(indptr, entries.rows[places], entries.values[places])


def image_vectors(
    columns_of: Callable[[NDArray[np.integer]], Entries],
    owners: NDArray[np.int32],
    images: int,
    keep: int,
    dtype: DTypeLike,
) -> Entries:
    """For each image v_j = sqrt(sum of the pooled columns of its regions), the largest `keep` entries, largest first.

    `columns_of` gives the columns of any regions, over images.
    """
    members = np.argsort(owners, kind="stable")
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=images))])
    parts: list[tuple[NDArray[Any], ...]] = []
    for start in range(0, images, _IMAGE_BLOCK):
        count, width = min(_IMAGE_BLOCK, images - start), min(keep, images)
        rows, roots = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
        lengths = np.empty(count, np.int64)
        block_ptr = group_ptr[start : start + count + 1]
        pooled = columns_of(members[block_ptr[0] : block_ptr[-1]])
        values = pooled.values.view(np.uint16) if pooled.values.dtype == np.float16 else pooled.values
        places = np.arange(block_ptr[-1] - block_ptr[0])
        pool_images(
            pooled.indptr, pooled.rows.view(np.uint32), values, block_ptr - block_ptr[0], places, images,
            rows, roots, lengths,
        )  # fmt: skip
        stored = np.arange(width) < lengths[:, None]
        largest = np.finfo(np.dtype(dtype)).max
        parts.append((lengths, rows[stored].view(np.int32), np.minimum(roots[stored], largest).astype(dtype)))
    lengths, rows_, values_ = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Entries(np.concatenate([[0], np.cumsum(lengths)]), rows_, values_)
