"""Columns of the inverse of L_alpha = I - alpha S, each solved on its own support (late truncation)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.core import Damaged
from suffuse.core.graph import Graph
from suffuse.core.kernels.codes import HEAD, LONGEST, TAIL_LEVELS, decode_columns, encode_columns, pool_columns
from suffuse.core.kernels.solve import LANES, solve_on_supports
from suffuse.core.kernels.supports import known_supports, walk_supports
from suffuse.core.neighbors import Features, Find, nearest_to_rows
from suffuse.core.params import Params

# Images whose vectors are summed at a time.
_IMAGE_BLOCK = 1024

# Steps of the walk that chooses a support; measured on Oxford5k, more change nothing (docs/lab/columns.md).
WALK_STEPS = 8

# What is said of a column that kernels cannot read.
DAMAGED_COLUMN = "a column of the index is damaged"

# Steps for columns that are only drafts; measured on Oxford5k, more change nothing (docs/lab/columns.md).
_DRAFT_STEPS = 4

# Supports of fewer nodes are not shared: eight columns would leave each too little of it. Measured on Oxford5k, where
# mAP is the same from 400 nodes on, and up to two points lower below.
_LEAST_SHARED = 400

# Where single precision does: its rounding, times the condition of L_alpha (200 for 0.99), stays below 1e-5.
_SINGLE_ALPHA, _SINGLE_TOLERANCE = 0.99, 1e-6


class Columns(NamedTuple):
    """Columns: the entries of column i are at starts[i]:stops[i].

    Plain, `entries` are rows and `values` go with them, the largest first. Coded, `entries` are codes
    (`kernels.codes`), and values[i] is the scale of column i.
    """

    starts: NDArray[np.int64]  # (n,)
    stops: NDArray[np.int64]  # (n,)
    entries: NDArray[Any]  # int32, or uint8
    values: NDArray[Any]  # float32 or float16

    @classmethod
    def of(cls, indptr: NDArray[np.int64], entries: NDArray[Any], values: NDArray[Any]) -> "Columns":
        """Columns that follow each other."""
        return cls(indptr[:-1], indptr[1:], entries, values)

    @classmethod
    def concat(cls, parts: "Sequence[Columns]") -> "Columns":
        """The columns of all parts, each of which follow each other."""
        indptr = _pointers(np.concatenate([part.stops - part.starts for part in parts]))
        return cls.of(indptr, *(np.concatenate([part[field] for part in parts]) for field in (2, 3)))

    @property
    def is_coded(self) -> bool:
        """Whether the entries are codes."""
        return bool(self.entries.dtype == np.uint8)

    @property
    def indptr(self) -> NDArray[np.int64]:
        """(n + 1,), where each column starts and the last one ends, if they follow each other."""
        return _pointers(self.stops - self.starts)

    def take(self, ids: NDArray[np.integer]) -> "Columns":
        """These columns alone; no entry is copied."""
        values = self.values[ids] if self.is_coded else self.values
        return Columns(self.starts[ids], self.stops[ids], self.entries, values)

    def for_kernels(self) -> "Columns":
        """The arrays as kernels take them: ids without sign, and the bits of float16, which numba does not know."""
        views: dict[str, DTypeLike] = {"int32": np.uint32, "float16": np.uint16}
        return Columns(*(array.view(views.get(array.dtype.name, array.dtype)) for array in self))

    def lie_inside(self) -> bool:
        """Whether all of them are where there are entries."""
        return bool(((self.starts >= 0) & (self.starts <= self.stops) & (self.stops <= len(self.entries))).all())

    def decode(self, ids: NDArray[np.integer]) -> "Columns":
        """The columns of these elements, plain and following each other; of coded ones the head comes before the tail.

        Ids in the columns are not checked.
        """
        if not self.take(ids).lie_inside():
            raise Damaged("indptr.npy points outside the columns")
        if not self.is_coded:
            indptr, offsets = gather_spans(self.starts, self.stops, ids)
            return Columns.of(indptr, self.entries[offsets], self.values[offsets])
        size = int((self.stops[ids] - self.starts[ids]).sum())
        rows, values, ends = np.empty(size, np.uint32), np.empty(size, np.float32), np.empty(len(ids), np.int64)
        decode_columns(*self, ids.astype(np.int64), rows, values, ends)
        if (ends < 0).any():
            raise Damaged(f"codes.npy is damaged in column {ids[int((ends < 0).argmax())]}")
        indptr = np.concatenate([[0], ends])
        return Columns.of(indptr, rows[: indptr[-1]].view(np.int32), values[: indptr[-1]])

    def heads(self, ids: NDArray[np.integer]) -> "Columns":
        """The largest entries of the columns of these elements, plain and following each other."""
        whole = self.decode(ids)
        starts = whole.starts
        indptr, offsets = gather_spans(starts, np.minimum(whole.stops, starts + HEAD), np.arange(len(ids)))
        return Columns.of(indptr, whole.entries[offsets], whole.values[offsets].astype(np.float32, copy=False))


class Solved(NamedTuple):
    """Columns that follow each other, and how they were solved."""

    columns: Columns
    lengths: NDArray[np.int64]  # (b,), entries of each
    residuals: NDArray[np.float64]  # (b,), |e_i - L_alpha c_i| on the support

    @classmethod
    def concat(cls, parts: "Sequence[Solved]") -> "Solved":
        """Those of all parts."""
        lengths, residuals = (np.concatenate([part[field] for part in parts]) for field in (1, 2))
        return cls(Columns.concat([part.columns for part in parts]), lengths, residuals)

    def encode(self) -> "Solved":
        """The same in the compact code; entries below 2 ** -16 of their column's largest are left out."""
        _, _, rows, values = self.columns
        count = len(self.lengths)
        codes = np.empty(TAIL_LEVELS * count + (LONGEST + 1) * len(rows), np.uint8)
        scales, kept, ends = np.empty(count, np.float32), np.empty(count, np.int64), np.empty(count, np.int64)
        encode_columns(rows.view(np.uint32), values, self.columns.indptr, codes, scales, kept, ends)
        indptr = np.concatenate([[0], ends])
        return Solved(Columns.of(indptr, codes[: indptr[-1]].copy(), scales), kept, self.residuals)


