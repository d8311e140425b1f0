"""Columns of the inverse of L_alpha = I - alpha S, each solved on its own support (late truncation)."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.core.graph import Graph
from suffuse.core.kernels.codes import LONGEST, TAIL_LEVELS, decode_columns, encode_columns
from suffuse.core.kernels.combine import pool_columns, pool_images
from suffuse.core.kernels.solve import LANES, solve_on_supports
from suffuse.core.kernels.supports import known_supports, walk_supports
from suffuse.core.neighbors import Features, Find, nearest_to_rows
from suffuse.core.params import Params
from suffuse.errors import IndexBroken

# Images whose vectors are summed at a time.
_IMAGE_BLOCK = 1024

# Steps of the walk that chooses a support; measured on Oxford5k, more change nothing (design.md).
WALK_STEPS = 8

# What is said of a column that kernels cannot read.
DAMAGED_COLUMN = "a column of the index is damaged; run suffuse verify, then copy the index again"

# Steps for columns that are only drafts; measured on Oxford5k, more change nothing (docs/how-it-works.md).
_DRAFT_STEPS = 4

# Supports of fewer nodes are not shared: eight columns would leave each too little of it. Measured on Oxford5k, where
# mAP is the same from 400 nodes on, and up to two points lower below.
_LEAST_SHARED = 400

# Where single precision does: its rounding, times the condition of L_alpha (200 for 0.99), stays below 1e-5.
_SINGLE_ALPHA, _SINGLE_TOLERANCE = 0.99, 1e-6


class Columns(NamedTuple):
    """Columns of consecutive elements: entries of column i are rows[indptr[i]:indptr[i + 1]], largest first."""

    indptr: NDArray[np.int64]  # (b + 1,)
    rows: NDArray[np.int32]
    values: NDArray[np.float16] | NDArray[np.float32]
    residuals: NDArray[np.float64]  # (b,), |e_i - L_alpha c_i| on the support


class Supports(NamedTuple):
    """The support of each group of nodes: nodes[g, :sizes[g]]."""

    nodes: NDArray[np.uint32]  # (g, truncation)
    sizes: NDArray[np.int64]  # (g,)


# The supports of the nodes start..stop of alpha S, in groups of this size, with so many nodes at most.
FindSupports = Callable[[Graph, int, int, int, int], Supports]


def columns(
    alpha_s: Graph,
    start: int,
    stop: int,
    params: Params,
    features: Features | None = None,
    owners: NDArray[np.int32] | None = None,
    find: Find = nearest_to_rows,
    order: NDArray[np.uint32] | None = None,
    supports_of: FindSupports | None = None,
) -> Columns:
    """c_i for i in start..stop: L_alpha[J, J] c = e_i on the support J of i, the largest `keep` entries.

    `alpha_s` is alpha * S. `features` are the unit rows, needed for `support="features"` only,
    and `find` is the search for its supports.
    With `order`, node i of alpha_s is element order[i], which is what rows are then called; with `support="graph"`
    `group_size` nodes in a row share their support, so they should be near to each other (`graph.order_along`).
    `supports_of` is who finds the supports of groups, a walk unless said otherwise.
    With `owners`, the entries of an image's regions are summed, and rows are images.
    Columns that are to be coded (`codes.encode`) are float32 here.
    """
    count, n = stop - start, len(alpha_s.indptr) - 1
    solved = min(params.truncation, n)
    width = min(params.keep, solved) if owners is None else solved
    rows, values = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
    lengths, residuals = np.empty(count, np.int64), np.empty(count, np.float64)
    group = group_size(params)
    if params.support == "graph":
        supports, sizes = (supports_of or walked)(alpha_s, start, stop, group, solved)
    else:
        assert features is not None
        # The paper's NN_L, searched block by block so that n x L ids are never held at once.
        supports, sizes = _without_repeats(find(features, start, stop, params.truncation).ids.view(np.uint32))
    names = np.arange(n, dtype=np.uint32) if order is None else order
    solve_on_supports(
        start, stop, group, single_precision(params), supports, sizes, names, *alpha_s, params.iterations,
        params.tolerance, least_stored(params), rows, values, lengths, residuals,
    )  # fmt: skip
    if owners is not None:
        rows, values, lengths = _pool(rows, values, lengths, owners, min(params.keep, solved))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = packed(values, lengths).astype(plain_type(params), copy=False)
    return Columns(indptr, packed(rows, lengths).view(np.int32), entries, residuals)


def draft_columns(alpha_s: Graph, start: int, stop: int, params: Params) -> Columns:
    """Columns of the nodes start..stop to be solved again: they tell the supports of their neighbours' (`known`)."""

    def walk(alpha_s: Graph, start: int, stop: int, group: int, truncation: int) -> Supports:
        return walked(alpha_s, start, stop, group, truncation, _DRAFT_STEPS)

    # To be coded, whatever the index holds.
    return columns(alpha_s, start, stop, dataclasses.replace(params, values="uint8"), supports_of=walk)


