"""The SQL functions from Python, with the results that an open index gives."""

import json
import weakref
from typing import Any, LiteralString, Self

import numpy as np
from numpy.typing import NDArray
from psycopg import sql
from psycopg.types.json import Jsonb

from suffuse.core.features import check_matrix, unit_rows
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index.explain import Contribution
from suffuse.index.online import Hits
from suffuse.postgres.connection import check_schema, connect, friendly

_SEARCH: LiteralString = "SELECT id, score FROM {}.search(%s, %s, %s, filter => %s, exact => %s)"
_EXPLAIN: LiteralString = (
    "SELECT seed, similarity, weight, entry, amount, share FROM {}.explain(%s, %s, %s, exact => %s)"
)
# The largest integer that PostgreSQL's functions take.
_LARGEST = 2**31 - 1


class PostgresIndex:
    """An exported index, searched by its SQL functions only; one connection, so use one for each thread."""

    def __init__(self, url: str, schema: str = "suffuse") -> None:
        # Every statement here has parameters, and psycopg then reads % in quoted names, too.
        self._schema = sql.Identifier(check_schema(schema).replace("%", "%%"))
        self._doing = f"cannot search the schema {schema!r}"
        self._connection = connect(url)
        # Closed with the object at the latest: psycopg warns of connections that are left open.
        weakref.finalize(self, self._connection.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def __len__(self) -> int:
        """The number of images."""
        return int(self._parameter("images"))

    @property
    def dimensions(self) -> int:
        """The dimensions that queries must have."""
        return int(self._parameter("query_dimensions"))

    def _parameter(self, name: str) -> Any:
        statement = sql.SQL("SELECT {} FROM {}.parameters").format(sql.Identifier(name), self._schema)
        with friendly(self._doing):
            found = self._connection.execute(statement, []).fetchone()
        assert found is not None
        return found[0]

    def search(
        self,
        queries: NDArray[Any],
        top: int = 10,
        seeds: int = 10,
        *,
        filter: dict[str, Any] | None = None,
        exact: bool = False,
    ) -> Hits:
        """The `top` best images for each query (m, d), as `Index.search` finds them with refine=0.

        filter  only images whose metadata contains this
        exact   find the seeds by comparing the query with all images, and not by HNSW

        All queries are answered by the same export, also if it is replaced meanwhile.
        """
        limits = [_count("top", top), _count("seeds", seeds)]
        texts = _texts(queries)
        statement = sql.SQL(_SEARCH).format(self._schema)
        wanted = None if filter is None else Jsonb(filter)
        with friendly(self._doing), self._connection.transaction():
            found = [
                self._connection.execute(statement, [text, *limits, wanted, exact], prepare=True).fetchall()
                for text in texts
            ]
        shape = (len(found), len(found[0]))
        return Hits(
            np.array([[id for id, _ in hits] for hits in found], np.int64).reshape(shape),
            np.array([[score for _, score in hits] for hits in found], np.float32).reshape(shape),
        )

    def explain(self, query: NDArray[Any], item: int, seeds: int = 10, *, exact: bool = False) -> list[Contribution]:
        """What each seed of a query (d,) gave to the score of an image, the most first."""
        (text,) = _texts(np.asarray(query)[None])
        if not 0 <= item <= _LARGEST:
            raise InvalidInput(f"there is no image {item}")
        statement = sql.SQL(_EXPLAIN).format(self._schema)
        with friendly(self._doing):
            given = self._connection.execute(statement, [text, int(item), _count("seeds", seeds), exact]).fetchall()
        return [Contribution(*one) for one in given]


def _texts(queries: NDArray[Any]) -> list[str]:
    """Queries as pgvector reads them; of unit length, since its numbers are single precision."""
    check_matrix(queries, "queries", least_rows=1)
    return [json.dumps(row) for row in unit_rows(queries, "queries").tolist()]


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidParams(f"{name} must be a whole number of at least 1, got {value!r}")
    return min(int(value), _LARGEST)
