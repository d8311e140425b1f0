"""Names and metadata of all pictures, read once: listing, looking for names, filters.

Inside, pictures go by their places, those of removed ones among them; see `suffuse.store.ids`.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.server.models import Between
from suffuse.server.pictures import Kept
from suffuse.store.ids import Ids
from suffuse.store.items import Items

# Values of a field that are offered; a field with more can be filtered by, but not chosen from.
_MOST_VALUES = 50
_MOST_FIELDS = 100
# Orders that are kept: a page that is scrolled asks for the same one again.
_ORDERS = 4


class _Column(NamedTuple):
    """A field of the metadata, as numbers: a million pictures are filtered in a few milliseconds."""

    kind: str | None  # "string", "number" or "boolean"; None for what cannot be filtered by
    values: NDArray[np.float64] | NDArray[np.int32]  # numbers, nan where there is none; or places in `choices`, or -1
    choices: dict[Any, int]  # of texts and truth values


_UNUSABLE = _Column(None, np.empty(0, np.int32), {})


class Catalogue:
    """What is known about the pictures of one generation besides their vectors."""

    def __init__(self, ids: Ids, items: Items, before: "Catalogue | None" = None) -> None:
        """`before` is the catalogue of an older generation with the same base: only what was added is read.

        A field whose values are of several kinds stays so until the next compaction, also if the odd one is removed.
        """
        self._ids, self._count = ids, ids.count
        first = 0 if before is None else before._count
        if not first:
            items.check_all()
        known: dict[str, _Column] = {} if before is None else before._columns
        names: list[str] = []
        found: dict[str, dict[int, Any]] = {}
        for place, id in enumerate(ids.of(np.arange(first, ids.count)).tolist(), first):
            item = items.at(place)
            names.append(str(item.get("name", id)))
            for field, value in item.items():
                if field == "name" or value is None:
                    continue
                if field in known or field in found or len(known.keys() | found.keys()) < _MOST_FIELDS:
                    found.setdefault(field, {})[place - first] = value
        self._names: _Names = _Names(names, None if before is None else before._names)
        self._columns: dict[str, _Column] = {}
        for field in [*known, *(field for field in found if field not in known)]:
            values = found.pop(field, {})  # one field at a time is held twice
            self._columns[field] = _extended(known.get(field), values, first, ids.count - first)
        self._shown = ids.shown()
        self._places = ids.places(self._shown)
        self._fields = dict(self._described())
        self._orders = Kept[int, NDArray[np.int64]](_ORDERS, lambda _: 1)

    def _described(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for field, (kind, values, choices) in self._columns.items():
            if kind is None:
                continue
            shown = values[self._places]
            if kind == "number":
                shown = shown[~np.isnan(shown)]
                if len(shown):
                    yield field, {"type": "number", "min": float(shown.min()), "max": float(shown.max())}
                continue
            counts = np.bincount(shown[shown >= 0], minlength=len(choices))
            common = np.argsort(-counts, kind="stable")[:_MOST_VALUES]
            offered = list(choices)
            if there := sorted(offered[choice] for choice in common[counts[common] > 0].tolist()):
                yield field, {"type": kind, "values": there}

    def listed(self, text: str, shuffle: int | None) -> NDArray[np.int64]:
        """The ids of all pictures whose name contains a text, in their order or in one that depends on a seed."""
        ids, places = self._shown, self._places
        if shuffle is not None:
            order = self._order(shuffle)
            ids, places = ids[order], places[order]
        return ids[self._names.containing(text)[places]] if text else ids

    def _order(self, seed: int) -> NDArray[np.int64]:
        order = self._orders.get(seed)
        if order is None:
            order = np.argsort(_scrambled(self._shown, seed))
            self._orders.put(seed, order)
        return order

    def fields(self) -> dict[str, dict[str, Any]]:
        """What can be filtered by, with the values there are."""
        return self._fields

    def allowed(self, filters: dict[str, Any]) -> NDArray[np.bool_]:
        """At which places pictures have the metadata that is asked for; one without the field has not."""
        allowed = np.ones(self._count, bool)
        for field, wanted in filters.items():
            if field not in self._columns or self._columns[field].kind is None:
                known = ", ".join(name for name, column in self._columns.items() if column.kind) or "none"
                raise InvalidInput(f"there is no field {field[:100]!r} to filter by; fields are: {known[:500]}")
            allowed &= self._matching(field, wanted)
        return allowed

    def _matching(self, field: str, wanted: Any) -> NDArray[np.bool_]:
        kind, values, choices = self._columns[field]
        if isinstance(wanted, Between):
            if kind != "number":
                raise InvalidInput(f"the field {field!r} holds no numbers; give a value, or a list of values")
            low = -np.inf if wanted.min is None else wanted.min
            high = np.inf if wanted.max is None else wanted.max
            return (values >= low) & (values <= high)
        # True equals 1 to Python, but not to a reader of JSON.
        chosen = [value for value in (wanted if isinstance(wanted, list) else [wanted]) if _kind([value]) == kind]
        if kind == "number":
            return np.isin(values, np.array(chosen, np.float64))
        return np.isin(values, [choices[value] for value in chosen if value in choices])


class _Names:
    """All names in one text, to be looked through at once; upper and lower case are the same."""

    _END = "\0"
    _text: bytes
    _ends: NDArray[np.int64]

    def __init__(self, names: Iterable[str], before: "_Names | None" = None) -> None:
        # As UTF-8, where a letter that begins a match is never the middle of another.
        lines = [self._folded(name) + self._END.encode() for name in names]
        text = b"" if before is None else before._text
        ends = np.empty(0, np.int64) if before is None else before._ends
        self._ends = np.concatenate([ends, len(text) + np.cumsum([len(line) for line in lines], dtype=np.int64)])
        self._text = b"".join([text, *lines])

    def __len__(self) -> int:
        return len(self._ends)

    def _folded(self, text: str) -> bytes:
        return text.replace(self._END, " ").casefold().encode("utf-8", "surrogatepass")

    def containing(self, text: str) -> NDArray[np.bool_]:
        """Which names contain a text."""
        found = np.zeros(len(self), bool)
        places = np.fromiter(
            (match.start() for match in re.finditer(re.escape(self._folded(text)), self._text)), np.int64
        )
        found[np.searchsorted(self._ends, places, side="right")] = True
        return found


def _scrambled(ids: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A number for each id, no two the same, that looks random (splitmix64).

    It depends on nothing but the id and the seed, so an order by it stays as it is when pictures come and go.
    """
    mixed = ids.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _float(value: float) -> float:
    """A number of JSON; whole numbers there have any length."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _extended(before: _Column | None, values: dict[int, Any], first: int, count: int) -> _Column:
    """A field of `first` pictures and `count` more that have these values."""
    kind = before.kind if before is not None and not values else _kind(values.values())
    if kind is None or (before is not None and before.kind != kind):
        return _UNUSABLE
    at = np.fromiter(values, np.int64, len(values))
    if kind == "number":
        numbers = np.full(count, np.nan)
        numbers[at] = np.fromiter((_float(value) for value in values.values()), np.float64, len(values))
        old = np.full(first, np.nan) if before is None else before.values
        return _Column(kind, np.concatenate([old, numbers]), {})
    choices: dict[Any, int] = {} if before is None else dict(before.choices)
    chosen = np.full(count, -1, np.int32)
    chosen[at] = np.fromiter(
        (choices.setdefault(value, len(choices)) for value in values.values()), np.int32, len(values)
    )
    former = np.full(first, -1, np.int32) if before is None else before.values.astype(np.int32, copy=False)
    return _Column(kind, np.concatenate([former, chosen]), choices)


def _kind(values: Any) -> str | None:
    """The one kind of all values; None where they are mixed, or neither text, numbers nor truth values."""
    kinds = set()
    for value in values:
        match value:
            case bool():
                kinds.add("boolean")
            case int() | float():
                kinds.add("number")
            case str():
                kinds.add("string")
            case _:
                return None
    return kinds.pop() if len(kinds) == 1 else None
