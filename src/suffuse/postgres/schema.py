"""The SQL of one export, a generation: its tables, the views that readers see, and the functions that search.

Readers name views only, and hold a lock on each until their transaction ends. So a new generation is written beside the
old one, and one moment at the end, when nobody reads, points the views to it: every reader sees a whole generation. The
columns of a view have the same types in every generation, hence vectors without a length there.

The functions are Algorithm 1 in SQL, the same in every generation. They read views only, with the rights of the caller.
They are volatile: each statement takes a snapshot after it has its locks. That of the caller may be older than the
newest generation, whose tables would look empty.
"""

from dataclasses import dataclass
from typing import LiteralString, NamedTuple

from psycopg import sql

from suffuse.postgres.connection import Connection

# What pgvector's HNSW takes, for vector and for halfvec, and what a vector can have at all.
INDEXED, INDEXED_HALF, STORED = 2000, 4000, 16000

# Shorter vectors stay in their rows, with room for the rest on a page of 8 kB: a scan then reads the table alone.
_IN_ROW = 1800

# The order in which the views are locked: readers begin with parameters.
NAMES = ("parameters", "items", "columns", "whitening")

# Columns stay in their rows, too, compressed, where a page has room: that takes a fifth less than out of line.
_TABLES: LiteralString = """
CREATE TABLE {parameters} (
    generation integer NOT NULL,
    created_by text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    images integer NOT NULL,
    query_dimensions integer NOT NULL,
    dimensions integer NOT NULL,
    alpha double precision NOT NULL,
    gamma double precision NOT NULL,
    k integer NOT NULL,
    seed_index text NOT NULL,
    whitening_mean {vectors}.vector,
    params jsonb NOT NULL,
    ranks integer[]
);
CREATE TABLE {items} (
    id integer NOT NULL,
    name text NOT NULL,
    metadata jsonb NOT NULL,
    embedding {vectors}.vector({dimensions}) NOT NULL,
    half {vectors}.halfvec({half_dimensions}),
    marks real[]
);
CREATE TABLE {columns} (
    id integer NOT NULL,
    rows integer[] NOT NULL,
    "values" real[] NOT NULL
);
ALTER TABLE {columns} ALTER COLUMN rows SET STORAGE MAIN, ALTER COLUMN "values" SET STORAGE MAIN;
CREATE TABLE {whitening} (
    component integer NOT NULL,
    axis {vectors}.vector NOT NULL
);
"""

_PLAIN: LiteralString = "ALTER TABLE {items} ALTER COLUMN embedding SET STORAGE PLAIN;"
# What finds rows by id and by metadata, made when the rows are there.
INDEXES: LiteralString = """
ALTER TABLE {items} ADD PRIMARY KEY (id);
ALTER TABLE {columns} ADD PRIMARY KEY (id);
CREATE INDEX ON {items} USING gin (metadata jsonb_path_ops);
"""

VIEWS: LiteralString = """
CREATE OR REPLACE VIEW {schema}.parameters AS SELECT * FROM {parameters};
CREATE OR REPLACE VIEW {schema}.items AS
    SELECT id, name, metadata, embedding::{vectors}.vector AS embedding, half::{vectors}.halfvec AS half, marks
    FROM {items};
CREATE OR REPLACE VIEW {schema}.columns AS SELECT * FROM {columns};
CREATE OR REPLACE VIEW {schema}.whitening AS SELECT * FROM {whitening};
"""
DROP: LiteralString = "DROP TABLE {parameters}, {items}, {columns}, {whitening}"


