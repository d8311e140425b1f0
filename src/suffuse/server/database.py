"""An index in PostgreSQL that is served: what `engine` does for one on disk, in SQL.

Diffusion is that of `suffuse.index.search` without the second look, which needs whole columns of all candidates here,
and without districts, which are not exported.
In a database pictures go by their ids everywhere, so an id is its own row.
"""

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import numpy as np
import orjson
import psycopg
from numpy.typing import NDArray
from psycopg import errors, sql
from psycopg.types.json import Jsonb, set_json_loads

from suffuse.core.features import check_matrix, unit_rows
from suffuse.core.neighbors import Features
from suffuse.errors import DatabaseProblem, InvalidInput
from suffuse.index.catalogue import MOST_FIELDS, MOST_VALUES, Between, choose_values
from suffuse.index.explain import Contribution, Explanation
from suffuse.index.search import NEGATIVE, Hits, Method, Query
from suffuse.postgres import connection as postgres
from suffuse.server.engine import Engine, Ranking, Summary, View, milliseconds_since
from suffuse.server.models import SearchRequest
from suffuse.server.problems import Problem
from suffuse.server.queries import Queries, plain_filters

logger = logging.getLogger(__name__)

Fields = dict[str, dict[str, Any]]

NO_GRAPH = "the graph is not in the database; serve the index itself, built with its graph"
# The database does the work, so that more searches than cores can wait for it here.
_THREADS = 8

_EXPORT: LiteralString = (
    "SELECT generation, created, images, query_dimensions, dimensions, params FROM {schema}.parameters"
)
# What a reader gets when the owner of the database has removed the index, or the right to read it.
_NO_INDEX = (*postgres.NO_INDEX, errors.InsufficientPrivilege)
_PREPARED: LiteralString = """
SELECT {schema}.prepared(q.vector::{vectors}.vector)::real[]
FROM unnest(%(vectors)s::text[]) WITH ORDINALITY AS q (vector, number) ORDER BY q.number
"""
_VECTORS: LiteralString = "SELECT i.id, i.embedding::real[] FROM {schema}.items i WHERE i.id = ANY (%(ids)s::integer[])"
# Each seed once, as `explain` has them.
_START: LiteralString = """
SELECT s.id, max(greatest(s.similarity, 0)) AS similarity, sum(q.sign * s.weight) AS weight
FROM unnest(%(vectors)s::text[], %(signs)s::double precision[]) AS q (vector, sign)
CROSS JOIN LATERAL {schema}.seeds(q.vector::{vectors}.vector, %(seeds)s, %(exact)s) s
GROUP BY s.id
"""
# A sum that is zero in single precision counts as not reached.
_DIFFUSED: LiteralString = """
WITH y AS MATERIALIZED ({start}),
f AS MATERIALIZED (
    SELECT e.id, sum(e.weight * e.value)::real AS score
    FROM (
        SELECT y.weight, unnest(c.rows) AS id, unnest(c."values") AS value
        FROM y JOIN {schema}.columns c ON c.id = y.id WHERE y.weight <> 0
    ) e
    GROUP BY e.id HAVING sum(e.weight * e.value) > 1.4e-45
)
SELECT i.id, i.score FROM {reached} i WHERE {matching}
ORDER BY i.score DESC, i.id LIMIT %(top)s
"""
_REACHED: LiteralString = "(SELECT f.id, f.score, m.metadata FROM f JOIN {schema}.items m ON m.id = f.id)"
# Not ordered by the bare operator: HNSW would answer that, and stop before a filter is satisfied. 0 - x is never -0.
_NEAREST: LiteralString = """
SELECT n.id, n.score FROM (
    SELECT i.id, (0 - (i.embedding OPERATOR({vectors}.<#>) %(direction)s::{vectors}.vector))::real AS score
    FROM {schema}.items i WHERE {matching}
) n ORDER BY n.score DESC, n.id LIMIT %(top)s
"""
_CONTRIBUTIONS: LiteralString = """
WITH y AS MATERIALIZED ({start})
SELECT y.id, y.similarity, y.weight, e.value::double precision
FROM y JOIN {schema}.columns c ON c.id = y.id CROSS JOIN LATERAL unnest(c.rows, c."values") AS e (id, value)
WHERE e.id = %(item)s AND y.weight <> 0 AND e.value <> 0
ORDER BY y.weight * e.value DESC, y.id
"""
_ITEMS: LiteralString = "SELECT i.id, i.name, i.metadata FROM {schema}.items i WHERE i.id = ANY (%(ids)s::integer[])"
_SOME_ITEMS: LiteralString = """
SELECT i.id, i.name, i.metadata FROM {schema}.items i WHERE {containing} ORDER BY {order}
OFFSET %(offset)s LIMIT %(limit)s
"""
_ID_RANGE: LiteralString = "SELECT min(i.id), max(i.id) FROM {schema}.items i"
_CONTAINING: LiteralString = "strpos(lower(i.name), lower(%(text)s::text)) > 0"
_COUNT: LiteralString = "SELECT count(*) FROM {schema}.items i WHERE {containing}"
_VALUES: LiteralString = """
SELECT i.id, e.key, e.value, jsonb_typeof(e.value) AS kind
FROM {schema}.items i CROSS JOIN LATERAL jsonb_each(i.metadata) e WHERE jsonb_typeof(e.value) <> 'null'
"""
_FIELDS: LiteralString = """
SELECT v.key, min(v.kind), max(v.kind),
    min(v.value::numeric) FILTER (WHERE v.kind = 'number'), max(v.value::numeric) FILTER (WHERE v.kind = 'number')
FROM ({values}) v GROUP BY v.key ORDER BY min(v.id), v.key LIMIT %(most)s
"""
_COMMON: LiteralString = """
SELECT c.key, c.value FROM (
    SELECT v.key, v.value, row_number() OVER (PARTITION BY v.key ORDER BY count(*) DESC, min(v.id)) AS rank
    FROM ({values}) v WHERE v.key = ANY (%(keys)s::text[]) GROUP BY v.key, v.value
) c WHERE c.rank <= %(most)s
"""


