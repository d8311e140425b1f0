"""Names and metadata of all pictures, read once: listing, looking for names, filters."""

import functools
from collections import Counter
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
    """A field of the metadata: values[id], None where a picture has none."""

    kind: str  # "string", "number" or "boolean"
    values: list[Any]


class Catalogue:
    """What is known about the pictures besides their vectors."""

    def __init__(self, items: Items) -> None:
        self._names: list[str] = []
        found: dict[str, dict[int, Any]] = {}
        for id, item in enumerate(items):
            self._names.append(str(item.get("name", id)).casefold())
            for field, value in item.items():
                if field != "name" and value is not None and (field in found or len(found) < _MOST_FIELDS):
                    found.setdefault(field, {})[id] = value
        self._columns: dict[str, _Column] = {}
        for field, values in found.items():
            if kind := _kind(values.values()):
                self._columns[field] = _Column(kind, [values.get(id) for id in range(len(items))])
        self._fields = {field: _described(column) for field, column in self._columns.items()}
        # The last few orders: a page that is scrolled asks for the same one again.
        self._shuffled = functools.lru_cache(4)(self._shuffle)

    def _shuffle(self, seed: int) -> NDArray[np.int64]:
        return np.random.default_rng(seed).permutation(len(self._names))

    def listed(self, text: str, shuffle: int | None) -> NDArray[np.int64]:
        """The ids of all pictures whose name contains a text, in their order or in one that depends on a seed."""
        ids = np.arange(len(self._names)) if shuffle is None else self._shuffled(shuffle)
        if not text:
            return ids
        text = text.casefold()
        return np.array([id for id in ids.tolist() if text in self._names[id]], np.int64)

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
        kind, values = self._columns[field]
        if isinstance(wanted, Between):
            if kind != "number":
                raise InvalidInput(f"the field {field!r} holds no numbers; give a value, or a list of values")
            low = -np.inf if wanted.min is None else wanted.min
            high = np.inf if wanted.max is None else wanted.max
            numbers = np.array([np.nan if value is None else float(value) for value in values])
            return (numbers >= low) & (numbers <= high)
        # True equals 1 to Python, but not to a reader of JSON.
        choices = [value for value in (wanted if isinstance(wanted, list) else [wanted]) if _kind([value]) == kind]
        chosen = set(choices)
        return np.fromiter((value is not None and value in chosen for value in values), bool, len(values))


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


def _described(column: _Column) -> dict[str, Any]:
    present = [value for value in column.values if value is not None]
    if column.kind == "number":
        return {"type": "number", "min": float(min(present)), "max": float(max(present))}
    common = [value for value, _ in Counter(present).most_common(_MOST_VALUES)]
    return {"type": column.kind, "values": sorted(common)}
