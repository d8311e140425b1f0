"""The tables of one export, a generation, and the views by which readers see the newest one.

Readers name views only, and hold a lock on each until their transaction ends. So a new generation is written beside the
old one, and one moment at the end, when nobody reads, points the views to it: no reader sees half of it, none sees
nothing. The columns of a view have the same types in every generation, hence vectors without a length there.
"""

from dataclasses import dataclass

from psycopg import sql

# What pgvector's HNSW takes, for vector and for halfvec, and what a vector can have at all.
INDEXED, INDEXED_HALF, STORED = 2000, 4000, 16000

# A vector that leaves room for an id, a name and a pointer to the metadata on a page of 8 kB stays in its row: a scan
# of all vectors is then one of the table, without a second lookup for each.
_IN_ROW = 1800

# The order in which the views are locked: readers begin with parameters.
NAMES = ("parameters", "items", "columns", "whitening")

# Columns stay in their rows, too, compressed, where a page has room: a fifth less than in a place of their own.
_TABLES = """
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
    params jsonb NOT NULL
);
CREATE TABLE {items} (
    id integer NOT NULL,
    name text NOT NULL,
    metadata jsonb NOT NULL,
    embedding {vectors}.vector({dimensions}) NOT NULL,
    half {vectors}.halfvec({half_dimensions})
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

_INDEXES = """
ALTER TABLE {items} ADD PRIMARY KEY (id);
ALTER TABLE {columns} ADD PRIMARY KEY (id);
CREATE INDEX ON {items} USING gin (metadata jsonb_path_ops);
"""

_VIEWS = """
CREATE OR REPLACE VIEW {schema}.parameters AS SELECT * FROM {parameters};
CREATE OR REPLACE VIEW {schema}.items AS
    SELECT id, name, metadata, embedding::{vectors}.vector AS embedding, half::{vectors}.halfvec AS half FROM {items};
CREATE OR REPLACE VIEW {schema}.columns AS SELECT * FROM {columns};
CREATE OR REPLACE VIEW {schema}.whitening AS SELECT * FROM {whitening};
"""


@dataclass(frozen=True)
class Place:
    """Where one generation lives."""

    schema: str
    vectors: str  # the schema of pgvector
    generation: int

    def table(self, name: str) -> sql.Identifier:
        """The table of this generation that has this part."""
        return sql.Identifier(self.schema, f"{name}_{self.generation}")

    def _names(self) -> dict[str, sql.Composable]:
        parts: dict[str, sql.Composable] = {name: self.table(name) for name in NAMES}
        return {**parts, "schema": sql.Identifier(self.schema), "vectors": sql.Identifier(self.vectors)}

    def create(self, dimensions: int) -> sql.Composed:
        """New, empty tables."""
        tables = sql.SQL(_TABLES).format(
            **self._names(),
            dimensions=sql.Literal(dimensions),
            half_dimensions=sql.Literal(dimensions if has_half(dimensions) else 1),
        )
        if dimensions > _IN_ROW:
            return tables
        return tables + sql.SQL("ALTER TABLE {} ALTER COLUMN embedding SET STORAGE PLAIN;").format(self.table("items"))

    def index(self) -> sql.Composed:
        """What finds rows by id and by metadata, made when the rows are there."""
        return sql.SQL(_INDEXES).format(**self._names())

    def link(self, dimensions: int) -> sql.Composed | None:
        """The HNSW index that finds seeds; None for vectors that are too long for one."""
        column = seed_index(dimensions)
        if column == "none":
            return None
        kind = "vector_ip_ops" if column == "embedding" else "halfvec_ip_ops"
        return sql.SQL("CREATE INDEX ON {} USING hnsw ({} {})").format(
            self.table("items"), sql.Identifier(column), sql.Identifier(self.vectors, kind)
        )

    def show(self) -> sql.Composed:
        """Point the views here."""
        return sql.SQL(_VIEWS).format(**self._names())

    def drop(self) -> sql.Composed:
        """Remove the tables."""
        return sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(self.table(name) for name in NAMES))


def has_half(dimensions: int) -> bool:
    """Whether HNSW takes the vectors in half precision only."""
    return INDEXED < dimensions <= INDEXED_HALF


def seed_index(dimensions: int) -> str:
    """The column of items that has an HNSW index."""
    if dimensions <= INDEXED:
        return "embedding"
    return "half" if has_half(dimensions) else "none"