def _pointers(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])


class Supports(NamedTuple):
    """The support of each group of nodes: nodes[g, :sizes[g]]."""

    nodes: NDArray[np.uint32]  # (g, truncation)
    sizes: NDArray[np.int64]  # (g,)


# The supports of the nodes start..stop of alpha S, in groups of this size, with so many nodes at most.
FindSupports = Callable[[Graph, int, int, int, int], Supports]


def solve_columns(
    alpha_s: Graph,
    start: int,
    stop: int,
    params: Params,
    features: Features | None = None,
    owners: NDArray[np.int32] | None = None,
    find: Find = nearest_to_rows,
    order: NDArray[np.uint32] | None = None,
    supports_of: FindSupports | None = None,
) -> Solved:
    """c_i for i in start..stop: L_alpha[J, J] c = e_i on the support J of i, the largest `keep` entries.

    `features` are the unit rows, and `find` searches them for the supports of `support="features"`. With `order`, node
    i is element order[i], which is what rows are then called; with `support="graph"` `group_size` nodes in a row share
    the support that `supports_of` finds, so they should be near to each other (`graph.order_along`). With `owners`, the
    entries of an image's regions are summed, and rows are images. Columns that are to be coded are float32 here.
    """
    count, n = stop - start, len(alpha_s.indptr) - 1
    solved = min(params.truncation, n)
    width = min(params.keep, solved) if owners is None else solved
    rows, values, lengths = room_for_columns(count, width)
    residuals, group = np.empty(count, np.float64), group_size(params)
    if params.support == "graph":
        supports, sizes = (supports_of or walk)(alpha_s, start, stop, group, solved)
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
    return Solved(pack_columns(rows, values, lengths, plain_type(params)), lengths, residuals)


def draft_columns(alpha_s: Graph, start: int, stop: int, params: Params) -> Solved:
    """Columns of the nodes start..stop on short walks: where the supports of the real ones are found (`find_known`)."""
    few = functools.partial(walk, steps=_DRAFT_STEPS)
    # To be coded, whatever the index holds.
    return solve_columns(alpha_s, start, stop, dataclasses.replace(params, values="uint8"), supports_of=few)


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


