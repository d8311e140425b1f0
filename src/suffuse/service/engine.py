"""An index with its pictures, its model and the queries it remembers: everything the endpoints do, without HTTP."""

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

from suffuse.machine import cores
from suffuse.manifest import read_manifest
from suffuse.online import Generation
from suffuse.service.catalogue import Catalogue
from suffuse.service.following import Follower
from suffuse.service.interface import Summary
from suffuse.service.limits import Limits
from suffuse.service.models import SearchRequest
from suffuse.service.pictures import Pictures
from suffuse.service.queries import Extractor, Queries
from suffuse.service.view import Around, View


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