class Export(NamedTuple):
    """What an export says about itself."""

    generation: int
    created: datetime
    images: int
    query_dimensions: int
    dimensions: int
    params: dict[str, Any]


class Session:
    """A connection; from `begin` on it sees one export until it is put back, also if that is replaced meanwhile."""

    export: Export

    def __init__(self, connection: postgres.Connection, schemas: dict[str, str], round: int) -> None:
        """`round` is how often all connections had been closed before this one was opened."""
        self.connection, self.round = connection, round
        self._parts: dict[str, sql.Composable] = {part: sql.Identifier(name) for part, name in schemas.items()}
        self._parts |= {"start": self.name_schemas(_START), "values": self.name_schemas(_VALUES)}

    def begin(self) -> None:
        """Read the export as the first statement: a new one locks `parameters` first, so from here on it waits."""
        (found,) = self.execute(_EXPORT, {})
        self.export = Export(*found)

    def name_schemas(self, statement: LiteralString, **parts: sql.Composable) -> sql.Composed:
        """A statement with the schemas of the index and of pgvector, and perhaps other parts."""
        return sql.SQL(statement).format(**self._parts, **parts)

    def execute(self, statement: LiteralString, parameters: dict[str, Any], **parts: sql.Composable) -> list[Any]:
        """The rows of a statement."""
        return self.connection.execute(self.name_schemas(statement, **parts), parameters).fetchall()