@dataclass(frozen=True)
class Tables:
    """The tables of one generation."""

    schema: str
    vectors: str  # the schema of pgvector
    generation: int

    def table(self, name: str) -> sql.Identifier:
        """The table of this generation that has this part."""
        return sql.Identifier(self.schema, f"{name}_{self.generation}")

    def name(self, statement: LiteralString, **parts: sql.Composable) -> sql.Composed:
        """A statement with the names of these tables and of the schemas, and perhaps other parts."""
        parts |= {name: self.table(name) for name in NAMES}
        names = {"schema": sql.Identifier(self.schema), "vectors": sql.Identifier(self.vectors)}
        return sql.SQL(statement).format(**parts, **names)

    def create(self, dimensions: int) -> sql.Composed:
        """New, empty tables."""
        half = sql.Literal(dimensions if seed_index(dimensions) == "half" else 1)
        tables = self.name(_TABLES, dimensions=sql.Literal(dimensions), half_dimensions=half)
        return tables if dimensions > _IN_ROW else tables + self.name(_PLAIN)

    def link(self, dimensions: int) -> sql.Composed | None:
        """The HNSW index that finds seeds; None for vectors that are too long for one."""
        column = seed_index(dimensions)
        if column == "none":
            return None
        kind = sql.Identifier(self.vectors, "vector_ip_ops" if column == "embedding" else "halfvec_ip_ops")
        create: LiteralString = "CREATE INDEX ON {items} USING hnsw ({column} {kind})"
        return self.name(create, column=sql.Identifier(column), kind=kind)

    def define_functions(self, connection: Connection) -> sql.Composed:
        """The statements that create or replace all functions; grants on them stay."""
        # A body is quoted as one literal: a schema may be called what would end a dollar quote.
        bodies = {head: sql.Literal(self.name(body).as_string(connection)) for head, body in FUNCTIONS}
        create = sql.SQL("CREATE OR REPLACE FUNCTION {} AS {};")
        return sql.SQL("\n").join(create.format(self.name(head), body) for head, body in bodies.items())


def seed_index(dimensions: int) -> str:
    """The column of items that has an HNSW index: "half" where that takes the vectors in half precision only."""
    return "embedding" if dimensions <= INDEXED else "half" if dimensions <= INDEXED_HALF else "none"


class Function(NamedTuple):
    """A function: what stands before its body, and the body, which is quoted as a whole."""

    head: LiteralString
    body: LiteralString


# Queries come as they are extracted; the gallery may be whitened. Inner products of single precision are enough here:
# one of double precision in SQL would take a hundred times as long.
PREPARED = Function(
    "{schema}.prepared(embedding {vectors}.vector) RETURNS {vectors}.vector LANGUAGE plpgsql VOLATILE",
    """
DECLARE
    about record;
    x {vectors}.vector := {vectors}.l2_normalize(embedding);
BEGIN
    SELECT p.query_dimensions, p.whitening_mean INTO about FROM {schema}.parameters p;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the index was replaced after this transaction began; begin a new one'
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF embedding IS NULL OR {vectors}.vector_dims(embedding) <> about.query_dimensions THEN
        RAISE EXCEPTION 'the embedding has % dimensions, the index has %',
            coalesce({vectors}.vector_dims(embedding), 0), about.query_dimensions
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Build and search with the same kind of features.';
    END IF;
    IF about.whitening_mean IS NOT NULL THEN
        x := x OPERATOR({vectors}.-) about.whitening_mean;
        SELECT {vectors}.l2_normalize(
            array_agg(-(w.axis OPERATOR({vectors}.<#>) x) ORDER BY w.component)::real[]::{vectors}.vector)
            INTO x FROM {schema}.whitening w;
    END IF;
    IF {vectors}.vector_norm(embedding) = 0 OR {vectors}.vector_norm(x) = 0 THEN
        RAISE EXCEPTION 'the embedding is all zeros and has no direction' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN x;
END
""",
)

# The rank that something at this distance has in a list with distances `marks` at `ranks`, `outside` if it would have
# none: `_rank_among` of the kernels.
RANK_AMONG = Function(
    "{schema}.rank_among(distance double precision, marks real[], ranks integer[], outside integer)"
    " RETURNS double precision LANGUAGE sql IMMUTABLE",
    """
SELECT CASE
    WHEN above = 0 THEN 1
    WHEN above = cardinality(ranks) THEN outside
    ELSE ranks[above] * power(ranks[above + 1]::double precision / ranks[above],
        least((distance - marks[above]) / greatest(marks[above + 1]::double precision - marks[above], 1e-6), 1))
    END
FROM (SELECT count(*) FILTER (WHERE m < distance - 1e-6)::integer AS above FROM unnest(marks) m) a
""",
)

