"""Stale columns hear of new elements: entries are added to them, where to solve them again would take too long.

L_alpha is symmetric, and so is its inverse: what the column of a new element says of an older one, the column of the
older one would say of the new.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.codes import CodedColumns, Held, encode, joined, kernel_view, picked
from suffuse.diffusion import DAMAGED_COLUMN, Columns, Entries, least_stored, packed, places_of, plain_type
from suffuse.errors import IndexBroken
from suffuse.kernels.codes import LONGEST
from suffuse.kernels.extend import APPENDED, DAMAGED, TO_CODE_ANEW, append_to_codes, extend_columns
from suffuse.machine import in_blocks
from suffuse.params import Params

# Columns that are extended at a time.
_BLOCK = 1024


class _More(NamedTuple):
    """Entries for some columns: those of wanted[i] are ids[indptr[i]:indptr[i + 1]], ascending, with their values."""

    wanted: NDArray[np.int32]
    indptr: NDArray[np.int64]
    ids: NDArray[np.uint32]
    values: NDArray[np.float32]

    def of(self, places: NDArray[np.integer]) -> "_More":
        """Those of some columns."""
        indptr, entries = places_of(self.indptr[:-1], self.indptr[1:], places)
        return _More(self.wanted[places], indptr, self.ids[entries], self.values[entries])


def extended(
    stored: Held, found: Entries, of: NDArray[np.integer], params: Params, is_stale: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], list[Columns | CodedColumns]]:
    """Stale columns with entries for the new elements, in blocks, and whose they are.

    `found` are the columns of the new elements `of`.
    """
    new = np.repeat(of, np.diff(found.indptr))
    old = found.rows < len(is_stale)
    old[old] = is_stale[found.rows[old]]
    order = np.lexsort((new[old], found.rows[old]))
    rows = found.rows[old][order]
    wanted, first = np.unique(rows, return_index=True)
    more = _More(
        wanted,
        np.append(first, len(rows)).astype(np.int64),
        new[old][order].astype(np.uint32),
        found.values[old][order].astype(np.float32),
    )

    def some(start: int, stop: int) -> tuple[NDArray[np.int32], Columns | CodedColumns]:
        part = more.of(np.arange(start, stop))
        if params.values != "uint8":
            return part.wanted, _with_more(stored, part, params, len(is_stale))
        appended, block, again = _with_more_codes(stored, part, params, len(is_stale))
        rest = encode(_with_more(stored, part.of(again), params, len(is_stale)))
        return np.concatenate([appended, part.wanted[again]]), joined([block, rest])

    parts = in_blocks(some, len(wanted), _BLOCK)
    return np.concatenate([of for of, _ in parts]), [block for _, block in parts]


def _with_more(stored: Held, more: _More, params: Params, reach: int) -> Columns:
    """Columns with more entries, the largest of both."""
    count, width = len(more.wanted), min(params.keep, params.truncation)
    ids, numbers = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
    lengths = np.empty(count, np.int64)
    extend_columns(
        *map(kernel_view, picked(stored, more.wanted)), reach, *more[1:], least_stored(params), ids, numbers, lengths
    )
    if (lengths < 0).any():
        raise IndexBroken(DAMAGED_COLUMN)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = packed(numbers, lengths).astype(plain_type(params), copy=False)
    return Columns(indptr, packed(ids, lengths).view(np.int32), entries, np.zeros(count))


def _with_more_codes(
    stored: Held, more: _More, params: Params, reach: int
) -> tuple[NDArray[np.int32], CodedColumns, NDArray[np.int64]]:
    """Coded columns to which entries could be appended, and whose they are; and the places of those to code anew."""
    columns, count = picked(stored, more.wanted), len(more.wanted)
    if not ((columns.starts >= 0) & (columns.starts <= columns.stops) & (columns.stops <= len(columns.entries))).all():
        raise IndexBroken(DAMAGED_COLUMN)
    room = int((columns.stops - columns.starts).sum()) + LONGEST * len(more.ids)
    codes, ends, states = np.empty(room, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    append_to_codes(*columns, reach, min(params.keep, params.truncation), *more[1:], codes, ends, states)
    if (states == DAMAGED).any():
        raise IndexBroken(DAMAGED_COLUMN)
    done = states == APPENDED
    indptr = np.concatenate([[0], ends[done]])
    nothing = np.zeros(len(indptr) - 1)
    block = CodedColumns(indptr, codes[: indptr[-1]].copy(), columns.values[done], nothing.astype(np.int64), nothing)
    return more.wanted[done], block, np.flatnonzero(states == TO_CODE_ANEW)
