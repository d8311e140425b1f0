"""What the endpoints need of an engine, wherever its index is."""

import contextlib
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.core.blas import cores
from suffuse.errors import InvalidInput, SuffuseError
from suffuse.index import explain, similar
from suffuse.index.online import Generation, Method
from suffuse.index.similar import Found
from suffuse.server.catalogue import Catalogue
from suffuse.server.models import Limits, SearchRequest
from suffuse.server.pictures import Pictures
from suffuse.server.problems import Problem
from suffuse.server.queries import Extractor, Queries
from suffuse.store.manifest import MANIFEST, read_manifest


class Summary(NamedTuple):
    """A generation in numbers."""

    generation: int
    images: int
    stale: float  # the share of columns that changes concern and that were not solved again


class Searching(Protocol):
    """An index that can be served; safe to use from many threads."""

    limits: Limits
    pictures: Pictures | None
    queries: Queries
    threads: int  # searches at the same time

    def summary(self) -> Summary:
        """The generation that is served, as far as it is known; asked for by the event loop, so it must not wait."""
        ...

    def warm(self) -> None:
        """Do now what would make the first request slow."""
        ...

    def follow(self) -> None:
        """Notice from now on when another process changes the index."""
        ...

    def check(self) -> None:
        """Raise a `Problem` if requests cannot be answered now."""
        ...

    def close(self) -> None:
        """Give back what is held open; it may be used again later."""
        ...

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        ...

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        ...

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        ...

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        ...

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        ...


logger = logging.getLogger(__name__)


class Follower:
    """Calls `refresh` when the manifest is another file; what it raises is logged once, and tried again."""

    def __init__(self, index: Path, refresh: Callable[[], object], seconds: float) -> None:
        self._manifest, self._refresh, self._seconds = index / MANIFEST, refresh, seconds
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, unless it has begun."""
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._ended,), name="suffuse-follow", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        if self._thread is not None and self._ended is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _run(self, ended: threading.Event) -> None:
        # None at first: it may have changed between the opening of the index and now.
        seen = told = None
        while not ended.wait(self._seconds):
            now = self._signature()
            if now is None or now == seen:
                continue
            try:
                self._refresh()
                seen = now
            except (SuffuseError, OSError) as error:
                if now != told:
                    logger.warning("the index changed, and cannot be read; the old one is served on: %s", error)
                told = now
            except Exception:
                logger.exception("the index changed, and cannot be served; the old one is served on")
                seen = now

    def _signature(self) -> tuple[int, int, int] | None:
        """What is another for every manifest that is written; None while there is none."""
        with contextlib.suppress(OSError):
            found = self._manifest.stat()
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None


SERVED: tuple[Method, ...] = ("diffusion", "knn")
# How deep the other list is looked through for a hit of one list.
OTHER_RANKS = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Around:
    """What an engine has beside its index, and keeps from one generation to the next."""

    name: str
    pictures: Pictures | None
    queries: Queries
    can_extract: bool
    limits: Limits


class View:
    """A generation, its names and metadata; safe to use from many threads."""

    def __init__(self, index: Generation, catalogue: Catalogue, around: Around) -> None:
        self.index, self.catalogue, self._around = index, catalogue, around

    def warm(self) -> None:
        """Load the kernels, and read what every search needs."""
        index = self.index
        # An image without regions cannot be searched by.
        places = index.ids.shown_places()
        if index.owners is not None:
            places = np.intersect1d(places, index.owners)
        if not len(places):
            return  # everything was removed
        first, *unwanted = index.ids.of(places[:2]).tolist()
        for method in SERVED:
            similar.search(index, similar.wanted(index, [first], unwanted), 10, method=method)
            similar.search(index, similar.wanted(index, [first]), 10, method=method)
        self.explain(f"i:{first}", first, 10)

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        index, around, manifest = self.index, self._around, self.index.manifest
        return {
            "name": around.name,
            "images": len(index),
            "elements": self._elements(),
            "dimensions": index.dimensions,
            "params": index.params.to_dict(),
            "methods": list(SERVED),
            "regional": index.owners is not None,
            "pictures": around.pictures is not None,
            "upload": around.can_extract,
            "explain": True,
            # As `Generation.graph`, which would make it of an index that was changed.
            "chain": index.params.with_graph and (index.params.with_lists or not manifest.segments),
            "metadata": self.catalogue.fields(),
            "limits": around.limits.shown(),
            "version": __version__,
        }

    def _elements(self) -> int:
        hidden = self.index.hidden_elements
        return self.index.shape[0] - (0 if hidden is None else int(hidden.sum()))

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        try:
            place = self.index.ids.place(id)
        except InvalidInput as error:
            raise Problem(404, f"there is no item {id}", str(error).partition("; ")[2]) from None
        return self._item(id, place)

    def _item(self, id: int, place: int) -> dict[str, Any]:
        content = self.index.items.at(place)
        metadata = {field: value for field, value in content.items() if field != "name"}
        return shown(id, str(content.get("name", id)), metadata, pictures=self._around.pictures is not None)

    def _items(self, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Many items that are there; to look for their places one by one would take longer than to read them."""
        wanted = list(ids)
        places = self.index.ids.places(np.array(wanted, np.int64)).tolist()
        return {id: self._item(id, place) for id, place in zip(wanted, places, strict=True)}

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        ids = self.catalogue.listed(text, shuffle)
        page = self._items(ids[offset : offset + limit].tolist())
        return {"total": len(ids), "offset": offset, "items": list(page.values())}

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        began = time.perf_counter()
        token, query = self._around.queries.understood(self.index, request, upload)
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
        items = self._items({id for found in lists.values() for id in found.ids[: request.top].tolist()})
        results = ranked(lists, taken, request.top, items.__getitem__)
        return {"query": token, "took_ms": milliseconds(began), "results": results}

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        hit = self.item(item)
        query = self._around.queries.recalled(self.index, token)
        told = explain.explain(self.index, similar.start(self.index, query, seeds), item)
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