# y, the nearest elements and their weights: by ranks from both sides where the export has `ranks`, else
# max(sim, 0) ** gamma. An index serves only an ORDER BY of the bare operator, so the exact search orders by its
# negative, and by id where similarities are the same. Powers far below what single precision knows are zero: PostgreSQL
# would refuse to compute them.
# HNSW looks further in a larger set, by the square root of its size (at most 1000, as pgvector allows): a rule that
# fits what docs/lab/postgres.md measured.
SEEDS = Function(
    "{schema}.seeds(query {vectors}.vector, seeds integer, exact boolean)"
    " RETURNS TABLE (id integer, similarity real, weight double precision) LANGUAGE plpgsql VOLATILE",
    """
DECLARE
    about record;
    narrow text := coalesce(current_setting('hnsw.ef_search', true), '40');
    wide integer;
    ids integer[];
BEGIN
    SELECT p.gamma, p.seed_index, p.dimensions, p.images, p.ranks, p.k INTO about FROM {schema}.parameters p;
    IF {vectors}.vector_dims(query) <> about.dimensions THEN
        RAISE EXCEPTION 'the embedding has % dimensions, those in the index have %',
            {vectors}.vector_dims(query), about.dimensions USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF exact OR seeds > 1000 OR about.seed_index = 'none' THEN
        ids := ARRAY(
            SELECT i.id FROM {schema}.items i
            ORDER BY -(i.embedding OPERATOR({vectors}.<#>) query) DESC, i.id LIMIT seeds);
    ELSE
        wide := least(1000, greatest(100, 4 * seeds::bigint, ceil(sqrt(about.images))::integer, narrow::integer));
        PERFORM set_config('hnsw.ef_search', wide::text, true);
        IF about.seed_index = 'embedding' THEN
            ids := ARRAY(
                SELECT i.id FROM {schema}.items i ORDER BY i.embedding OPERATOR({vectors}.<#>) query LIMIT seeds);
        ELSE
            ids := ARRAY(
                SELECT n.id FROM (
                    SELECT i.id, i.embedding FROM {schema}.items i
                    ORDER BY i.half OPERATOR({vectors}.<#>) query::{vectors}.halfvec LIMIT wide
                ) n ORDER BY -(n.embedding OPERATOR({vectors}.<#>) query) DESC, n.id LIMIT seeds);
        END IF;
        PERFORM set_config('hnsw.ef_search', narrow, true);
    END IF;
    RETURN QUERY
    SELECT n.id, n.similarity,
        CASE WHEN n.similarity <= 0 THEN 0
            WHEN about.ranks IS NOT NULL THEN power((row_number() OVER (ORDER BY n.similarity DESC, n.id))
                * {schema}.rank_among(1 - n.similarity::double precision, n.marks, about.ranks, about.k), -0.75)
            WHEN about.gamma * ln(n.similarity::double precision) > -500
            THEN power(n.similarity::double precision, about.gamma) ELSE 0 END
    FROM (
        SELECT i.id, (-(i.embedding OPERATOR({vectors}.<#>) query))::real AS similarity, i.marks
        FROM {schema}.items i WHERE i.id = ANY (ids)
    ) n ORDER BY n.similarity DESC, n.id;
END
""",
)

# f = sum_j weights[j] * column[seeds[j]]. What would be zero in single precision was not reached. Both arrays are taken
# apart in the SELECT list, in step: in FROM they would first become a table in memory, which takes twice as long.
DIFFUSED = Function(
    "{schema}.diffused(seeds integer[], weights double precision[])"
    " RETURNS TABLE (id integer, score real) LANGUAGE sql STABLE ROWS 5000",
    """
SELECT e.id, sum(e.weight * e.value)::real
FROM (
    SELECT y.weight, unnest(c.rows) AS id, unnest(c."values") AS value
    FROM unnest(seeds, weights) AS y (id, weight) JOIN {schema}.columns c ON c.id = y.id
    WHERE y.weight > 0
) e
GROUP BY e.id HAVING sum(e.weight * e.value) > 1.4e-45
""",
)

