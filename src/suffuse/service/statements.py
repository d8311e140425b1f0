"""What the service asks a database that an index was exported to: each function is one statement, or two.

    y = sum over the query's vectors of sign * seeds,   f = sum_j y_j * column[j]      (suffuse.similar)

The SQL function `search` of an export is for one vector. Here are several, some of which are not wanted, so the sums
are made here, with negative weights; the seeds come from the SQL function `seeds`.
"""

import json
from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

import numpy as np
from numpy.typing import NDArray
from psycopg import sql
from psycopg.types.json import Jsonb

from suffuse.errors import InvalidInput
from suffuse.explain import Contribution
from suffuse.neighbors import Features
from suffuse.service.connections import Reading
from suffuse.service.models import Between
from suffuse.similar import Found

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
        """What there is instead, in the words of `suffuse.ids`."""
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
    """What each seed gave to the score of an image, as `suffuse.explain` tells it."""
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