class Engine:
    """What the service knows; safe to use from many threads.

    A request sees the newest generation there was when it came, and no other. The next one is made ready beside it.
    """

    def __init__(
        self, path: Path, index: Generation, *, image_root: Path | None, extractor: Extractor | None, limits: Limits
    ) -> None:
        self.path, self.limits = path, limits
        self.pictures = None if image_root is None else Pictures(image_root, limits)
        self.queries = Queries(self.pictures, extractor, limits)
        self._around = Around(
            name=path.resolve().name, pictures=self.pictures, queries=self.queries,
            can_extract=extractor is not None, limits=limits,
        )  # fmt: skip
        self._index = index
        self._view: View | None = None
        self._refreshing = threading.Lock()
        self._follower = Follower(path, self.refresh, limits.refresh_seconds)
        # Kernels let others run meanwhile, so there is nothing to gain from more threads than cores.
        self.threads = cores()

    def summary(self) -> Summary:
        """The generation that requests see now."""
        index = self._index
        return Summary(index.manifest.generation, len(index), index.stale)

    def check(self) -> None:
        """Nothing that could go away is needed."""

    def follow(self) -> None:
        """Notice when another process changes the index."""
        self._follower.start()

    def close(self) -> None:
        """Nothing is held open that another engine would wait for."""
        self._follower.stop()

    def warm(self) -> None:
        """Load the kernels and read what every request needs, so that the first one is as fast as the others."""
        with self._refreshing:
            view = View(self._index, Catalogue(self._index.ids, self._index.items), self._around)
            view.warm()
            self._view = view

    @property
    def view(self) -> View:
        """The generation that requests see now, once the service is warm."""
        assert self._view is not None
        return self._view

    def refresh(self) -> bool:
        """Go on to the newest generation; whether there was one."""
        with self._refreshing:
            if read_manifest(self.path) == self._index.manifest:
                return False
            index, view = Generation.open(self.path), self._view
            if view is not None:
                catalogue = Catalogue(index.ids, index.items, view.catalogue if _grown(view.index, index) else None)
                view = View(index, catalogue, self._around)
            self._index, self._view = index, view
        _give_back_memory()
        return True

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        return self.view.info()

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        return self.view.item(id)

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        return self.view.listed(offset, limit, text, shuffle)

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        return self.view.search(request, upload)

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        return self.view.explain(token, item, seeds)


def _grown(before: Generation, after: Generation) -> bool:
    """Whether the places of one generation are the first ones of the other, so that their names are the same."""
    old, new = before.manifest, after.manifest
    same_base = (old.base, old.files) == (new.base, new.files)
    return same_base and old.generation < new.generation and before.places <= after.places


def _give_back_memory() -> None:
    """Return what was freed to the system, where the allocator keeps it: a change frees large arrays in many threads.

    Without this a service that changes all the time has a quarter more memory than it needs.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(ctypes.c_size_t(0))
