"""Connections of the service to its database: kept between requests, opened again when they broke."""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import numpy as np
import orjson
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from psycopg.types.json import Jsonb, set_json_loads

from suffuse.core.neighbors import Features
from suffuse.errors import InvalidInput, SuffuseError
from suffuse.index.explain import Contribution
from suffuse.index.similar import Found
from suffuse.postgres.connection import Connection, check_schema, connect, friendly, vector_schema
from suffuse.server.models import Between
from suffuse.server.problems import Problem

logger = logging.getLogger(__name__)

_ABOUT: LiteralString = (
    "SELECT generation, created, images, query_dimensions, dimensions, params FROM {schema}.parameters"
)
# What it means for a reader that the owner of the database has removed the index, or the right to read it.
_NO_INDEX = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InsufficientPrivilege,
)


class About(NamedTuple):
    """What an export says about itself."""

    generation: int
    created: datetime
    images: int
    query_dimensions: int
    dimensions: int
    params: dict[str, Any]


class _Open(NamedTuple):
    connection: Connection
    names: dict[str, sql.Composable]
    round: int  # how often everything had been closed before it was opened


class Reading(NamedTuple):
    """A transaction that sees one export to its end, also if that is replaced meanwhile."""

    connection: Connection
    names: dict[str, sql.Composable]
    about: About

    def rows(self, statement: LiteralString, parameters: dict[str, Any], **parts: sql.Composable) -> list[Any]:
        """The rows of a statement that names the schemas of the index and of pgvector, and perhaps other parts."""
        return self.connection.execute(sql.SQL(statement).format(**self.names, **parts), parameters).fetchall()


class Connections:
    """As many connections as there are threads that read at the same time."""

    def __init__(self, url: str, schema: str, seconds: float) -> None:
        self._url, self._schema, self._seconds = url, check_schema(schema), seconds
        self._idle: list[_Open] = []
        self._round, self._lock = 0, threading.Lock()

    def first(self) -> tuple[str, About]:
        """The name of the database and what it holds; what is wrong is told to whoever starts the service."""
        opened = self._connected()
        with contextlib.closing(opened.connection), friendly(f"cannot serve the schema {self._schema!r}"):
            return opened.connection.info.dbname, _about(opened)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reading]:
        """A transaction; errors of the database become what a client may know."""
        with _told():
            opened, about = self._begun()
            try:
                yield Reading(opened.connection, opened.names, about)
            finally:
                self._put_back(opened)

    def close(self) -> None:
        """Close what nobody uses now, and the others when they come back; reading again opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._round += 1
        for opened in idle:
            opened.connection.close()

    def _begun(self) -> tuple[_Open, About]:
        """A connection that works, with the export locked: its first statement shows both."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            try:
                opened = kept or self._connected()
            except SuffuseError as error:
                raise _away(error) from None
            try:
                return opened, _about(opened)
            except psycopg.Error as error:
                opened.connection.close()
                # One that broke while nobody used it, as all do when the server restarts, says nothing about now.
                if kept is None or not isinstance(error, psycopg.OperationalError):
                    raise

    def _connected(self) -> _Open:
        round, connection = self._round, connect(self._url)
        with contextlib.ExitStack() as failing, friendly("cannot use the database"):
            failing.callback(connection.close)
            schemas = {"schema": self._schema, "vectors": vector_schema(connection)}
            # Nobody waits any longer.
            timeout = str(int(1000 * self._seconds))
            connection.execute("SELECT set_config('statement_timeout', %s, false)", [timeout])
            connection.autocommit, connection.read_only = False, True
            # Each statement has a snapshot that is newer than the lock on the export, whatever is usual here.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # 1e20 comes back from jsonb with all its digits; it stays a float, as answers can hold no larger integers.
            set_json_loads(orjson.loads, connection)
            failing.pop_all()
        return _Open(connection, {part: sql.Identifier(name) for part, name in schemas.items()}, round)

    def _put_back(self, opened: _Open) -> None:
        with contextlib.suppress(psycopg.Error):
            opened.connection.rollback()
        with self._lock:
            if not opened.connection.closed and opened.round == self._round:
                self._idle.append(opened)
                return
        opened.connection.close()


