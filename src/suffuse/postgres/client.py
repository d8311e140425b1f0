"""An exported index in Python: its SQL functions, with the results of an open index."""

import weakref
from typing import Any, LiteralString, Self

import numpy as np
from numpy.typing import NDArray
from psycopg import sql
from psycopg.types.json import Jsonb

from suffuse.core.features import check_matrix, unit_rows
from suffuse.errors import InvalidInput
from suffuse.index.explain import Contribution
from suffuse.index.search import Hits, check_count
from suffuse.postgres.connection import LARGEST, check_schema, connect, translate_errors, write_vectors

_SEARCH: LiteralString = "SELECT id, score FROM {}.search(%s, %s, %s, %s, %s)"
_EXPLAIN: LiteralString = "SELECT seed, similarity, weight, entry, amount, share FROM {}.explain(%s, %s, %s, %s)"


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
        with translate_errors(self._doing):
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
        """The `top` best images for each query (m, d), as `Index.search` finds them with refine=0, without districts.

        filter  only images whose metadata contains this
        exact   find the seeds by comparing the query with all images, and not by HNSW

        All queries are answered by the same export, also if it is replaced meanwhile.
        """
        asked = [*_limit_counts(top=top, seeds=seeds), None if filter is None else Jsonb(filter), exact]
        texts = _encode_queries(queries)
        statement, execute = sql.SQL(_SEARCH).format(self._schema), self._connection.execute
        with translate_errors(self._doing), self._connection.transaction():
            found = [execute(statement, [text, *asked], prepare=True).fetchall() for text in texts]
        # (m, top, 2), also if nothing is found
        ids, scores = np.array(found, np.float64).reshape(len(found), len(found[0]), 2).transpose(2, 0, 1)
        return Hits(ids.astype(np.int64), scores.astype(np.float32))

    def explain(self, query: NDArray[Any], item: int, seeds: int = 10, *, exact: bool = False) -> list[Contribution]:
        """What each seed of a query (d,) gave to the score of an image, the most first."""
        (text,) = _encode_queries(np.asarray(query)[None])
        if not 0 <= item <= LARGEST:
            raise InvalidInput(f"there is no image {item}")
        statement = sql.SQL(_EXPLAIN).format(self._schema)
        asked = [text, int(item), *_limit_counts(seeds=seeds), exact]
        with translate_errors(self._doing):
            return [Contribution(*one) for one in self._connection.execute(statement, asked)]


def _encode_queries(queries: NDArray[Any]) -> list[str]:
    """Queries as pgvector reads them; of unit length, since its numbers are single precision."""
    check_matrix(queries, "queries", least_rows=1)
    return write_vectors(unit_rows(queries, "queries"))


def _limit_counts(**counts: int) -> list[int]:
    for name, value in counts.items():
        check_count(name, value)
    return [min(int(value), LARGEST) for value in counts.values()]
