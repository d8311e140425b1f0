"""The parameters of an index: one frozen value, checked at birth."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from suffuse.errors import InvalidParams

Support = Literal["graph", "features"]
ValueType = Literal["uint8", "float16", "float32"]
Pool = Literal["sum", "none"]
Search = Literal["exact", "ivfadc", "hnsw"]
GraphSearch = Literal["exact", "cells", "ivfadc", "hnsw"]
SeedSearch = Literal["exact", "hnsw"]

# What indexes were like before a parameter existed: their manifests do not name it.
_BEFORE = {
    "pool": "none",
    "graph_search": "exact",
    "support_search": "exact",
    "seed_search": "exact",
    "probes": 32,
    "ef": 128,
    "with_graph": False,
    "with_lists": False,
}

# Column ids are stored as int32, so no support can hold more elements than that.
LARGEST_COUNT = 2**31 - 1
_LARGEST_FLOAT16 = 65504


@dataclass(frozen=True, kw_only=True)
class Params:
    """What decides the content of an index, apart from the features.

    k           neighbours in the graph, the element itself included (paper: 50; 200 for regions)
    alpha       probability that the random walk goes on (paper: 0.99)
    gamma       exponent of the similarities, in the graph and for the seeds of a query (paper: 3)
    support     where a column is solved: "graph" (the walk's own reach) or "features" (the paper's L-NN)
    truncation  L, the number of elements in a column's support (paper: 1000)
    keep        entries of each column that are stored, the largest ones
    iterations  conjugate gradient stops after so many steps (paper: 20, which leaves residuals near 1e-4) ...
    tolerance   ... or when the residual is this small (paper: 1e-6; below 1e-3 no ranking changes that we measured)
    whiten      dimensions to keep by PCA whitening learned on the gallery; None leaves the features as they are
    whiten_power  0 only rotates and cuts, 1 whitens fully
    values      how columns are stored: "uint8", a compact code; or plain entries, "float16" or "float32"
    pool        of a regional index: "sum" stores columns summed over the regions of each image, "none" as they are
    graph_search    how the k-NN lists of the graph are found: "exact"; "hnsw", for a few hundred thousand elements and
                    more; "cells" (exact within the nearest cells of k-means); or "ivfadc" (the paper's)
    support_search  the same for the L-NN of support="features"
    seed_search     how the seeds of a query are found: "exact", or "hnsw", for which the index holds links (264 bytes
                    per element)
    probes      cells that "cells" and "ivfadc" visit, of round(sqrt(n)); more find more
    ef          candidates that HNSW keeps while it searches for the graph or for supports, k at least; more find more
    with_graph  the index holds the graph, too (8 bytes an edge and end), so that chains through it can be shown
    with_lists  the index holds the k-NN lists, too (8 bytes a neighbour), so that it can be added to without a search
                of everything
    """

    k: int = 50
    alpha: float = 0.99
    gamma: float = 3.0
    support: Support = "graph"
    truncation: int = 1000
    keep: int = 500
    iterations: int = 100
    tolerance: float = 1e-4
    whiten: int | None = None
    whiten_power: float = 1.0
    values: ValueType = "uint8"
    pool: Pool = "sum"
    graph_search: GraphSearch = "exact"
    support_search: Search = "exact"
    seed_search: SeedSearch = "exact"
    probes: int = 32
    ef: int = 128
    with_graph: bool = False
    with_lists: bool = True

    def __post_init__(self) -> None:
        _whole("k", self.k, least=2)
        _between("alpha", self.alpha, 0.0, 1.0, low_included=False, high_included=False)
        _between("gamma", self.gamma, 0.0, 100.0, low_included=False)
        _one_of("support", self.support, ("graph", "features"))
        _whole("truncation", self.truncation, least=1)
        _whole("keep", self.keep, least=1)
        _whole("iterations", self.iterations, least=1)
        _between("tolerance", self.tolerance, 0.0, 1.0, low_included=False, high_included=False)
        if self.whiten is not None:
            _whole("whiten", self.whiten, least=1)
        _between("whiten_power", self.whiten_power, 0.0, 1.0)
        _one_of("values", self.values, ("uint8", "float16", "float32"))
        if self.values == "float16" and 1 / (1 - float(self.alpha)) > _LARGEST_FLOAT16:
            # An entry of a column can be as large as 1 / (1 - alpha).
            raise _refuse(
                "values", self.values, f"'uint8' or 'float32' for alpha {self.alpha}, whose columns outgrow float16"
            )
        _one_of("pool", self.pool, ("sum", "none"))
        _one_of("graph_search", self.graph_search, ("exact", "cells", "ivfadc", "hnsw"))
        _one_of("seed_search", self.seed_search, ("exact", "hnsw"))
        _one_of("support_search", self.support_search, ("exact", "ivfadc", "hnsw"))
        _whole("probes", self.probes, least=1)
        _whole("ef", self.ef, least=1)
        for name in ("with_graph", "with_lists"):
            if not isinstance(value := getattr(self, name), bool):
                raise _refuse(name, value, "True or False")
        for field in dataclasses.fields(self):
            # numpy's numbers are welcome, but a manifest holds plain ones.
            value = getattr(self, field.name)
            if not isinstance(value, str | bool | None):
                plain = float(value) if field.type is float else int(value)
                object.__setattr__(self, field.name, plain)

    def to_dict(self) -> dict[str, Any]:
        """The parameters as plain values, for a manifest or a JSON answer."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The opposite of `to_dict`; an unknown or missing name is an error, not a default.

        A parameter that did not yet exist gets the value that describes the indexes of its time.
        """
        values = {**_BEFORE, **values}
        expected = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - expected):
            raise InvalidParams(f"unknown parameter {unknown[0]!r}; known are: {', '.join(sorted(expected))}")
        if missing := sorted(expected - set(values)):
            raise InvalidParams(f"parameter {missing[0]!r} is missing")
        return cls(**values)


def _refuse(name: str, found: object, wanted: str) -> InvalidParams:
    """The one sentence form for every bad parameter."""
    return InvalidParams(f"{name} must be {wanted}, got {found!r}")


def _whole(name: str, found: object, *, least: int) -> None:
    wanted = f"a whole number of at least {least}"
    # bool is an int to Python; k=True is a mistake all the same.
    if isinstance(found, bool) or not isinstance(found, numbers.Integral):
        raise _refuse(name, found, wanted)
    if not least <= int(found) <= LARGEST_COUNT:
        raise _refuse(name, found, wanted if int(found) < least else f"at most {LARGEST_COUNT}")


def _between(
    name: str, found: object, low: float, high: float, *, low_included: bool = True, high_included: bool = True
) -> None:
    left = f"{'at least' if low_included else 'above'} {low:g}"
    right = f"{'at most' if high_included else 'below'} {high:g}"
    wanted = f"a number {left} and {right}"
    if isinstance(found, bool) or not isinstance(found, numbers.Real):
        raise _refuse(name, found, wanted)
    try:
        value = float(found)
    except OverflowError:  # a whole number of 400 digits
        value = math.inf
    if not math.isfinite(value):
        raise _refuse(name, found, wanted)
    too_low = value < low or (value == low and not low_included)
    too_high = value > high or (value == high and not high_included)
    if too_low or too_high:
        raise _refuse(name, found, wanted)


def _one_of(name: str, found: object, choices: tuple[str, ...]) -> None:
    if not isinstance(found, str) or found not in choices:
        raise _refuse(name, found, " or ".join(repr(choice) for choice in choices))
