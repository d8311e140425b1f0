"""An index with its pictures, its model and the queries it remembers: everything the endpoints do, without HTTP."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__, explain, similar
from suffuse.machine import cores
from suffuse.online import Generation, Method
from suffuse.service.catalogue import Catalogue
from suffuse.service.limits import Limits
from suffuse.service.models import SearchRequest
from suffuse.service.pictures import Pictures
from suffuse.service.problems import Problem
from suffuse.service.queries import Extractor, Queries
from suffuse.similar import Found

SERVED: tuple[Method, ...] = ("diffusion", "knn")
# How deep the other list is looked through for a hit of one list.
OTHER_RANKS = 1000


class Engine:
    """What the service knows; safe to use from many threads."""

    def __init__(
        self, index: Generation, name: str, *, image_root: Path | None, extractor: Extractor | None, limits: Limits
    ) -> None:
        self.index, self.limits = index, limits
        self._name, self._can_extract = name, extractor is not None
        self.pictures = None if image_root is None else Pictures(image_root, limits)
        self.queries = Queries(self.index, self.pictures, extractor, limits)
        self._catalogue: Catalogue | None = None
        # Kernels let others run meanwhile, so there is nothing to gain from more threads than cores.
        self.threads = cores()

    def __len__(self) -> int:
        """The number of images."""
        return len(self.index)

    def check(self) -> None:
        """Nothing that could go away is needed."""

    def close(self) -> None:
        """Nothing is held open that another engine would wait for."""

    def warm(self) -> None:
        """Load the kernels and read what every request needs, so that the first one is as fast as the others."""
        self._catalogue = Catalogue(self.index.items)
        owned = np.arange(len(self.index)) if self.index.owners is None else np.unique(self.index.owners)
        first, *unwanted = owned[:2].tolist()
        for method in SERVED:
            similar.search(self.index, similar.wanted(self.index, [first], unwanted), 10, method=method)
            similar.search(self.index, similar.wanted(self.index, [first]), 10, method=method)
        self.explain(f"i:{first}", first, 10)

    @property
    def catalogue(self) -> Catalogue:
        """Names and metadata, once the service is warm."""
        assert self._catalogue is not None
        return self._catalogue

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        index, counts = self.index, self.index.manifest.counts
        return {
            "name": self._name,
            "images": len(index),
            "elements": counts["elements"],
            "dimensions": index.dimensions,
            "params": index.params.to_dict(),
            "methods": list(SERVED),
            "regional": index.owners is not None,
            "pictures": self.pictures is not None,
            "upload": self._can_extract,
            "explain": True,
            "chain": index.graph is not None,
            "metadata": self.catalogue.fields(),
            "limits": self.limits.shown(),
            "version": __version__,
        }

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        if not 0 <= id < len(self.index):
            raise Problem(404, f"there is no item {id}", f"ids go from 0 to {len(self.index) - 1}")
        content = self.index.items[id]
        metadata = {field: value for field, value in content.items() if field != "name"}
        return shown(id, str(content.get("name", id)), metadata, pictures=self.pictures is not None)

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        ids = self.catalogue.listed(text, shuffle)
        return {
            "total": len(ids),
            "offset": offset,
            "items": [self.item(id) for id in ids[offset : offset + limit].tolist()],
        }

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        began = time.perf_counter()
        token, query = self.queries.understood(request, upload)
        allowed = None if request.filter is None else self.catalogue.allowed(request.filter)
        lists: dict[Method, Found] = {}
        taken: dict[Method, float] = {}
        likeness, shared = similar.Likeness(self.index, query), 0.0
        if request.method == "both":
            start = time.perf_counter()
            likeness.compute()
            shared = milliseconds(start)
        for method in SERVED:
            if request.method in (method, "both"):
                start = time.perf_counter()
                # Both lists are made deep enough to say where a hit of one stands in the other.
                top = max(request.top, OTHER_RANKS) if request.method == "both" else request.top
                lists[method] = similar.search(
                    self.index, query, top, request.seeds, method=method, allowed=allowed,
                    refine=None if request.refine else 0, likeness=likeness,
                )  # fmt: skip
                # What both need counts for both, as if each had been asked for alone.
                taken[method] = milliseconds(start) + (shared if method == "knn" or self.index.seeds_are_exact else 0)
        results = ranked(lists, taken, request.top, self.item)
        return {"query": token, "took_ms": milliseconds(began), "results": results}

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        hit = self.item(item)
        told = explain.explain(self.index, similar.start(self.index, self.queries.recalled(token), seeds), item)
        chain = told.chain and {**told.chain._asdict(), "nodes": [self.item(node) for node in told.chain.nodes]}
        return {
            "item": hit,
            "score": told.score,
            "contributions": [{**one._asdict(), "seed": self.item(one.seed)} for one in told.contributions],
            "chain": chain,
            "chain_missing": told.chain_missing,
        }


def shown(id: int, name: str, metadata: dict[str, Any], *, pictures: bool) -> dict[str, Any]:
    """A picture as clients see it."""
    return {
        "id": id,
        "name": name,
        "metadata": metadata,
        "image": f"/api/items/{id}/image" if pictures else None,
        "thumb": f"/api/items/{id}/thumb" if pictures else None,
    }


def ranked(
    lists: dict[Method, Found], taken: dict[Method, float], top: int, item: Callable[[int], dict[str, Any]]
) -> dict[Method, dict[str, Any]]:
    """The first hits of each method, with their ranks by the other one."""
    results: dict[Method, dict[str, Any]] = {}
    for method, found in lists.items():
        ids, scores = found.ids[:top], found.scores[:top]
        others = _ranks(ids, next((lists[other].ids for other in lists if other != method), ids[:0]))
        hits = [
            {**item(id), "score": score, "rank": rank, "other_rank": other}
            for rank, (id, score, other) in enumerate(zip(ids.tolist(), scores.tolist(), others, strict=True), 1)
        ]
        results[method] = {"took_ms": taken[method], "hits": hits}
    return results


def _ranks(ids: NDArray[np.int64], ranking: NDArray[np.int64]) -> list[int | None]:
    """Where each of these stands in a ranking, from 1 on; None where it is not among the first."""
    ranks: list[int | None] = [None] * len(ids)
    _, here, there = np.intersect1d(ids, ranking[:OTHER_RANKS], assume_unique=True, return_indices=True)
    for place, rank in zip(here.tolist(), there.tolist(), strict=True):
        ranks[place] = rank + 1
    return ranks


def milliseconds(start: float) -> float:
    """Since `start`, of the clock that counts parts of a second."""
    return round(1000 * (time.perf_counter() - start), 3)
