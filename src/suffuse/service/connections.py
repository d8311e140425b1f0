"""Connections of the service to its database: kept between requests, opened again when they broke."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import orjson
import psycopg
from psycopg import sql
from psycopg.types.json import set_json_loads

from suffuse.errors import InvalidInput, SuffuseError
from suffuse.postgres.connection import Connection, check_schema, connect, friendly, vector_schema
from suffuse.service.problems import Problem

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
