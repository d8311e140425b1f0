"""Export of an index to PostgreSQL: new tables are written beside the old ones, then replace them.

Rows travel in PostgreSQL's binary COPY format, made from arrays without a Python object for each number. Numbers are
big-endian. A row is the number of its fields, then each field behind its length in bytes.
"""

import contextlib
import itertools
import json
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql

from suffuse.core import Damaged
from suffuse.core.columns import Columns
from suffuse.core.neighbors import known_ranks
from suffuse.core.params import Progress
from suffuse.errors import DatabaseProblem, InvalidInput
from suffuse.index.snapshot import Snapshot
from suffuse.postgres import schema as layout
from suffuse.postgres.connection import LARGEST, Connection, check_schema, connect, find_vector_schema, translate_errors
from suffuse.postgres.schema import NAMES, STORED, Tables, seed_index
from suffuse.store.files import report_damage
from suffuse.store.items import Item

# Images that are copied between two reports of progress.
_BLOCK = 1000
# How long the new tables wait for readers of the old ones: each wait is short, since new readers wait behind it.
_WAIT_MS, _PAUSE, _ATTEMPTS = 500, 1.0, 60
# Seconds between two looks at how far the server is.
_LOOK = 0.5
# An HNSW graph that does not fit in memory takes many times as long to build.
_MOST_MEMORY_MB = 4096

HEADER, TRAILER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0), struct.pack(">h", -1)
# The types of array elements, by their numbers in pg_type: those never change.
_INT4, _FLOAT4 = 23, 700


class Exported(NamedTuple):
    """What an export has left in the database."""

    schema: str
    generation: int  # 1 for the first export to a schema
    images: int
    bytes: int  # tables and their indexes
    seconds: float


def export_index(
    index_path: str | Path, url: str, schema: str = "suffuse", progress: Progress | None = None
) -> Exported:
    """Copy an index to the database at `url`, in one transaction; an earlier export to the schema is replaced.

    Readers have the old answers until the transaction ends. An export that fails leaves everything as it was. Images
    keep their ids; removed ones are left out, stale columns go as they are. `progress` hears stage, done and total.
    """
    began = time.perf_counter()
    stored = Snapshot.open(index_path)
    stored.check_files()  # damage must not be copied
    _check_exportable(stored)
    check_schema(schema)
    report = progress or (lambda _stage, _done, _total: None)
    doing = f"cannot export to the schema {schema!r}"
    with connect(url) as connection, translate_errors(doing), connection.transaction():
        # One export to a schema at a time; a second one waits here.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"suffuse export {schema}"])
        old = _find_tables(connection, schema)
        new = Tables(schema, find_vector_schema(connection), 1 if old is None else old.generation + 1)
        connection.execute(new.create(stored.shape[1]))
        _fill(connection, new, stored, report)
        _create_indexes(connection, new, stored, report)
        ((size,),) = connection.execute(
            "SELECT sum(pg_total_relation_size(t::regclass)) FROM unnest(%s::text[]) t",
            [[new.table(name).as_string(connection) for name in NAMES]],
        )
        _swap(connection, old, new)
    return Exported(schema, new.generation, stored.ids.visible, int(size), time.perf_counter() - began)


def _check_exportable(stored: Snapshot) -> None:
    if stored.is_regional:
        raise InvalidInput("the index has several regions per image; export one that has one vector per image")
    if stored.ids.visible and (last := int(stored.ids.list_visible()[-1])) > LARGEST:
        raise InvalidInput(f"the index has an image {last}; ids above {LARGEST} cannot be exported; build it anew")
    dimensions = max(stored.shape[1], stored.dimensions)  # whitened, and as they are extracted
    if dimensions > STORED:
        found = f"the features have {dimensions} dimensions, pgvector stores at most {STORED}"
        raise InvalidInput(f"{found}; whiten them to fewer")


def _find_tables(connection: Connection, schema: str) -> Tables | None:
    """The tables that are there; None in a schema without any, which is created if need be."""
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount == 0:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        return None
    found = connection.execute(
        "SELECT c.relname, c.relkind = 'v' AND (c.relname <> 'parameters' OR EXISTS (SELECT FROM pg_attribute a"
        " WHERE a.attrelid = c.oid AND a.attname = 'seed_index'))"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = ANY (%s)",
        [schema, list(NAMES)],
    ).fetchall()
    if not found:
        return None
    if len(found) < len(NAMES) or not all(ours for _, ours in found):
        theirs = f"the schema {schema!r} holds {found[0][0]!r}"
        raise DatabaseProblem(f"{theirs}, which is not of an export; choose another schema")
    statement = sql.SQL("SELECT generation FROM {}.parameters").format(sql.Identifier(schema))
    ((generation,),) = connection.execute(statement)
    return Tables(schema, "", generation)


