"""Suffuse re-ranks vector search by diffusion on the k-NN graph, at the speed of a nearest-neighbour search.

    import numpy as np, suffuse

    index = suffuse.build(np.load("features.npy"), "photos.index")
    hits = index.search(query, top=10)

What most people need is importable from here. Names are loaded when they are first used, since numba and faiss
take most of a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from suffuse.core.params import Params
    from suffuse.errors import (
        BuildInterrupted,
        ChangeFailed,
        DatabaseProblem,
        IndexBroken,
        IndexBusy,
        IndexExists,
        IndexMissing,
        IndexProblem,
        IndexTooNew,
        InvalidInput,
        InvalidParams,
        MissingExtra,
        SuffuseError,
    )
    from suffuse.index.index import Index, build, open, rerank  # noqa: A004
    from suffuse.index.search import Hits
    from suffuse.index.snapshot import verify
    from suffuse.index.writer import ChangeSummary
    from suffuse.offline.build import BuildSummary

_HOMES = {
    "BuildInterrupted": "errors",
    "BuildSummary": "offline.build",
    "ChangeFailed": "errors",
    "ChangeSummary": "index.writer",
    "DatabaseProblem": "errors",
    "Hits": "index.search",
    "Index": "index.index",
    "IndexBroken": "errors",
    "IndexBusy": "errors",
    "IndexExists": "errors",
    "IndexMissing": "errors",
    "IndexProblem": "errors",
    "IndexTooNew": "errors",
    "InvalidInput": "errors",
    "InvalidParams": "errors",
    "MissingExtra": "errors",
    "Params": "core.params",
    "SuffuseError": "errors",
    "build": "index.index",
    "open": "index.index",
    "rerank": "index.index",
    "verify": "index.snapshot",
}

__all__ = [
    "BuildInterrupted",
    "BuildSummary",
    "ChangeFailed",
    "ChangeSummary",
    "DatabaseProblem",
    "Hits",
    "Index",
    "IndexBroken",
    "IndexBusy",
    "IndexExists",
    "IndexMissing",
    "IndexProblem",
    "IndexTooNew",
    "InvalidInput",
    "InvalidParams",
    "MissingExtra",
    "Params",
    "SuffuseError",
    "build",
    "open",
    "rerank",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'suffuse' has no attribute {name!r}")
    return getattr(importlib.import_module(f"suffuse.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
