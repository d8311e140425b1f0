"""The parameters of an index: one frozen value, checked at birth."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args, get_origin

from suffuse.errors import InvalidParams

GraphRule = Literal["local", "paper"]
Support = Literal["graph", "features"]
ValueType = Literal["uint8", "float16", "float32"]
Pool = Literal["sum", "none"]
Search = Literal["exact", "ivfadc", "hnsw"]
SeedSearch = Literal["exact", "hnsw"]

# Called with the name of a stage, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

# What indexes were like before a parameter existed: their manifests do not name it.
_BEFORE = {
    "graph": "paper",
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

    k           length of the k-NN lists, the element itself included (paper: 50; 200 for regions)
    graph       how edges and seeds are weighed: "local", by local scales, shared neighbours and ranks, so that nothing
                has to be tuned; or "paper", by similarity ** gamma
    alpha       probability that the random walk goes on (paper: 0.99)
    gamma       exponent of the similarities where graph="paper" (paper: 3)
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
                    more; or "ivfadc" (the paper's)
    support_search  the same for the L-NN of support="features"
    seed_search     how the seeds of a query are found: "exact", or "hnsw", for which the index holds links (264 bytes
                    per element)
    probes      cells that "ivfadc" visits, of round(sqrt(n)); higher: better recall, slower
    ef          candidates that HNSW keeps while it searches for the graph or for supports, k at least; higher: better
                recall, slower
    with_graph  the index holds the graph, too (8 bytes an edge and end), so that chains through it can be shown
    with_lists  the index holds the k-NN lists, too (8 bytes a neighbour), so that images can be added without a new
                search of everything
    """

    k: int = 50
    graph: GraphRule = "local"
    alpha: float = 0.99
    gamma: float = 3.0
    support: Support = "graph"
    truncation: int = 1000
    keep: int = 400
    iterations: int = 100
    tolerance: float = 1e-4
    whiten: int | None = None
    whiten_power: float = 1.0
    values: ValueType = "uint8"
    pool: Pool = "sum"
    graph_search: Search = "exact"  # an index of version 0.1 may say "cells" (`refuse_cells`)
    support_search: Search = "exact"
    seed_search: SeedSearch = "exact"
    probes: int = 32
    ef: int = 128
    with_graph: bool = False
    with_lists: bool = True

    def __post_init__(self) -> None:
        _whole("k", self.k, least=2)
        for name in ("truncation", "keep", "iterations", "probes", "ef"):
            _whole(name, getattr(self, name), least=1)
        if self.whiten is not None:
            _whole("whiten", self.whiten, least=1)
        _number("alpha", self.alpha, "above 0 and below 1", lambda x: 0 < x < 1)
        _number("gamma", self.gamma, "above 0 and at most 100", lambda x: 0 < x <= 100)
        _number("tolerance", self.tolerance, "above 0 and below 1", lambda x: 0 < x < 1)
        _number("whiten_power", self.whiten_power, "at least 0 and at most 1", lambda x: 0 <= x <= 1)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if get_origin(field.type) is Literal and (field.name, str(value)) != ("graph_search", "cells"):
                _one_of(field.name, value, get_args(field.type))
            elif field.type is bool and not isinstance(value, bool):
                raise _refuse(field.name, value, "True or False")
        if self.values == "float16" and 1 / (1 - float(self.alpha)) > _LARGEST_FLOAT16:
            # An entry of a column can be as large as 1 / (1 - alpha).
            raise _refuse(
                "values", self.values, f"'uint8' or 'float32' for alpha {self.alpha}, whose columns outgrow float16"
            )
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


def refuse_cells(params: Params) -> None:
    """Raise if neighbours would have to be found by a search that is no longer there."""
    if str(params.graph_search) == "cells":
        raise InvalidParams(
            'graph_search="cells" is no longer there to find neighbours; build with graph_search="hnsw" instead'
        )


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


def _number(name: str, found: object, wanted: str, fits: Callable[[float], bool]) -> None:
    try:
        is_fine = isinstance(found, numbers.Real) and not isinstance(found, bool) and fits(float(found))
    except OverflowError:  # a whole number of 400 digits
        is_fine = False
    if not is_fine:
        raise _refuse(name, found, f"a number {wanted}")


def _one_of(name: str, found: object, choices: tuple[str, ...]) -> None:
    if not isinstance(found, str) or found not in choices:
        raise _refuse(name, found, " or ".join(repr(choice) for choice in choices))