def group_size(params: Params) -> int:
    """How many columns share a support."""
    return LANES if params.support == "graph" and params.truncation >= _LEAST_SHARED else 1


def single_precision(params: Params) -> bool:
    """Whether the columns of a group are solved at once, which is eight times faster, but in single precision."""
    return group_size(params) > 1 and params.alpha <= _SINGLE_ALPHA and params.tolerance >= _SINGLE_TOLERANCE


def plain_type(params: Params) -> str:
    """The type of column entries before they are coded, if they are."""
    return "float32" if params.values == "uint8" else params.values


def least_stored(params: Params) -> np.float32:
    """What rounds to zero is not stored: entries are above this."""
    return np.float32(np.finfo(np.dtype(plain_type(params))).smallest_subnormal)


def image_type(params: Params) -> str:
    """The type of the entries of `image_vectors`, which are never coded."""
    return "float16" if params.values == "uint8" else params.values


def walked(alpha_s: Graph, start: int, stop: int, group: int, truncation: int, steps: int = WALK_STEPS) -> Supports:
    """The supports that a walk finds."""
    supports = room_for_supports(start, stop, group, truncation)
    walk_supports(start, stop, group, *alpha_s, steps, *supports)
    return supports


def known(
    alpha_s: Graph,
    start: int,
    stop: int,
    group: int,
    truncation: int,
    whole: int,
    order: NDArray[np.uint32],
    number: NDArray[np.uint32],
    *stored: NDArray[Any],
) -> Supports:
    """The supports that columns tell which are known already, as kernels take them (`kernels.known`).

    The columns of so many neighbours are read as a `whole`.
    """
    supports = room_for_supports(start, stop, group, truncation)
    known_supports(start, stop, group, whole, order, number, *alpha_s, *stored, WALK_STEPS, *supports)
    if (supports.sizes < 0).any():
        raise IndexBroken(DAMAGED_COLUMN)
    return supports


def room_for_supports(start: int, stop: int, group: int, truncation: int) -> Supports:
    """Supports that are to be filled."""
    assert start % group == 0, "a block of columns begins in the middle of a group"
    groups = -(-(stop - start) // group)
    return Supports(np.empty((groups, truncation), np.uint32), np.empty(groups, np.int64))


def _without_repeats(supports: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Supports (b, L), and how many nodes each has: where an approximate search found nothing, a row has its first
    element again (`Neighbors`), which goes to the end."""
    repeated = supports == supports[:, :1]
    repeated[:, 0] = False
    if repeated.any():
        supports = np.take_along_axis(supports, np.argsort(repeated, axis=1, kind="stable"), axis=1)
    return supports, (~repeated).sum(axis=1)


def packed(table: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """The first lengths[i] entries of each row, one row after the other."""
    width = table.shape[1]
    # Most blocks have no short column, and need no copy.
    return table.reshape(-1) if (lengths == width).all() else table[np.arange(width) < lengths[:, None]]


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


def places_of(
    starts: NDArray[np.int64], stops: NDArray[np.int64], ids: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places starts[id]:stops[id] of these ids, one after the other, and where each of them begins among those."""
    first = starts[ids]
    lengths = stops[ids] - first
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return indptr, np.arange(indptr[-1]) + np.repeat(first - indptr[:-1], lengths)


def image_vectors(
    columns_of: Callable[[NDArray[np.integer]], Entries],
    owners: NDArray[np.int32],
    images: int,
    keep: int,
    dtype: DTypeLike,
    wanted: NDArray[np.integer] | None = None,
) -> Entries:
    """For each image v_j = sqrt(sum of the pooled columns of its regions), the largest `keep` entries, largest first.

    `columns_of` gives the columns of any regions, over images, of which there are so many. With `wanted`, the vectors
    of those images alone.
    """
    members = np.argsort(owners, kind="stable")
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=images))])
    wanted = np.arange(images) if wanted is None else wanted
    parts: list[tuple[NDArray[Any], ...]] = []
    for start in range(0, len(wanted), _IMAGE_BLOCK):
        block = wanted[start : start + _IMAGE_BLOCK]
        count, width = len(block), min(keep, images)
        rows, roots = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
        lengths = np.empty(count, np.int64)
        block_ptr, places = places_of(group_ptr[:-1], group_ptr[1:], block)
        pooled = columns_of(members[places])
        values = pooled.values.view(np.uint16) if pooled.values.dtype == np.float16 else pooled.values
        pool_images(
            pooled.indptr, pooled.rows.view(np.uint32), values, block_ptr, np.arange(len(places)), images,
            rows, roots, lengths,
        )  # fmt: skip
        stored = np.arange(width) < lengths[:, None]
        largest = np.finfo(np.dtype(dtype)).max
        parts.append((lengths, rows[stored].view(np.int32), np.minimum(roots[stored], largest).astype(dtype)))
    lengths, rows_, values_ = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Entries(np.concatenate([[0], np.cumsum(lengths)]), rows_, values_)