# The hits of diffusion first, those that it did not reach behind them, nearest first, with the score 0. The filter
# leaves hits out of that ranking; seeds may be any items, so that a path to a hit may lead over what is filtered out.
SEARCH = Function(
    "{schema}.search(embedding {vectors}.vector, top integer DEFAULT 10, seeds integer DEFAULT 10,"
    " filter jsonb DEFAULT NULL, exact boolean DEFAULT false, prepared boolean DEFAULT false)"
    " RETURNS TABLE (id integer, name text, score real, metadata jsonb) LANGUAGE plpgsql VOLATILE ROWS 10",
    """
DECLARE
    x {vectors}.vector := CASE WHEN prepared THEN {schema}.as_stored(embedding) ELSE {schema}.prepared(embedding) END;
    ids integer[];
    weights double precision[];
    reached bigint;
BEGIN
    IF top IS NULL OR top < 1 OR seeds IS NULL OR seeds < 1 THEN
        RAISE EXCEPTION 'top and seeds must be at least 1, got % and %', top, seeds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT array_agg(y.id), array_agg(y.weight) INTO ids, weights FROM {schema}.seeds(x, seeds, exact) y;
    RETURN QUERY
    WITH f AS MATERIALIZED (SELECT d.id, d.score FROM {schema}.diffused(ids, weights) d),
    best AS MATERIALIZED (
        SELECT f.id, f.score FROM f
        WHERE filter IS NULL
            OR EXISTS (SELECT FROM {schema}.items i WHERE i.id = f.id AND i.metadata @> filter)
        ORDER BY f.score DESC, f.id LIMIT top
    )
    SELECT i.id, i.name, best.score, i.metadata FROM best JOIN {schema}.items i ON i.id = best.id
    ORDER BY best.score DESC, best.id;
    GET DIAGNOSTICS reached = ROW_COUNT;
    IF reached < top THEN
        RETURN QUERY
        SELECT i.id, i.name, 0::real, i.metadata FROM {schema}.items i
        WHERE (filter IS NULL OR i.metadata @> filter)
            AND NOT EXISTS (SELECT FROM {schema}.diffused(ids, weights) d WHERE d.id = i.id)
        ORDER BY -(i.embedding OPERATOR({vectors}.<#>) x) DESC, i.id LIMIT top - reached;
    END IF;
END
""",
)

EXPLAIN = Function(
    "{schema}.explain(embedding {vectors}.vector, item integer, seeds integer DEFAULT 10,"
    " exact boolean DEFAULT false, prepared boolean DEFAULT false)"
    " RETURNS TABLE (seed integer, name text, similarity real, weight double precision, entry double precision,"
    " amount double precision, share double precision) LANGUAGE plpgsql VOLATILE ROWS 10",
    """
DECLARE
    x {vectors}.vector := CASE WHEN prepared THEN {schema}.as_stored(embedding) ELSE {schema}.prepared(embedding) END;
BEGIN
    IF seeds IS NULL OR seeds < 1 THEN
        RAISE EXCEPTION 'seeds must be at least 1, got %', seeds USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.items i WHERE i.id = item) THEN
        RAISE EXCEPTION 'there is no item %', item USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT g.id, i.name, g.similarity, g.weight, g.entry, g.weight * g.entry,
        g.weight * g.entry / sum(g.weight * g.entry) OVER ()
    FROM (
        SELECT y.id, y.similarity, y.weight, e.value::double precision AS entry
        FROM {schema}.seeds(x, seeds, exact) y
        JOIN {schema}.columns c ON c.id = y.id
        CROSS JOIN unnest(c.rows, c."values") AS e (id, value)
        WHERE e.id = item AND y.weight > 0 AND e.value > 0
    ) g JOIN {schema}.items i ON i.id = g.id
    ORDER BY g.weight * g.entry DESC, g.id;
END
""",
)

# An embedding that is in the space of items.embedding already, as one that was read from there is.
AS_STORED = Function(
    "{schema}.as_stored(embedding {vectors}.vector) RETURNS {vectors}.vector LANGUAGE plpgsql VOLATILE",
    """
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.parameters) THEN
        RAISE EXCEPTION 'the index was replaced after this transaction began; begin a new one'
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF embedding IS NULL OR {vectors}.vector_norm(embedding) = 0 THEN
        RAISE EXCEPTION 'the embedding is missing or all zeros' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN {vectors}.l2_normalize(embedding);
END
""",
)

FUNCTIONS = (PREPARED, AS_STORED, RANK_AMONG, SEEDS, DIFFUSED, SEARCH, EXPLAIN)
