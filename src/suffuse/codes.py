"""Columns in a compact code, 600 to 800 bytes instead of 3,000: how blocks of them become it, and plain again."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.diffusion import Columns, Entries, places_of
from suffuse.errors import IndexBroken
from suffuse.kernels.codes import LONGEST, TAIL_LEVELS, decode_columns, encode_columns


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
