"""What a search is asked with: rows of queries, and counts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core.features import check_owners
from suffuse.core.neighbors import Features
from suffuse.errors import InvalidInput, InvalidParams


def group_rows(rows: Features, owners: NDArray[Any] | None) -> tuple[NDArray[np.int64], Features]:
    """Rows of one query brought together: query q has the rows ptr[q]:ptr[q + 1]."""
    if owners is None:
        return np.arange(len(rows) + 1, dtype=np.int64), rows
    query_of = check_owners(owners, len(rows), "query owners")
    numbers, sizes = np.unique(query_of, return_counts=True)
    if len(gaps := np.flatnonzero(numbers != np.arange(len(numbers)))):
        raise InvalidInput(
            f"query {gaps[0]} has no regions, although there are {int(numbers[-1]) + 1} queries; number them anew"
        )
    order = np.argsort(query_of, kind="stable")
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), rows[order]


def check_count(name: str, value: Any) -> None:
    """Refuse what is no count of something."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidParams(f"{name} must be a whole number of at least 1, got {value!r}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless it is one of these."""
    if value not in choices:
        raise InvalidParams(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_refine(refine: int | None, usual: int, *, possible: bool) -> int:
    """How many candidates get a second look, as the caller says; only an index whose columns hold images has one."""
    if refine is None:
        refine = usual if possible else 0
    if refine and not possible:
        raise InvalidParams(f"refine must be 0 for an index of regions that are not pooled, got {refine!r}")
    if refine:
        check_count("refine", refine)
    return int(refine)
