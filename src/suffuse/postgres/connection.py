"""Connections to PostgreSQL, what they need of the server, and its errors as ours."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from suffuse.errors import DatabaseProblem, InvalidInput, InvalidParams

Connection = psycopg.Connection[Any]
NO_INDEX = (errors.UndefinedFunction, errors.UndefinedTable, errors.InvalidSchemaName)

# The largest integer that ids and parameters of functions can be.
LARGEST = 2**31 - 1
# Seconds to wait for a server that does not answer, unless the URL says otherwise.
_PATIENCE = 10
# PostgreSQL cuts longer names silently, and two schemas would become one.
_LONGEST_NAME = 63
# The first pgvector with halfvec and l2_normalize.
_OLDEST_PGVECTOR = (0, 7)
_REMEDIES = {
    (errors.InsufficientPrivilege,): "; ask the owner of the database for the privilege (docs/postgres.md)",
    NO_INDEX: "; there is no index in this schema yet: suffuse export makes one",
}


def connect(url: str) -> Connection:
    """A connection to the server at `url`; every statement is a transaction of its own unless one is opened."""
    try:
        patience = {} if "connect_timeout" in conninfo_to_dict(url) else {"connect_timeout": _PATIENCE}
        full = make_conninfo(url, **patience)
    except psycopg.ProgrammingError:
        # Not its words: they may repeat the password.
        raise DatabaseProblem("the URL of the database cannot be read; write postgresql://USER@HOST/DATABASE") from None
    try:
        return psycopg.connect(full, autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseProblem(f"cannot connect to PostgreSQL: {_words(error)}; check the URL and the server") from error


def check_schema(schema: str) -> str:
    """Refuse a name that PostgreSQL would change; since names are quoted, it may hold any character but NUL."""
    if not schema or "\0" in schema:
        raise InvalidParams(f"schema must be a name, got {schema!r}")
    try:
        length = len(schema.encode())
    except UnicodeEncodeError as error:
        raise InvalidParams(f"schema must be a name in UTF-8, got {schema!r}") from error
    if length > _LONGEST_NAME:
        raise InvalidParams(f"schema must have at most {_LONGEST_NAME} bytes, got {length}")
    return schema


def find_vector_schema(connection: Connection) -> str:
    """The schema of pgvector, which names its types and operators whatever the search_path of a client."""
    found = connection.execute(
        "SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    ).fetchone()
    if found is None:
        raise DatabaseProblem("the database has no pgvector; install it on the server, then CREATE EXTENSION vector")
    name, version = found
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_PGVECTOR:
        raise DatabaseProblem(f"the database has pgvector {version}; 0.7 is needed: ALTER EXTENSION vector UPDATE")
    return str(name)


def write_vectors(rows: NDArray[np.float32]) -> list[str]:
    """Vectors (m, d) as pgvector reads them."""
    return [json.dumps(row) for row in rows.tolist()]


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Turn errors of the server into ours, which say what was being done."""
    try:
        yield
    except psycopg.DataError as error:
        # What was asked is wrong, not the database: dimensions that differ, for instance.
        raise InvalidInput(f"{doing}: {_words(error)}") from error
    except psycopg.Error as error:
        remedy = next((remedy for kinds, remedy in _REMEDIES.items() if isinstance(error, kinds)), "")
        raise DatabaseProblem(f"{doing}: {_words(error)}{remedy}") from error


def _words(error: psycopg.Error) -> str:
    """The server's message in one line."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    lines = [line.strip().removeprefix("- ") for line in said.splitlines() if line.strip()]
    # A name with several addresses gives a line for each, after one that only says so.
    return lines[-1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