class CodedColumns(NamedTuple):
    """Coded columns: column i is codes[indptr[i]:indptr[i + 1]], in units of scales[i] (`kernels.codes`)."""

    indptr: NDArray[np.int64]  # (b + 1,)
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]  # (b,)
    lengths: NDArray[np.int64]  # (b,), entries of each column
    residuals: NDArray[np.float64]  # (b,)


def encode(columns: Columns) -> CodedColumns:
    """Code columns of float32; entries below 2 ** -16 of their column's largest are left out."""
    count = len(columns.indptr) - 1
    codes = np.empty(TAIL_LEVELS * count + (LONGEST + 1) * len(columns.rows), np.uint8)
    scales, kept, ends = np.empty(count, np.float32), np.empty(count, np.int64), np.empty(count, np.int64)
    encode_columns(columns.rows.view(np.uint32), columns.values, columns.indptr, codes, scales, kept, ends)
    indptr = np.concatenate([[0], ends])
    return CodedColumns(indptr, codes[: indptr[-1]].copy(), scales, kept, columns.residuals)


def joined(blocks: list[Columns | CodedColumns]) -> Columns | CodedColumns:
    """The columns of all blocks."""
    fields = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in blocks[0]._fields[1:]}
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    fields["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    return type(blocks[0])(**fields)


class Held(NamedTuple):
    """Columns as an index holds them: column i is entries[starts[i]:stops[i]].

    Coded, entries are codes and values[i] is the scale of column i; plain, entries are rows and values go with them.
    """

    starts: NDArray[np.int64]  # (n,)
    stops: NDArray[np.int64]  # (n,)
    entries: NDArray[Any]  # uint8, or int32
    values: NDArray[Any]  # float32, or float16


def held(indptr: NDArray[np.int64], entries: NDArray[Any], values: NDArray[Any]) -> Held:
    """Columns that follow each other."""
    return Held(indptr[:-1], indptr[1:], entries, values)


def picked(columns: Held, ids: NDArray[np.integer]) -> Held:
    """These columns alone; nothing of them is copied."""
    values = columns.values[ids] if columns.entries.dtype == np.uint8 else columns.values
    return Held(columns.starts[ids], columns.stops[ids], columns.entries, values)


def kernel_view(array: NDArray[Any]) -> NDArray[Any]:
    """An array as kernels take it: ids without sign, and the bits of float16, which numba does not know."""
    views: dict[str, DTypeLike] = {"int32": np.uint32, "float16": np.uint16}
    return array.view(views.get(array.dtype.name, array.dtype))


def plain(columns: Held, ids: NDArray[np.integer]) -> Entries:
    """The columns of these elements, plain; of coded ones the head comes before the tail.

    Ids in the columns are not checked.
    """
    starts, stops = columns.starts[ids], columns.stops[ids]
    if not ((starts >= 0) & (starts <= stops) & (stops <= len(columns.entries))).all():
        raise IndexBroken("indptr.npy points outside the columns; run suffuse verify, then copy the index again")
    if columns.entries.dtype == np.uint8:
        return _decode(columns, ids)
    indptr, places = places_of(columns.starts, columns.stops, ids)
    return Entries(indptr, columns.entries[places], columns.values[places])


def _decode(coded: Held, ids: NDArray[np.integer]) -> Entries:
    size = int((coded.stops[ids] - coded.starts[ids]).sum())
    rows, values, ends = np.empty(size, np.uint32), np.empty(size, np.float32), np.empty(len(ids), np.int64)
    decode_columns(*coded, ids.astype(np.int64), rows, values, ends)
    if (ends < 0).any():
        raise IndexBroken(
            f"codes.npy is damaged in column {ids[int((ends < 0).argmax())]}; run suffuse verify, then copy the index"
            " again"
        )
    indptr = np.concatenate([[0], ends])
    return Entries(indptr, rows[: indptr[-1]].view(np.int32), values[: indptr[-1]])
