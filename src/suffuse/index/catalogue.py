"""Names and metadata of all pictures, read once: listing, search in names, filters.

Inside, pictures go by their rows, those of removed ones among them; see `suffuse.store.ids`.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.store.ids import Ids
from suffuse.store.items import Items

# Values of a field that are offered; a field with more can be filtered by, but not chosen from.
MOST_VALUES = 50
MOST_FIELDS = 100
# Shuffled orders that are kept: a page that is scrolled asks for the same one again.
_ORDERS = 4
# Ends each name in the text of all names.
_END = b"\0"
_KINDS = {bool: "boolean", int: "number", float: "number", str: "string"}


class Between(NamedTuple):
    """Numbers from `min` to `max`, both included; None for no end."""

    min: float | None = None
    max: float | None = None


class _Column(NamedTuple):
    """A field of the metadata, as numbers: a million pictures are filtered in a few milliseconds."""

    kind: str | None  # "string", "number" or "boolean"; None for what cannot be filtered by
    values: NDArray[np.float64] | NDArray[np.int32]  # numbers, nan where there is none; or those of `choices`, or -1
    choices: dict[Any, int]  # of strings and booleans


_UNUSABLE = _Column(None, np.empty(0, np.int32), {})


class _Names(NamedTuple):
    """All names in one text, each with an end, to be searched at once; upper and lower case are the same."""

    text: bytes = b""
    ends: NDArray[np.int64] = np.empty(0, np.int64)

    def extend(self, names: Iterable[str]) -> "_Names":
        """These names, and more behind them."""
        lines = [_fold(name) + _END for name in names]
        ends = len(self.text) + np.cumsum([len(line) for line in lines], dtype=np.int64)
        return _Names(b"".join([self.text, *lines]), np.concatenate([self.ends, ends]))

    def search(self, text: str) -> NDArray[np.bool_]:
        """Which names contain a text."""
        found = np.zeros(len(self.ends), bool)
        starts = (match.start() for match in re.finditer(re.escape(_fold(text)), self.text))
        found[np.searchsorted(self.ends, np.fromiter(starts, np.int64), side="right")] = True
        return found


class Catalogue:
    """What is known about the pictures of one generation besides their vectors."""

    def __init__(self, ids: Ids, items: Items, before: "Catalogue | None" = None) -> None:
        """`before` is the catalogue of an older generation with the same base: only what was added is read.

        A field whose values are of several kinds stays so until the next compaction, also if the odd one is removed.
        """
        self.count = ids.count
        first = 0 if before is None else before.count
        if not first:
            items.check_all()
        known: dict[str, _Column] = {} if before is None else before.columns
        names: list[str] = []
        found: dict[str, dict[int, Any]] = {}
        for row, id in enumerate(
            (np.arange(ids.count) if ids.numbers is None else ids.numbers)[first:].tolist(), first
        ):
            item = items.at(row)
            names.append(str(item.get("name", id)))
            for field, value in item.items():
                if field == "name" or value is None:
                    continue
                if field in known or field in found or len(known.keys() | found.keys()) < MOST_FIELDS:
                    found.setdefault(field, {})[row - first] = value
        self.names: _Names = (_Names() if before is None else before.names).extend(names)
        self.columns: dict[str, _Column] = {}
        for field in [*known, *(field for field in found if field not in known)]:
            values = found.pop(field, {})  # one field at a time is in memory twice
            self.columns[field] = _extend_column(known.get(field), values, first, ids.count - first)
        self._ids = ids.list_visible()
        self._rows = ids.find_rows(self._ids)
        self.fields = dict(self._describe_fields())
        self._shuffle = functools.lru_cache(_ORDERS)(functools.partial(_shuffle, self._ids))

    def _describe_fields(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What can be filtered by, with the values there are."""
        for field, (kind, all_values, choices) in self.columns.items():
            if kind is None:
                continue
            values = all_values[self._rows]
            if kind == "number":
                values = values[~np.isnan(values)]
                if len(values):
                    yield field, {"type": "number", "min": float(values.min()), "max": float(values.max())}
                continue
            counts = np.bincount(values[values >= 0], minlength=len(choices))
            common = np.argsort(-counts, kind="stable")[:MOST_VALUES]
            offered = list(choices)
            if present := sorted(offered[choice] for choice in common[counts[common] > 0].tolist()):
                yield field, {"type": kind, "values": present}

    def list_ids(self, text: str, shuffle: int | None) -> NDArray[np.int64]:
        """The ids of all pictures whose name contains a text, in their order or in one that depends on a seed."""
        ids, rows = self._ids, self._rows
        if shuffle is not None:
            order = self._shuffle(shuffle)
            ids, rows = ids[order], rows[order]
        return ids[self.names.search(text)[rows]] if text else ids

    def match(self, filters: Mapping[str, Any]) -> NDArray[np.bool_]:
        """The rows whose pictures have this metadata; a picture without the field does not match."""
        matching = np.ones(self.count, bool)
        kinds = {field: column.kind for field, column in self.columns.items() if column.kind}
        for field, wanted in filters.items():
            choice = choose_values(kinds, field, wanted)
            kind, values, choices = self.columns[field]
            if isinstance(choice, Between):
                low = -np.inf if choice.min is None else choice.min
                high = np.inf if choice.max is None else choice.max
                matching &= (values >= low) & (values <= high)
            elif kind == "number":
                matching &= np.isin(values, np.array(choice, np.float64))
            else:
                matching &= np.isin(values, [choices[value] for value in choice if value in choices])
        return matching