def _fill(connection: Connection, tables: Tables, stored: Snapshot, report: Progress) -> None:
    """Write all rows, by COPY."""
    dimensions, params, whitening = stored.shape[1], stored.manifest.params, stored.whitening
    values = {
        "generation": tables.generation,
        "created_by": stored.manifest.created_by,
        "images": stored.ids.visible,
        "query_dimensions": stored.dimensions,
        "dimensions": dimensions,
        "alpha": params.alpha,
        "gamma": params.gamma,
        "k": params.k,
        "seed_index": seed_index(dimensions),
        "whitening_mean": None if whitening is None else json.dumps(whitening.mean.tolist()),
        "params": json.dumps(params.to_dict()),
        "ranks": known_ranks(params.k).tolist() if params.graph == "local" else None,
    }
    # Literals and not parameters: with those, psycopg would read % in the name of the table, too.
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            tables.table("parameters"),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Literal, values.values())),
        )
    )
    if whitening is not None:
        # Column i of the projection is row i, so that a component of a query is one inner product.
        axes = enumerate(_encode_vectors(np.ascontiguousarray(whitening.projection.T)))
        _copy(connection, tables, "whitening", (_encode_row(number, axis) for number, axis in axes))
    _copy(connection, tables, "items", _encode_blocks("items", _encode_items, stored, report))
    _copy(connection, tables, "columns", _encode_blocks("columns", _encode_columns, stored, report))


def _copy(connection: Connection, tables: Tables, name: str, blocks: Iterable[bytes]) -> None:
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(tables.table(name))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(HEADER)
        for block in blocks:
            copy.write(block)
            # Wait until the server has it: libpq would keep everything in memory, and progress would be wrong.
            while connection.pgconn.flush():
                select.select([], [connection.fileno()], [], 1)
        copy.write(TRAILER)


def _encode_blocks(
    name: str, encode: Callable[[Snapshot, NDArray[np.int64]], bytes], stored: Snapshot, report: Progress
) -> Iterator[bytes]:
    """The rows of all images, block by block; a block is reported when the next one is asked for."""
    ids = stored.ids.list_visible()
    report(name, 0, len(ids))
    for start in range(0, len(ids), _BLOCK):
        yield encode(stored, ids[start : start + _BLOCK])
        report(name, min(start + _BLOCK, len(ids)), len(ids))


def _encode_items(stored: Snapshot, ids: NDArray[np.int64]) -> bytes:
    """Rows of the table items."""
    rows = stored.ids.find_rows(ids)
    features = stored.rows(rows)
    half = seed_index(features.shape[1]) == "half"
    halves: Iterable[bytes | None] = _encode_vectors(features, half=True) if half else [None] * len(ids)
    items = (encode_item(stored.items.at(row), id) for row, id in zip(rows.tolist(), ids.tolist(), strict=True))
    marks: Iterable[bytes | None] = [None] * len(ids)
    if stored.params.graph == "local":
        marks = (_encode_array(_FLOAT4, _prefix_lengths(row, ">f4")) for row in stored.marks(rows))
    fields = zip(ids.tolist(), items, _encode_vectors(features), halves, marks, strict=True)
    return b"".join(_encode_row(id, *item, *others) for id, item, *others in fields)


@report_damage
def _encode_columns(stored: Snapshot, ids: NDArray[np.int64]) -> bytes:
    """Rows of the table columns, by the ids of images; entries of images that were removed are left out."""
    rows = stored.ids.find_rows(ids)
    columns = stored.columns(rows).decode(rows)
    if len(columns.entries) and not 0 <= columns.entries.min() <= columns.entries.max() < stored.shape[0]:
        raise Damaged("the columns hold ids that do not exist")
    shown = stored.ids.hidden[columns.entries] == 0 if len(stored.ids.hidden) else np.ones(len(columns.entries), bool)
    before = np.concatenate([[0], np.cumsum(shown)])
    entry_ids = stored.name_rows(columns.entries[shown].astype(np.int64))
    return encode_columns(ids, Columns.of(before[columns.indptr], entry_ids.astype(np.int32), columns.values[shown]))


