"""Names and metadata of all pictures, read once: listing, looking for names, filters."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.items import Items
from suffuse.service.models import Between

# Values of a field that are offered; a field with more can be filtered by, but not chosen from.
_MOST_VALUES = 50
_MOST_FIELDS = 100


class _Column(NamedTuple):
    """A field of the metadata, as numbers: a million pictures are filtered in a few milliseconds."""

    kind: str  # "string", "number" or "boolean"
    values: NDArray[np.float64] | NDArray[np.int32]  # numbers, nan where there is none; or places in `choices`, or -1
    choices: dict[Any, int]  # of texts and truth values


class Catalogue:
    """What is known about the pictures besides their vectors."""

    def __init__(self, items: Items) -> None:
        names: list[str] = []
        found: dict[str, dict[int, Any]] = {}
        for id, item in enumerate(items.by_place()):
            names.append(str(item.get("name", id)))
            for field, value in item.items():
                if field != "name" and value is not None and (field in found or len(found) < _MOST_FIELDS):
                    found.setdefault(field, {})[id] = value
        self._names = _Names(names)
        self._columns: dict[str, _Column] = {}
        self._fields: dict[str, dict[str, Any]] = {}
        for field in list(found):
            values = found.pop(field)  # one field at a time is held twice
            if kind := _kind(values.values()):
                self._columns[field] = _column(kind, values, len(names))
                self._fields[field] = _described(kind, values)
        # The last few orders: a page that is scrolled asks for the same one again.
        self._shuffled = functools.lru_cache(4)(self._shuffle)

    def _shuffle(self, seed: int) -> NDArray[np.int64]:
        return np.random.default_rng(seed).permutation(len(self._names))

    def listed(self, text: str, shuffle: int | None) -> NDArray[np.int64]:
        """The ids of all pictures whose name contains a text, in their order or in one that depends on a seed."""
        ids = np.arange(len(self._names)) if shuffle is None else self._shuffled(shuffle)
        return ids[self._names.containing(text)[ids]] if text else ids

    def fields(self) -> dict[str, dict[str, Any]]:
        """What can be filtered by, with the values there are."""
        return self._fields

    def allowed(self, filters: dict[str, Any]) -> NDArray[np.bool_]:
        """Which pictures have the metadata that is asked for; one without the field has not."""
        allowed = np.ones(len(self._names), bool)
        for field, wanted in filters.items():
            if field not in self._columns:
                known = ", ".join(self._columns) or "none"
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

    def __init__(self, names: Iterable[str]) -> None:
        # As UTF-8, where a letter that begins a match is never the middle of another.
        lines = [self._folded(name) + self._END.encode() for name in names]
        self._ends = np.cumsum([len(line) for line in lines])
        self._text = b"".join(lines)

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


def _float(value: float) -> float:
    """A number of JSON; whole numbers there have any length."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _column(kind: str, values: dict[int, Any], count: int) -> _Column:
    ids = np.fromiter(values, np.int64, len(values))
    if kind == "number":
        numbers = np.full(count, np.nan)
        numbers[ids] = np.fromiter((_float(value) for value in values.values()), np.float64, len(values))
        return _Column(kind, numbers, {})
    choices: dict[Any, int] = {}
    places = np.full(count, -1, np.int32)
    places[ids] = np.fromiter(
        (choices.setdefault(value, len(choices)) for value in values.values()), np.int32, len(values)
    )
    return _Column(kind, places, choices)


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


def _described(kind: str, values: dict[int, Any]) -> dict[str, Any]:
    if kind == "number":
        return {"type": "number", "min": _float(min(values.values())), "max": _float(max(values.values()))}
    common = [value for value, _ in Counter(values.values()).most_common(_MOST_VALUES)]
    return {"type": kind, "values": sorted(common)}