def _about(opened: _Open) -> About:
    """Read it as the first statement: `parameters` is what a new export locks first, so it waits for us from here."""
    found = opened.connection.execute(sql.SQL(_ABOUT).format(schema=opened.names["schema"])).fetchone()
    assert found is not None
    return About(*found)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InvalidParameterValue as error:
        raise InvalidInput(error.diag.message_primary or "the database cannot understand the request") from error
    except psycopg.errors.QueryCanceled:
        raise Problem(504, "the database did not answer in time", "ask for less") from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise _away(error) from None
    except _NO_INDEX as error:
        logger.warning("the index in the database cannot be read: %s", error)
        raise Problem(503, "the index in the database cannot be read", "ask again later") from None


def _away(error: Exception) -> Problem:
    """Its words are for the log: they name hosts and roles."""
    logger.warning("the database cannot be reached: %s", error)
    return Problem(503, "the database cannot be reached", "ask again in a moment")


Fields = dict[str, dict[str, Any]]

# Values of a field that are offered, and fields that are looked at, as in `catalogue`.
_MOST_VALUES, _MOST_FIELDS = 50, 100
_KINDS: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "string"}

_PREPARED: LiteralString = """
SELECT {schema}.prepared(q.vector::{vectors}.vector)::real[]
FROM unnest(%(vectors)s::text[]) WITH ORDINALITY AS q (vector, place) ORDER BY q.place
"""
_EMBEDDINGS: LiteralString = """
SELECT i.id, i.embedding::real[] FROM {schema}.items i WHERE i.id = ANY (%(ids)s::integer[])
"""
# A seed whose weight is too small for a number has the similarity 0, as in `similar.start`.
_START: LiteralString = """
SELECT s.id, max(CASE WHEN s.weight > 0 THEN s.similarity ELSE 0 END) AS similarity, sum(q.sign * s.weight) AS weight
FROM unnest(%(vectors)s::text[], %(signs)s::double precision[]) AS q (vector, sign)
CROSS JOIN LATERAL {schema}.seeds(q.vector::{vectors}.vector, %(seeds)s, %(exact)s) s
GROUP BY s.id
"""
# What would be zero in single precision was not reached.
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
SELECT i.id, i.score FROM {reached} i WHERE i.id <> ALL (%(left_out)s::integer[]) AND {matching}
ORDER BY i.score DESC, i.id LIMIT %(top)s
"""
_REACHED: LiteralString = "(SELECT f.id, f.score, m.metadata FROM f JOIN {schema}.items m ON m.id = f.id)"
# Not by the bare operator, which would be answered by HNSW: that cannot tell where a filter ends. 0 - x is never -0.
_NEAREST: LiteralString = """
SELECT n.id, n.score FROM (
    SELECT i.id, (0 - (i.embedding OPERATOR({vectors}.<#>) %(direction)s::{vectors}.vector))::real AS score
    FROM {schema}.items i WHERE i.id <> ALL (%(left_out)s::integer[]) AND {matching}
) n ORDER BY n.score DESC, n.id LIMIT %(top)s
"""
_CONTRIBUTIONS: LiteralString = """
WITH y AS MATERIALIZED ({start})
SELECT y.id, y.similarity, y.weight, e.value::double precision
FROM y JOIN {schema}.columns c ON c.id = y.id CROSS JOIN LATERAL unnest(c.rows, c."values") AS e (id, value)
WHERE e.id = %(item)s AND y.weight <> 0 AND e.value <> 0
ORDER BY y.weight * e.value DESC, y.id
"""
_ITEMS: LiteralString = """
SELECT i.id, i.name, i.metadata FROM {schema}.items i WHERE i.id = ANY (%(ids)s::integer[])
"""
_PAGE: LiteralString = """
SELECT i.id, i.name, i.metadata FROM {schema}.items i WHERE {containing} ORDER BY {order}
OFFSET %(offset)s LIMIT %(limit)s
"""
_NUMBERS: LiteralString = "SELECT min(i.id), max(i.id) FROM {schema}.items i"
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
    SELECT v.key, v.value, row_number() OVER (PARTITION BY v.key ORDER BY count(*) DESC, min(v.id)) AS place
    FROM ({values}) v WHERE v.key = ANY (%(keys)s::text[]) GROUP BY v.key, v.value
) c WHERE c.place <= %(most)s
"""


class Signed(NamedTuple):
    """The vectors of a query (v, d) in the space of the index, and what each counts."""

    vectors: Features
    signs: list[float]


class Scope(NamedTuple):
    """Which images may be hits: a condition on items, its parameters, and ids that are left out."""

    condition: sql.Composable
    parameters: dict[str, Any]
    left_out: list[int]


class Numbers:
    """The ids there are: from 0 on, unless the index that was exported had lost some."""

    def __init__(self, reading: Reading) -> None:
        ((self.first, self.last),) = reading.rows(_NUMBERS, {})
        self.gaps = self.last - self.first + 1 != reading.about.images

    def hint(self) -> str:
        """What there is instead, in the words of `suffuse.store.ids`."""
        gaps = ", and some of them were removed" if self.gaps else ""
        return f"ids go from {self.first} to {self.last}{gaps}"


def prepared(reading: Reading, rows: Features) -> Features:
    """Vectors of unit length, brought into the space of the index."""
    found = reading.rows(_PREPARED, {"vectors": _texts(rows)})
    return np.array([row for (row,) in found], np.float32)


def embeddings(reading: Reading, ids: Sequence[int]) -> Features:
    """The vectors of these images, one row for each."""
    found = dict(reading.rows(_EMBEDDINGS, {"ids": list(ids)})) if ids else {}
    rows = np.array([found[id] for id in ids], np.float32)
    return rows.reshape(len(ids), reading.about.dimensions)


def diffused(reading: Reading, query: Signed, seeds: int, exact: bool, scope: Scope, top: int) -> Found:
    """The images that diffusion reaches, best first."""
    found = reading.rows(
        _DIFFUSED,
        {**_start(query, seeds, exact), **scope.parameters, "left_out": scope.left_out, "top": top},
        start=sql.SQL(_START).format(**reading.names),
        # Metadata is looked up only where it is asked for: thousands of images may be reached.
        reached=sql.SQL(_REACHED if scope.parameters else "f").format(**reading.names),
        matching=scope.condition,
    )
    return _found(found)


def nearest(reading: Reading, direction: NDArray[np.float32], scope: Scope, top: int) -> Found:
    """The images by their inner product with a direction, all of them compared."""
    (text,) = _texts(direction[None])
    found = reading.rows(
        _NEAREST,
        {**scope.parameters, "direction": text, "left_out": scope.left_out, "top": top},
        matching=scope.condition,
    )
    return _found(found)


def contributions(reading: Reading, query: Signed, seeds: int, exact: bool, item: int) -> list[Contribution]:
    """What each seed gave to the score of an image, as `suffuse.index.explain` tells it."""
    given = reading.rows(
        _CONTRIBUTIONS,
        {**_start(query, seeds, exact), "item": item},
        start=sql.SQL(_START).format(**reading.names),
    )
    score = sum(weight * entry for *_, weight, entry in given)
    return [
        Contribution(
            seed, similarity, weight, entry, weight * entry, weight * entry / abs(score) if score else 0.0
        )
        for seed, similarity, weight, entry in given
    ]  # fmt: skip


def items(reading: Reading, ids: Sequence[int]) -> dict[int, tuple[str, dict[str, Any]]]:
    """Name and metadata of those of these images that are there."""
    possible = [id for id in ids if 0 <= id < 2**31]  # what the type of the column can hold
    found = reading.rows(_ITEMS, {"ids": possible}) if possible else []
    return {id: (name, metadata) for id, name, metadata in found}


def listed(
    reading: Reading, offset: int, limit: int, text: str, shuffle: int | None
) -> tuple[int, list[tuple[int, str, dict[str, Any]]]]:
    """How many names contain a text, and some of these images, in their order or in one that depends on a seed."""
    # PostgreSQL stores no U+0000, and takes none.
    parameters = {"offset": offset, "limit": limit, "text": text.replace("\0", " "), "shuffle": shuffle}
    containing = sql.SQL(_CONTAINING if text else "true")
    order = "i.id" if shuffle is None else "hashint8extended(i.id::bigint, %(shuffle)s::bigint), i.id"
    total = reading.about.images
    if text:
        ((total,),) = reading.rows(_COUNT, parameters, containing=containing)
    elif shuffle is None and not (numbers := Numbers(reading)).gaps:
        # Nothing needs to be counted to come to a late page.
        first = min(offset, numbers.last + 1) + numbers.first
        containing, parameters["first"], parameters["offset"] = sql.SQL("i.id >= %(first)s"), first, 0
    return total, reading.rows(_PAGE, parameters, containing=containing, order=sql.SQL(order))


def fields(reading: Reading) -> Fields:
    """What can be filtered by, with the values there are, as `Catalogue.fields` tells it."""
    values = sql.SQL(_VALUES).format(**reading.names)
    # Once for every export, and it reads all of it.
    reading.connection.execute("SET LOCAL statement_timeout = 0")
    told: Fields = {}
    for key, kind, other, low, high in reading.rows(_FIELDS, {"most": _MOST_FIELDS}, values=values):
        if kind == other == "number":
            told[key] = {"type": kind, "min": float(low), "max": float(high)}
        elif kind == other and kind in ("string", "boolean"):
            told[key] = {"type": kind, "values": []}
    chosen = [key for key, field in told.items() if "values" in field]
    for key, value in reading.rows(_COMMON, {"keys": chosen, "most": _MOST_VALUES}, values=values):
        told[key]["values"].append(value)
    for key in chosen:
        told[key]["values"].sort()
    return told


def scope(known: Fields, filters: dict[str, Any], left_out: Sequence[int]) -> Scope:
    """A filter on metadata as a condition, as `Catalogue.allowed` understands it; values are parameters."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    parameters: dict[str, Any] = {}
    for number, (field, wanted) in enumerate(filters.items()):
        if field not in known:
            names = ", ".join(known) or "none"
            raise InvalidInput(f"there is no field {field[:100]!r} to filter by; fields are: {names[:500]}")
        kind, name = known[field]["type"], f"field_{number}"
        parameters[name] = field
        value = sql.SQL("(i.metadata -> {}::text)").format(sql.Placeholder(name))
        if not isinstance(wanted, Between):
            # True equals 1 to Python, but not to a reader of JSON; and U+0000 equals nothing that PostgreSQL stores.
            given = wanted if isinstance(wanted, list) else [wanted]
            fitting = [one for one in given if _KINDS[type(one)] == kind and "\0" not in str(one)]
            parameters[f"{name}_values"] = [Jsonb(one) for one in fitting]
            conditions.append(sql.SQL("{} = ANY ({}::jsonb[])").format(value, sql.Placeholder(f"{name}_values")))
            continue
        if kind != "number":
            raise InvalidInput(f"the field {field!r} holds no numbers; give a value, or a list of values")
        conditions.append(sql.SQL("jsonb_typeof({}) = 'number'").format(value))
        # Compared as JSON, where a number of any size has its place.
        for end, comparison, bound in (("min", sql.SQL(">="), wanted.min), ("max", sql.SQL("<="), wanted.max)):
            if bound is not None:
                parameters[f"{name}_{end}"] = Jsonb(bound)
                conditions.append(sql.SQL("{} {} {}").format(value, comparison, sql.Placeholder(f"{name}_{end}")))
    return Scope(sql.SQL(" AND ").join(conditions), parameters, list(left_out))


def _start(query: Signed, seeds: int, exact: bool) -> dict[str, Any]:
    return {"vectors": _texts(query.vectors), "signs": query.signs, "seeds": seeds, "exact": exact}


def _texts(rows: NDArray[np.float32]) -> list[str]:
    """Vectors as pgvector reads them."""
    return [json.dumps(row) for row in rows.tolist()]


def _found(rows: list[Any]) -> Found:
    return Found(np.array([id for id, _ in rows], np.int64), np.array([score for _, score in rows], np.float32))
