"""An index in PostgreSQL with the queries that the service remembers: what `engine` does for one that is open here.

Diffusion is that of `suffuse.index.similar` without the second look, which needs whole columns of all candidates here.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.core.features import check_matrix, unit_rows
from suffuse.core.neighbors import Features
from suffuse.errors import InvalidInput
from suffuse.index.online import Generation, Method
from suffuse.index.similar import NEGATIVE, Found, Wanted
from suffuse.server import statements
from suffuse.server.engine import OTHER_RANKS, SERVED, Summary, milliseconds, ranked, shown
from suffuse.server.models import Limits, SearchRequest
from suffuse.server.pictures import Pictures
from suffuse.server.problems import Problem
from suffuse.server.queries import Extractor, Queries
from suffuse.server.statements import About, Connections, Fields, Reading, Scope, Signed

NO_GRAPH = "the graph is not in the database; serve the index itself, built with --with-graph"
# The database does the work, so that more searches than cores can wait for it here.
_THREADS = 8


class DatabaseEngine:
    """What the service knows about an exported index; safe to use from many threads.

    A new export is seen by the next request. `exact` finds the seeds by comparing with all images, and not by HNSW.
    """

    def __init__(
        self,
        url: str,
        schema: str = "suffuse",
        *,
        image_root: Path | None,
        extractor: Extractor | None,
        limits: Limits,
        exact: bool = False,
    ) -> None:
        self.limits, self.threads = limits, _THREADS
        self._exact, self._can_extract = exact, extractor is not None
        self.pictures = None if image_root is None else Pictures(image_root, limits)
        self.queries = Queries(self.pictures, extractor, limits)
        self._connections = Connections(url, schema, limits.seconds)
        database, about = self._connections.first()
        self._name, self._about = f"{database}/{schema}", about
        self._fields: tuple[About, Fields] | None = None
        self._describing = threading.Lock()

    def summary(self) -> Summary:
        """The export that was there when the database was last asked for it; none of its columns is stale."""
        return Summary(self._about.generation, self._about.images, 0.0)

    def follow(self) -> None:
        """Every request sees the newest export anyway."""

    def warm(self) -> None:
        """Read what can be filtered by; a database that is away now is asked again by the first request."""
        with contextlib.suppress(Problem), self._connections.reading() as reading:
            self._known(reading)

    def check(self) -> None:
        """Tell if the index cannot be read now."""
        with self._connections.reading() as reading:
            self._about = reading.about

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _known(self, reading: Reading) -> Fields:
        """The fields of this export; they take a while, so they are read once, by whoever comes first."""
        with self._describing:
            if (kept := self._fields) is None or kept[0] != reading.about:
                self._fields = kept = reading.about, statements.fields(reading)
        self._about = reading.about
        return kept[1]

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        with self._connections.reading() as reading:
            return {
                "name": self._name,
                "images": reading.about.images,
                "elements": reading.about.images,
                "dimensions": reading.about.query_dimensions,
                "params": reading.about.params,
                "methods": list(SERVED),
                "regional": False,
                "pictures": self.pictures is not None,
                "upload": self._can_extract,
                "explain": True,
                "chain": False,
                "metadata": self._known(reading),
                "limits": self.limits.shown(),
                "version": __version__,
            }

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        with self._connections.reading() as reading:
            return self._items(reading, [id])[id]

    def _items(self, reading: Reading, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        found = statements.items(reading, ids)
        if wrong := [id for id in ids if id not in found]:
            raise Problem(404, f"there is no item {wrong[0]}", statements.Numbers(reading).hint())
        return {id: self._shown(id, name, metadata) for id, (name, metadata) in found.items()}

    def _shown(self, id: int, name: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return shown(id, name, metadata, pictures=self.pictures is not None)

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        with self._connections.reading() as reading:
            total, page = statements.listed(reading, offset, limit, text, shuffle)
        return {"total": total, "offset": offset, "items": [self._shown(*item) for item in page]}

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        began = time.perf_counter()
        with self._connections.reading() as reading:
            token, query = self.queries.understood(_gallery(reading), request, upload)
            left_out = (*query.positive, *query.negative, *query.left_out)
            known = self._known(reading) if request.filter else {}
            scope = statements.scope(known, request.filter or {}, left_out)
            lists, taken = self._lists(reading, request, query, scope)
            ids = {id for found in lists.values() for id in found.ids[: request.top].tolist()}
            items = self._items(reading, sorted(ids))
        results = ranked(lists, taken, request.top, items.__getitem__)
        return {"query": token, "took_ms": milliseconds(began), "results": results}

    def _lists(
        self, reading: Reading, request: SearchRequest, query: Wanted, scope: Scope
    ) -> tuple[dict[Method, Found], dict[Method, float]]:
        """The hits of each method, and the milliseconds that it takes alone: what both need counts for both."""
        lists: dict[Method, Found] = {}
        taken: dict[Method, float] = {}
        # Both lists are made deep enough to say where a hit of one stands in the other.
        top = max(request.top, OTHER_RANKS) if request.method == "both" else request.top
        start = time.perf_counter()
        signed = _signed(reading, query)
        shared = milliseconds(start)
        if request.method != "knn":
            lists["diffusion"] = statements.diffused(reading, signed, request.seeds, self._exact, scope, top)
            taken["diffusion"] = milliseconds(start)
        reached = lists.get("diffusion")
        if request.method == "diffusion" and reached is not None and len(reached.ids) >= top:
            return lists, taken
        start = time.perf_counter()
        near = statements.nearest(reading, _direction(query, signed), scope, top)
        spent = milliseconds(start)
        if reached is not None and len(reached.ids) < top:
            lists["diffusion"] = _filled(reached, near, top)
            taken["diffusion"] += spent
        if request.method != "diffusion":
            lists["knn"], taken["knn"] = near, shared + spent
        return lists, taken

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        with self._connections.reading() as reading:
            hit = self._items(reading, [item])[item]
            signed = _signed(reading, self.queries.recalled(_gallery(reading), token))
            given = statements.contributions(reading, signed, seeds, self._exact, item)
            items = self._items(reading, [one.seed for one in given])
        return {
            "item": hit,
            "score": sum(one.amount for one in given),
            "contributions": [{**one._asdict(), "seed": items[one.seed]} for one in given],
            "chain": None,
            "chain_missing": NO_GRAPH,
        }


class _Gallery:
    """What `Queries` asks an index for, as one transaction sees it: its size, its space, its ids and its names.

    In a database pictures go by their ids everywhere, so an id is its own place.
    """

    owners = None

    def __init__(self, reading: Reading) -> None:
        self._reading, self.dimensions = reading, reading.about.query_dimensions
        self.shape = reading.about.images, reading.about.dimensions

    def __len__(self) -> int:
        return self._reading.about.images

    @property
    def items(self) -> "_Gallery":
        return self

    @property
    def ids(self) -> "_Gallery":
        return self

    def place(self, id: int) -> int:
        if not statements.items(self._reading, [id]):
            raise InvalidInput(f"there is no image {id}; {statements.Numbers(self._reading).hint()}")
        return id

    def places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids

    def name(self, id: int) -> str:
        return statements.items(self._reading, [id])[id][0]

    def prepare(self, queries: NDArray[Any]) -> Features:
        check_matrix(queries, "queries", least_rows=1, dimensions=self.dimensions)
        return statements.prepared(self._reading, unit_rows(queries, "queries"))


def _gallery(reading: Reading) -> Generation:
    return cast(Generation, _Gallery(reading))


def _signed(reading: Reading, query: Wanted) -> Signed:
    """All vectors of a query, wanted ones first, as `similar.start` has them."""
    rows = [query.vectors, statements.embeddings(reading, (*query.positive, *query.negative))]
    signs = [1.0] * (len(query.vectors) + len(query.positive)) + [-NEGATIVE] * len(query.negative)
    return Signed(np.concatenate(rows), signs)


def _direction(query: Wanted, signed: Signed) -> NDArray[np.float32]:
    """The similarity to this is that of `similar.Likeness`: a sum of all vectors with their signs, per wanted one."""
    total = np.asarray(signed.signs) @ signed.vectors.astype(np.float64)
    return (total / (len(query.vectors) + len(query.positive))).astype(np.float32)


def _filled(reached: Found, near: Found, top: int) -> Found:
    """The hits of diffusion, and behind them those of the `top` nearest that it did not reach, with the score 0."""
    rest = near.ids[~np.isin(near.ids, reached.ids)][: top - len(reached.ids)]
    zeros = np.zeros(len(rest), np.float32)
    return Found(np.concatenate([reached.ids, rest]), np.concatenate([reached.scores, zeros]))