class Connections:
    """Connections to the database, kept between requests, as many as there are threads that read at the same time."""

    def __init__(self, url: str, schema: str, seconds: float) -> None:
        self._url, self._schema, self._seconds = url, postgres.check_schema(schema), seconds
        self._idle: list[Session] = []
        self._round, self._lock = 0, threading.Lock()

    def check(self) -> tuple[str, Export]:
        """The name of the database and its export; errors are in full, for the one who starts the service."""
        session, doing = self._connect(), f"cannot serve the schema {self._schema!r}"
        with contextlib.closing(session.connection), postgres.translate_errors(doing):
            session.begin()
            return session.connection.info.dbname, session.export

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A session with one export; errors of the database become `Problem`s that hold no secrets."""
        with _translate_errors():
            session = self._begin()
            try:
                yield session
            finally:
                self._put_back(session)

    def close(self) -> None:
        """Close the idle connections, and the others when they come back; reading again opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._round += 1
        for session in idle:
            session.connection.close()

    def _begin(self) -> Session:
        """A connection that works: its first statement shows that."""
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            session = idle or self._connect()
            try:
                session.begin()
                return session
            except psycopg.Error as error:
                session.connection.close()
                # An idle connection may have broken long ago, as all do when the server restarts: try the next one.
                if idle is None or not isinstance(error, psycopg.OperationalError):
                    raise

    def _connect(self) -> Session:
        round, connection = self._round, postgres.connect(self._url)
        with contextlib.ExitStack() as failing, postgres.translate_errors("cannot use the database"):
            failing.callback(connection.close)
            schemas = {"schema": self._schema, "vectors": postgres.find_vector_schema(connection)}
            # No request waits any longer.
            connection.execute("SELECT set_config('statement_timeout', %s, false)", [str(int(1000 * self._seconds))])
            connection.autocommit, connection.read_only = False, True
            # Each statement has a snapshot that is newer than the lock on the export, whatever the server's default.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # 1e20 comes back from jsonb with all its digits; it stays a float, as answers can hold no larger integers.
            set_json_loads(orjson.loads, connection)
            failing.pop_all()
        return Session(connection, schemas, round)

    def _put_back(self, session: Session) -> None:
        with contextlib.suppress(psycopg.Error):
            session.connection.rollback()
        with self._lock:
            if not session.connection.closed and session.round == self._round:
                self._idle.append(session)
                return
        session.connection.close()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except errors.InvalidParameterValue as error:
        raise InvalidInput(error.diag.message_primary or "the database cannot understand the request") from error
    except errors.QueryCanceled:
        raise Problem(504, "the database did not answer in time", "ask for less") from None
    except (psycopg.OperationalError, psycopg.InterfaceError, DatabaseProblem) as error:
        # Details are for the log: they name hosts and roles.
        logger.warning("the database cannot be reached: %s", error)
        raise Problem(503, "the database cannot be reached", "ask again in a moment") from None
    except _NO_INDEX as error:
        logger.warning("the index in the database cannot be read: %s", error)
        raise Problem(503, "the index in the database cannot be read", "ask again later") from None


class Scope(NamedTuple):
    """Which images may be hits: a condition on items, and its parameters."""

    condition: sql.Composable
    parameters: dict[str, Any]


class DatabaseEngine(Engine):
    """An exported index; a new export is seen by the next request. `exact` finds the seeds without HNSW."""

    def __init__(self, url: str, schema: str, queries: Queries, *, exact: bool = False) -> None:
        self._connections = Connections(url, schema, queries.limits.seconds)
        database, self._export = self._connections.check()
        super().__init__(f"{database}/{schema}", _THREADS, queries)
        self.exact = exact
        self._fields: tuple[Export, Fields] | None = None
        self._describing = threading.Lock()

    def summarize(self) -> Summary:
        """The export that the last request saw; none of its columns is stale."""
        return Summary(self._export.generation, self._export.images, 0.0)

    @contextlib.contextmanager
    def open_view(self) -> Iterator["DatabaseView"]:
        """The newest export, locked until the view is closed; raises a `Problem` if it cannot be read now."""
        with self._connections.read() as session:
            self._export = session.export
            yield DatabaseView(self, session)

    def warm(self) -> None:
        """Read what can be filtered by; if the database is away now, the first request does it."""
        with contextlib.suppress(Problem), self.open_view() as view:
            self.find_fields(view)

    def follow(self) -> None:
        """Every request sees the newest export anyway."""

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def find_fields(self, view: "DatabaseView") -> Fields:
        """The fields of this export; they take a while, so the first who needs them reads them for all."""
        with self._describing:
            if (known := self._fields) is None or known[0] != view.export:
                self._fields = known = view.export, view.describe_fields()
        return known[1]