def _create_indexes(connection: Connection, tables: Tables, stored: Snapshot, report: Progress) -> None:
    """Create the indexes that make searches fast; with all rows there, that is faster than adding to them."""
    n, dimensions = stored.ids.visible, stored.shape[1]
    connection.execute(tables.name(layout.INDEXES))
    # The vectors, and for each up to 32 links of 16 bytes on the lowest layer, with what holds them.
    wanted = min(_MOST_MEMORY_MB, n * (4 * dimensions + 1000) // 2**20 + 64)
    connection.execute(
        "SELECT set_config('maintenance_work_mem', %s, true) FROM pg_settings"
        " WHERE name = 'maintenance_work_mem' AND setting::bigint < %s",
        [f"{wanted}MB", wanted * 1024],
    )
    report("links", 0, n)
    if (links := tables.link(dimensions)) is not None:
        with _watch_index(connection, lambda done: report("links", min(done, n), n)):
            connection.execute(links)
    report("links", n, n)
    for name in NAMES:
        connection.execute(sql.SQL("ANALYZE {}").format(tables.table(name)))


@contextlib.contextmanager
def _watch_index(connection: Connection, tell: Callable[[int], None]) -> Iterator[None]:
    """Tell how many rows are in the new index; asked by a second connection, since this one is busy."""
    pid, dsn, password = connection.info.backend_pid, connection.info.dsn, connection.info.password
    statement, over = "SELECT tuples_done FROM pg_stat_progress_create_index WHERE pid = %s", threading.Event()

    def look() -> None:
        # Where there is no second connection, there is no progress to see; that is no reason to fail.
        with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, password=password, autocommit=True) as other:
            while not over.wait(_LOOK):
                for (done,) in other.execute(statement, [pid]):
                    tell(done)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _swap(connection: Connection, old: Tables | None, new: Tables) -> None:
    """Point the views to the new tables and drop the old ones, as soon as no transaction reads them."""
    functions = new.define_functions(connection)
    for _ in range(_ATTEMPTS):
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{_WAIT_MS}ms"])
                connection.execute(new.name(layout.VIEWS))
                if old is not None:
                    connection.execute(old.name(layout.DROP))
                connection.execute(functions)
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            time.sleep(_PAUSE)
    raise DatabaseProblem(
        f"a transaction that reads the old index in the schema {new.schema!r} does not end; the old index stays."
        " Find it in pg_stat_activity, end it, and export again"
    )


# --- rows


def _encode_row(number: int, *fields: bytes | None) -> bytes:
    """One row that begins with an integer; None is NULL."""
    parts = [struct.pack(">hii", 1 + len(fields), 4, number)]
    for field in fields:
        parts.append(struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field)
    return b"".join(parts)


def _encode_vectors(rows: NDArray[Any], *, half: bool = False) -> Iterator[bytes]:
    """A vector field, or a halfvec, for each row (b, d)."""
    head = struct.pack(">hh", rows.shape[1], 0)
    for values in rows.astype(">f2" if half else ">f4"):
        yield head + values.tobytes()


def encode_item(item: Item, id: int) -> tuple[bytes, bytes]:
    """The fields name and metadata of an image, which is called by its id where it has no name."""
    metadata = {key: value for key, value in item.items() if key != "name"}
    try:
        name = str(item.get("name", id)).encode()
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        found = f"the metadata of image {id} cannot be written: {error}"
        raise InvalidInput(f"{found}; correct it and build again") from error
    if b"\0" in name or b"\\u0000" in text:
        found = f"the name or metadata of image {id} holds the character U+0000"
        raise InvalidInput(f"{found}, which PostgreSQL does not store; correct it and build again")
    return name, b"\x01" + text  # jsonb begins with its version


def encode_columns(ids: NDArray[np.int64], columns: Columns) -> bytes:
    """Rows of the table columns from entries (id, value) of each column."""
    rows, values = _prefix_lengths(columns.entries, ">i4"), _prefix_lengths(columns.values, ">f4")
    bounds = itertools.pairwise(columns.indptr.tolist())
    return b"".join(
        _encode_row(id, _encode_array(_INT4, rows[start:stop]), _encode_array(_FLOAT4, values[start:stop]))
        for id, (start, stop) in zip(ids.tolist(), bounds, strict=True)
    )


def _prefix_lengths(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Each number behind its length."""
    pairs = np.empty(len(values), [("length", ">i4"), ("value", kind)])
    pairs["length"], pairs["value"] = 4, values
    return pairs


def _encode_array(kind: int, elements: NDArray[Any]) -> bytes:
    """An array of one dimension that counts from 1; an empty one has no dimension."""
    if not len(elements):
        return struct.pack(">iii", 0, 0, kind)
    return struct.pack(">iiiii", 1, 0, kind, len(elements), 1) + elements.tobytes()