def walk(alpha_s: Graph, start: int, stop: int, group: int, truncation: int, steps: int = WALK_STEPS) -> Supports:
    """The supports that a walk finds."""
    supports = room_for_supports(start, stop, group, truncation)
    walk_supports(start, stop, group, *alpha_s, steps, *supports)
    return supports


def find_known(
    whole: int,
    order: NDArray[np.uint32],
    number: NDArray[np.uint32],
    stored: Columns,
    alpha_s: Graph,
    start: int,
    stop: int,
    group: int,
    truncation: int,
) -> Supports:
    """The nodes with the most mass in the columns of the neighbours that are known already (`kernels.supports`).

    Of `whole` neighbours all of the column is read, of others its largest entries.
    """
    supports = room_for_supports(start, stop, group, truncation)
    known_supports(start, stop, group, whole, order, number, *alpha_s, *stored.for_kernels(), WALK_STEPS, *supports)
    if (supports.sizes < 0).any():
        raise Damaged(DAMAGED_COLUMN)
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


def room_for_columns(count: int, width: int) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.int64]]:
    """Rows, values and lengths of columns that are to be filled, with `width` entries at most."""
    return np.empty((count, width), np.uint32), np.empty((count, width), np.float32), np.empty(count, np.int64)


def pack_columns(
    rows: NDArray[np.uint32], values: NDArray[np.float32], lengths: NDArray[np.int64], dtype: DTypeLike
) -> Columns:
    """Columns of which the first lengths[i] entries of each row are set, one after the other."""
    width = rows.shape[1]
    # Most blocks have no short column, and need no copy.
    chosen = slice(None) if (lengths == width).all() else np.arange(width) < lengths[:, None]
    packed = values[chosen].reshape(-1).astype(dtype, copy=False)
    return Columns.of(_pointers(lengths), rows[chosen].reshape(-1).view(np.int32), packed)


def _pool(
    rows: NDArray[np.uint32],
    values: NDArray[np.float32],
    lengths: NDArray[np.int64],
    owners: NDArray[np.int32],
    keep: int,
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.int64]]:
    """Columns over regions (b, L) summed to columns over images (b, keep)."""
    pooled = room_for_columns(len(rows), keep)
    starts = np.arange(len(rows)) * rows.shape[1]
    pool_columns(
        starts, starts + lengths, rows.ravel(), values.ravel(), owners.view(np.uint32), int(owners.max()) + 1, False,
        *pooled,
    )  # fmt: skip
    return pooled


def gather_spans(
    starts: NDArray[np.int64], stops: NDArray[np.int64], ids: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The offsets starts[id]:stops[id] of these ids, one after the other, and where each of them begins among those."""
    first = starts[ids]
    lengths = stops[ids] - first
    indptr = _pointers(lengths)
    return indptr, np.arange(indptr[-1]) + np.repeat(first - indptr[:-1], lengths)


def image_vectors(
    columns_of: Callable[[NDArray[np.integer]], Columns],
    owners: NDArray[np.int32],
    images: int,
    keep: int,
    dtype: DTypeLike,
    wanted: NDArray[np.integer] | None = None,
) -> Columns:
    """For each image v_j = sqrt(sum of the pooled columns of its regions), the largest `keep` entries, largest first.

    `columns_of` gives the columns of any regions, over images, of which there are so many. With `wanted`, the vectors
    of those images alone.
    """
    members = np.argsort(owners, kind="stable")
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=images))])
    wanted = np.arange(images) if wanted is None else wanted
    largest, nobody, parts = np.finfo(np.dtype(dtype)).max, np.empty(0, np.uint32), []
    for start in range(0, len(wanted), _IMAGE_BLOCK):
        block = wanted[start : start + _IMAGE_BLOCK]
        block_ptr, offsets = gather_spans(group_ptr[:-1], group_ptr[1:], block)
        regions = columns_of(members[offsets])
        # The columns of an image's regions follow each other: one run of entries.
        runs = Columns.of(regions.indptr[block_ptr], regions.entries, regions.values)
        pooled = room_for_columns(len(block), min(keep, images))
        pool_columns(*runs.for_kernels(), nobody, images, True, *pooled)
        roots = pack_columns(*pooled, np.float32)
        parts.append(roots._replace(values=np.minimum(roots.values, largest).astype(dtype)))
    return Columns.concat(parts)