class DatabaseView(View):
    """One export, as one session sees it; also what `Queries` takes as the index, with its ids and its names."""

    engine: DatabaseEngine
    is_regional = False

    def __init__(self, engine: DatabaseEngine, session: Session) -> None:
        super().__init__(engine, self)
        self._session, self.export = session, session.export
        self.dimensions, self.shape = self.export.query_dimensions, (self.export.images, self.export.dimensions)
        self.ids = self.items = self

    def find_row(self, id: int) -> int:
        """The row of an image: its id, if it is there."""
        if not self.find_items([id]):
            raise InvalidInput(f"there is no image {id}; {self.describe_ids()}")
        return id

    def find_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of images."""
        return ids

    def elements(self, image: int) -> NDArray[np.int64]:
        """The one element of an image."""
        return np.array([image])

    def name(self, id: int) -> str:
        """The name of an image."""
        return self.find_items([id])[id][0]

    def _list_facts(self) -> dict[str, Any]:
        return {
            "images": self.export.images,
            "elements": self.export.images,
            "dimensions": self.export.query_dimensions,
            "params": self.export.params,
            "regional": False,
            "chain": False,
            "metadata": self.engine.find_fields(self),
        }

    def describe_fields(self) -> Fields:
        """What can be filtered by, with the values there are, like `Catalogue.fields`."""
        # Once for every export; it reads all items, and may take longer than a request.
        self._session.connection.execute("SET LOCAL statement_timeout = 0")
        fields: Fields = {}
        for key, kind, other, low, high in self._session.execute(_FIELDS, {"most": MOST_FIELDS}):
            if kind == other == "number":
                fields[key] = {"type": kind, "min": float(low), "max": float(high)}
            elif kind == other and kind in ("string", "boolean"):
                fields[key] = {"type": kind, "values": []}
        chosen = [key for key, field in fields.items() if "values" in field]
        for key, value in self._session.execute(_COMMON, {"keys": chosen, "most": MOST_VALUES}):
            bisect.insort(fields[key]["values"], value)
        return fields

    def find_items(self, ids: Collection[int]) -> dict[int, tuple[str, dict[str, Any]]]:
        """Name and metadata of those of these images that are there."""
        possible = [id for id in sorted(ids) if 0 <= id <= postgres.LARGEST]
        found = self._session.execute(_ITEMS, {"ids": possible}) if possible else []
        return {id: (name, metadata) for id, name, metadata in found}

    def read_items(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """Pictures as clients see them; a `Problem` if one is not there."""
        found = self.find_items(ids)
        if wrong := [id for id in ids if id not in found]:
            raise Problem(404, f"there is no item {wrong[0]}", self.describe_ids())
        return {id: self.show_item(id, *item) for id, item in found.items()}

    def describe_ids(self) -> str:
        """The ids there are, in the words of `suffuse.store.ids`."""
        first, last, gaps = self._read_id_range()
        return f"ids go from {first} to {last}" + (", and some of them were removed" if gaps else "")

    def _read_id_range(self) -> tuple[int, int, bool]:
        """The first id, the last one, and whether some between them were removed before the export."""
        ((first, last),) = self._session.execute(_ID_RANGE, {})
        return first, last, last - first + 1 != self.export.images

    def list_items(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """Some of the pictures whose names contain a text, and how many there are."""
        # PostgreSQL stores no U+0000, and takes none.
        parameters = {"offset": offset, "limit": limit, "text": text.replace("\0", " "), "shuffle": shuffle}
        containing = sql.SQL(_CONTAINING if text else "true")
        order = sql.SQL("i.id" if shuffle is None else "hashint8extended(i.id::bigint, %(shuffle)s::bigint), i.id")
        total = self.export.images
        if text:
            ((total,),) = self._session.execute(_COUNT, parameters, containing=containing)
        elif shuffle is None:
            first, last, gaps = self._read_id_range()
            if not gaps:
                # The first id that is wanted is known, so late items are found as fast as the first ones.
                containing = sql.SQL("i.id >= %(first)s")
                parameters |= {"first": min(offset, last + 1) + first, "offset": 0}
        found = self._session.execute(_SOME_ITEMS, parameters, containing=containing, order=order)
        return {"total": total, "offset": offset, "items": [self.show_item(*item) for item in found]}

    def prepare(self, queries: NDArray[Any]) -> Features:
        """Vectors in the space of the index."""
        check_matrix(queries, "queries", least_rows=1, dimensions=self.dimensions)
        found = self._session.execute(_PREPARED, {"vectors": postgres.write_vectors(unit_rows(queries, "queries"))})
        return np.array([row for (row,) in found], np.float32)

    def _rank(self, request: SearchRequest, query: Query, top: int) -> dict[Method, Ranking]:
        filters = plain_filters(request)
        fields = self.engine.find_fields(self) if filters else {}
        scope = _make_scope(fields, filters, (*query.like, *query.unlike, *query.left_out))
        rankings: dict[Method, Ranking] = {}
        start = time.perf_counter()
        vectors, signs = self._sign(query)
        shared = milliseconds_since(start)
        if request.method != "knn":
            # Metadata is looked up only where it is asked for: thousands of images may be reached.
            table = self._session.name_schemas(_REACHED if filters else "f")
            seeds = self._start(vectors, signs, request.seeds)
            reached = self._execute_ranking(_DIFFUSED, scope, top, seeds, reached=table)
            rankings["diffusion"] = Ranking(reached, milliseconds_since(start))
            if request.method == "diffusion" and len(reached.ids) >= top:
                return rankings
        start = time.perf_counter()
        # The similarities of `search.Likeness` are those to the signed sum of all vectors, per wanted one.
        direction = np.asarray(signs) @ vectors.astype(np.float64) / (len(query.vectors) + len(query.like))
        (text,) = postgres.write_vectors(direction[None].astype(np.float32))
        near = self._execute_ranking(_NEAREST, scope, top, {"direction": text})
        spent = milliseconds_since(start)
        if "diffusion" in rankings and len(reached.ids) < top:
            rankings["diffusion"] = Ranking(_fill(reached, near, top), rankings["diffusion"].took_ms + spent)
        if request.method != "diffusion":
            rankings["knn"] = Ranking(near, shared + spent)
        return rankings

    def _execute_ranking(
        self, statement: LiteralString, scope: Scope, top: int, parameters: dict[str, Any], **parts: sql.Composable
    ) -> Hits:
        """The `top` images that a statement finds in a scope, best first."""
        parameters = {**parameters, **scope.parameters, "top": top}
        rows = self._session.execute(statement, parameters, matching=scope.condition, **parts)
        return Hits(np.array([id for id, _ in rows], np.int64), np.array([score for _, score in rows], np.float32))

    def _explain_score(self, query: Query, item: int, seeds: int) -> Explanation:
        parameters = {**self._start(*self._sign(query), seeds), "item": item}
        found = self._session.execute(_CONTRIBUTIONS, parameters)
        amounts = [weight * entry for *_, weight, entry in found]
        score = sum(amounts)
        shares = [amount / abs(score) if score else 0.0 for amount in amounts]
        given = [Contribution(*row, *last) for row, *last in zip(found, amounts, shares, strict=True)]
        return Explanation(score, given, None, NO_GRAPH)

    def _sign(self, query: Query) -> tuple[Features, list[float]]:
        """All vectors of a query, wanted ones first, and the weight of each, as `search.find_seeds` has them."""
        ids = [*query.like, *query.unlike]
        found = dict(self._session.execute(_VECTORS, {"ids": ids})) if ids else {}
        rows = np.array([found[id] for id in ids], np.float32).reshape(len(ids), self.export.dimensions)
        signs = [1.0] * (len(query.vectors) + len(query.like)) + [-NEGATIVE] * len(query.unlike)
        return np.concatenate([query.vectors, rows]), signs

    def _start(self, vectors: Features, signs: list[float], seeds: int) -> dict[str, Any]:
        """The parameters of _START."""
        return {"vectors": postgres.write_vectors(vectors), "signs": signs, "seeds": seeds, "exact": self.engine.exact}


def _fill(reached: Hits, near: Hits, top: int) -> Hits:
    """The hits of diffusion, and behind them those of the `top` nearest that it did not reach, with the score 0."""
    rest = near.ids[~np.isin(near.ids, reached.ids)][: top - len(reached.ids)]
    zeros = np.zeros(len(rest), np.float32)
    return Hits(np.concatenate([reached.ids, rest]), np.concatenate([reached.scores, zeros]))


def _make_scope(known: Fields, filters: dict[str, Any], left_out: Sequence[int]) -> Scope:
    """A filter on metadata as a condition, like `Catalogue.match`; values are parameters."""
    conditions: list[sql.Composable] = [sql.SQL("i.id <> ALL (%(left_out)s::integer[])")]
    parameters: dict[str, Any] = {"left_out": list(left_out)}
    kinds = {field: facts["type"] for field, facts in known.items()}
    for number, (field, wanted) in enumerate(filters.items()):
        choice, name = choose_values(kinds, field, wanted), f"field_{number}"
        parameters[name] = field
        value = sql.SQL("(i.metadata -> {}::text)").format(sql.Placeholder(name))
        if not isinstance(choice, Between):
            # U+0000 equals nothing that PostgreSQL stores.
            parameters[f"{name}_values"] = [Jsonb(one) for one in choice if "\0" not in str(one)]
            conditions.append(sql.SQL("{} = ANY ({}::jsonb[])").format(value, sql.Placeholder(f"{name}_values")))
            continue
        conditions.append(sql.SQL("jsonb_typeof({}) = 'number'").format(value))
        # Compared as JSON, which has numbers of any size.
        for end, comparison, bound in (("min", sql.SQL(">="), choice.min), ("max", sql.SQL("<="), choice.max)):
            if bound is not None:
                parameters[f"{name}_{end}"] = Jsonb(bound)
                conditions.append(sql.SQL("{} {} {}").format(value, comparison, sql.Placeholder(f"{name}_{end}")))
    return Scope(sql.SQL(" AND ").join(conditions), parameters)
