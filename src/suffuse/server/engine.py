"""An index that is served: its generations one after the other, and what can be asked of each, without HTTP."""

import abc
import contextlib
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suffuse import __version__
from suffuse.core.blas import cores
from suffuse.errors import InvalidInput, SuffuseError
from suffuse.index.catalogue import Catalogue
from suffuse.index.explain import Explanation, explain
from suffuse.index.search import Hits, Likeness, Method, Query, compose, find_seeds, search
from suffuse.index.snapshot import Searcher, Snapshot
from suffuse.server.models import Info, SearchRequest
from suffuse.server.problems import Problem
from suffuse.server.queries import Queries, plain_filters
from suffuse.store.manifest import MANIFEST, read_manifest

logger = logging.getLogger(__name__)

SERVED: tuple[Method, ...] = ("diffusion", "knn")
# How deep the other list is searched for a hit of one list.
OTHER_RANKS = 1000


class Summary(NamedTuple):
    """A generation in numbers."""

    generation: int
    images: int
    stale: float  # the share of columns that changes concern and that were not solved again


class Ranking(NamedTuple):
    """The hits of one method, and the milliseconds that it takes alone: what both need counts for both."""

    found: Hits
    took_ms: float


class View(abc.ABC):
    """One generation of an index; safe to use from many threads."""

    def __init__(self, engine: "Engine", index: Searcher) -> None:
        self.engine, self.index = engine, index

    @abc.abstractmethod
    def read_items(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """Pictures as clients see them; all of them must be there."""

    @abc.abstractmethod
    def list_items(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """Some of the pictures whose names contain a text, and how many there are."""

    @abc.abstractmethod
    def _list_facts(self) -> dict[str, Any]:
        """Those fields of `Info` that depend on the index."""

    @abc.abstractmethod
    def _rank(self, request: SearchRequest, query: Query, top: int) -> dict[Method, Ranking]:
        """The `top` hits of each method that is asked for."""

    @abc.abstractmethod
    def _explain_score(self, query: Query, item: int, seeds: int) -> Explanation: ...

    def read_item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        return self.read_items([id])[id]

    def show_item(self, id: int, name: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """The JSON of a picture."""
        address = None if self.engine.pictures is None else f"/api/items/{id}/"
        files = {kind: address and address + kind for kind in ("image", "thumb")}
        return {"id": id, "name": name, "metadata": metadata, **files}

    def describe(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        engine = self.engine
        known = {
            **self._list_facts(),
            "name": engine.name,
            "methods": list(SERVED),
            "pictures": engine.pictures is not None,
            "upload": engine.queries.extractor is not None,
            "explain": True,
            "limits": engine.limits.select_public(),
            "version": __version__,
        }
        return {field: known[field] for field in Info.model_fields}

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file of the query."""
        began = time.perf_counter()
        token, query = self.engine.queries.understand(self.index, request, upload)
        # Both lists are made deep enough to find the hits of one in the other.
        top = max(request.top, OTHER_RANKS) if request.method == "both" else request.top
        rankings = self._rank(request, query, top)
        items = self.read_items({id for found, _ in rankings.values() for id in found.ids[: request.top].tolist()})
        results = {}
        for method, (found, took_ms) in rankings.items():
            ids, scores = found.ids[: request.top], found.scores[: request.top]
            others = next((rankings[other].found.ids for other in rankings if other != method), ids[:0])
            ranks = {id: rank for rank, id in enumerate(others[:OTHER_RANKS].tolist(), 1)}
            hits = [
                {**items[id], "score": score, "rank": rank, "other_rank": ranks.get(id)}
                for rank, (id, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True), 1)
            ]
            results[method] = {"took_ms": took_ms, "hits": hits}
        return {"query": token, "took_ms": milliseconds_since(began), "results": results}

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        hit = self.read_item(item)
        score, given, chain, missing = self._explain_score(self.engine.queries.recall(self.index, token), item, seeds)
        items = self.read_items({*(one.seed for one in given), *(chain.nodes if chain else ())})
        return {
            "item": hit,
            "score": score,
            "contributions": [{**one._asdict(), "seed": items[one.seed]} for one in given],
            "chain": chain and {**chain._asdict(), "nodes": [items[node] for node in chain.nodes]},
            "chain_missing": missing,
        }


class Engine(abc.ABC):
    """An index that can be served, wherever it is; safe to use from many threads."""

    def __init__(self, name: str, threads: int, queries: Queries) -> None:
        """`threads` search at the same time."""
        self.name, self.threads, self.queries = name, threads, queries
        self.pictures, self.limits = queries.pictures, queries.limits

    @abc.abstractmethod
    def summarize(self) -> Summary:
        """The newest generation that is known; it must not wait, as the event loop asks."""

    @abc.abstractmethod
    def open_view(self) -> contextlib.AbstractContextManager[View]:
        """The newest generation, for one request; raises a `Problem` if it cannot be read now."""

    @abc.abstractmethod
    def warm(self) -> None:
        """Do now what would make the first request slow."""

    @abc.abstractmethod
    def follow(self) -> None:
        """Notice from now on when another process changes the index."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release threads and connections; the engine may be used again later."""


class IndexView(View):
    """One generation of an index on disk, its names and metadata."""

    index: Snapshot

    def __init__(self, engine: Engine, index: Snapshot, catalogue: Catalogue) -> None:
        super().__init__(engine, index)
        self.catalogue = catalogue

    def warm(self) -> None:
        """Load the kernels, and read what every search needs."""
        index = self.index
        rows = index.ids.list_visible_rows()
        if index.owners is not None:
            rows = np.intersect1d(rows, index.owners)  # an image without regions cannot be searched by
        if not len(rows):
            return  # everything was removed
        first, *unwanted = index.name_rows(rows[:2]).tolist()
        for method in SERVED:
            search(index, compose(index, [first], unwanted), 10, method=method)
            search(index, compose(index, [first]), 10, method=method)
        self.explain(f"i:{first}", first, 10)

    def _list_facts(self) -> dict[str, Any]:
        index, hidden = self.index, self.index.hidden_elements
        elements = index.shape[0] - (0 if hidden is None else int(hidden.sum()))
        return {
            "images": len(index),
            "elements": elements,
            "dimensions": index.dimensions,
            "params": index.params.to_dict(),
            "regional": index.is_regional,
            # As `Snapshot.graph`, which would compute that of an index that was changed.
            "chain": index.params.with_graph and (index.params.with_lists or not index.manifest.segments),
            "metadata": self.catalogue.fields,
        }

    def read_item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it; a `Problem` if there is none."""
        try:
            self.index.ids.find_row(id)
        except InvalidInput as error:
            raise Problem(404, f"there is no item {id}", str(error).partition("; ")[2]) from None
        return super().read_item(id)

    def read_items(self, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Pictures as clients see them; to find their rows one by one would take longer than to read them."""
        wanted, items = list(ids), {}
        for id, row in zip(wanted, self.index.ids.find_rows(np.array(wanted, np.int64)).tolist(), strict=True):
            metadata = dict(self.index.items.at(row))
            items[id] = self.show_item(id, str(metadata.pop("name", id)), metadata)
        return items

    def list_items(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """Some of the pictures whose names contain a text, and how many there are."""
        ids = self.catalogue.list_ids(text, shuffle)
        items = self.read_items(ids[offset : offset + limit].tolist())
        return {"total": len(ids), "offset": offset, "items": list(items.values())}

    def _rank(self, request: SearchRequest, query: Query, top: int) -> dict[Method, Ranking]:
        if request.filter is not None:
            query = query._replace(allowed=self.catalogue.match(plain_filters(request)))
        likeness, shared = Likeness(self.index, query), 0.0
        if request.method == "both":
            start = time.perf_counter()
            _ = likeness.values  # which are kept
            shared = milliseconds_since(start)
        rankings: dict[Method, Ranking] = {}
        for method in SERVED:
            if request.method in (method, "both"):
                start = time.perf_counter()
                refine = None if request.refine else 0
                found = search(self.index, query, top, request.seeds, method=method, refine=refine, likeness=likeness)
                common = shared if method == "knn" or self.index.seeds_are_exact else 0
                rankings[method] = Ranking(found, milliseconds_since(start) + common)
        return rankings

    def _explain_score(self, query: Query, item: int, seeds: int) -> Explanation:
        return explain(self.index, find_seeds(self.index, query, seeds), item)


class IndexEngine(Engine):
    """An index on disk; a request sees the newest generation there was when it came, and no other."""

    def __init__(self, path: Path, index: Snapshot, queries: Queries) -> None:
        # Kernels run without the interpreter's lock, so more threads than cores gain nothing.
        super().__init__(path.resolve().name, cores(), queries)
        self.path, self._index = path, index
        self._view: IndexView | None = None
        self._refreshing, self._ended = threading.Lock(), threading.Event()
        self._follower: threading.Thread | None = None

    def summarize(self) -> Summary:
        """The generation that requests see now."""
        index = self._index
        return Summary(index.manifest.generation, len(index), index.stale)

    def warm(self) -> None:
        """Load the kernels and read what every request needs, so that the first one is as fast as the others."""
        with self._refreshing:
            view = IndexView(self, self._index, Catalogue(self._index.ids, self._index.items))
            view.warm()
            self._view = view

    @property
    def view(self) -> IndexView:
        """The generation that requests see now, once the service is warm."""
        assert self._view is not None
        return self._view

    def open_view(self) -> contextlib.AbstractContextManager[View]:
        """The generation that requests see now; it stays open by itself."""
        return contextlib.nullcontext(self.view)

    def refresh(self) -> bool:
        """Go on to the newest generation; whether there was one."""
        with self._refreshing:
            if read_manifest(self.path) == self._index.manifest:
                return False
            index, view = Snapshot.open(self.path), self._view
            if view is not None:
                before = view.catalogue if _has_grown(view.index, index) else None
                view = IndexView(self, index, Catalogue(index.ids, index.items, before))
            self._index, self._view = index, view
        _give_back_memory()
        return True

    def follow(self) -> None:
        """Notice from now on when another process changes the index."""
        if self._follower is None:
            self._ended.clear()
            self._follower = threading.Thread(target=self._watch, name="suffuse-follow", daemon=True)
            self._follower.start()

    def close(self) -> None:
        """Follow no more."""
        if self._follower is not None:
            self._ended.set()
            self._follower.join()
            self._follower = None

    def _watch(self) -> None:
        """Refresh when the manifest is another file; an error is logged once, and the next look tries again."""
        # None at first: it may have changed between the opening of the index and now.
        seen = failed = None
        while not self._ended.wait(self.limits.refresh_seconds):
            now = self.read_signature()
            if now is None or now == seen:
                continue
            try:
                self.refresh()
                seen = now
            except (SuffuseError, OSError) as error:
                if now != failed:
                    logger.warning("the index changed, and cannot be read; the old one is served on: %s", error)
                failed = now
            except Exception:
                logger.exception("the index changed, and cannot be served; the old one is served on")
                seen = now

    def read_signature(self) -> tuple[int, int, int] | None:
        """Numbers that differ for every manifest that is written; None while there is none."""
        with contextlib.suppress(OSError):
            facts = (self.path / MANIFEST).stat()
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None


def milliseconds_since(start: float) -> float:
    """The time since `start`, of `time.perf_counter`."""
    return round(1000 * (time.perf_counter() - start), 3)


def _has_grown(before: Snapshot, after: Snapshot) -> bool:
    """Whether the rows of one generation are the first ones of the other, so that their names are the same."""
    old, new = before.manifest, after.manifest
    same_base = (old.base, old.files) == (new.base, new.files)
    return same_base and old.generation < new.generation and before.image_rows <= after.image_rows


def _give_back_memory() -> None:
    """Return freed memory to the system: the allocator keeps it, a quarter of all that a changing service has."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(ctypes.c_size_t(0))