def choose_values(kinds: Mapping[str, str], field: str, wanted: Any) -> Between | list[Any]:
    """What a filter asks of one field: a range, or those of the wanted values that are of the field's kind."""
    if field not in kinds:
        known = ", ".join(kinds) or "none"
        raise InvalidInput(f"there is no field {field[:100]!r} to filter by; fields are: {known[:500]}")
    if isinstance(wanted, Mapping):
        if not wanted or not set(wanted) <= set(Between._fields):
            raise InvalidInput(f"the filter of {field!r} has the keys {', '.join(wanted)}; give min, max or both")
        if kinds[field] != "number":
            raise InvalidInput(f"the field {field!r} holds no numbers; give a value, or a list of values")
        return Between(**wanted)
    # True equals 1 in Python, but not in JSON.
    return [
        value
        for value in (wanted if isinstance(wanted, list | tuple | set) else [wanted])
        if _find_kind([value]) == kinds[field]
    ]


def _fold(text: str) -> bytes:
    """A name without upper case, in UTF-8: there a letter that begins a match is never the middle of another."""
    return text.replace(_END.decode(), " ").casefold().encode("utf-8", "surrogatepass")


def _shuffle(ids: NDArray[np.int64], seed: int) -> NDArray[np.intp]:
    """An order that looks random, by splitmix64 of id and seed: it stays as it is when pictures come and go."""
    mixed = ids.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.argsort(mixed ^ (mixed >> np.uint64(31)))


def _to_float(value: float) -> float:
    """A number of JSON, where integers have any length."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _extend_column(before: _Column | None, values: dict[int, Any], first: int, count: int) -> _Column:
    """A field of `first` pictures and `count` more that have these values."""
    kind = before.kind if before is not None and not values else _find_kind(values.values())
    if kind is None or (before is not None and before.kind != kind):
        return _UNUSABLE
    choices: dict[Any, int] = {} if before is None else dict(before.choices)
    column: NDArray[Any] = np.full(first + count, -1, np.int32)
    numbers: Iterator[float] = (choices.setdefault(value, len(choices)) for value in values.values())
    if kind == "number":
        column = np.full(first + count, np.nan)
        numbers = (_to_float(value) for value in values.values())
    if before is not None:
        column[:first] = before.values
    column[first + np.fromiter(values, np.int64, len(values))] = np.fromiter(numbers, column.dtype, len(values))
    return _Column(kind, column, choices)


def _find_kind(values: Iterable[Any]) -> str | None:
    """The one kind of all values; None where they are mixed, or neither strings, numbers nor booleans."""
    kinds = {_KINDS.get(type(value)) for value in values}
    return kinds.pop() if len(kinds) == 1 else None
