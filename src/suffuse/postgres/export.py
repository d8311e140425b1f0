"""An index directory becomes tables in PostgreSQL: beside those that are there, then in their place."""

import contextlib
import json
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql

from suffuse.core.columns import Entries, plain
from suffuse.core.features import Whitening
from suffuse.errors import DatabaseProblem, IndexBroken, InvalidInput
from suffuse.postgres import rows as copying
from suffuse.postgres.connection import Connection, check_schema, connect, friendly, vector_schema
from suffuse.postgres.functions import definitions
from suffuse.postgres.tables import NAMES, STORED, Place, has_half, seed_index
from suffuse.store.opening import Stored, open_index

Progress = Callable[[str, int, int], None]

# The largest id that the tables hold.
_LARGEST = 2**31 - 1
# Images that are copied between two reports of progress.
_BLOCK = 1000
# How long the new tables wait for readers of the old ones: each wait is short, since new readers wait behind it.
_WAIT_MS, _PAUSE, _ATTEMPTS = 500, 1.0, 60
# Seconds between two looks at how far the server is.
_LOOK = 0.5
# An HNSW graph that does not fit in memory takes many times as long to build.
_MOST_MEMORY_MB = 4096


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

    Readers have the old answers until the transaction ends and the new ones from then on. An export that fails leaves
    everything as it was. Images have the ids that they have in the index; removed ones are left out, and stale columns
    go as they are. `progress` hears stage, done and total.
    """
    began = time.perf_counter()
    stored = open_index(index_path)
    for pages in stored.pages.values():
        pages.check_whole()  # damage must not be copied
    _check(stored)
    check_schema(schema)
    report = progress or (lambda _stage, _done, _total: None)
    with connect(url) as connection, friendly(f"cannot export to the schema {schema!r}"), connection.transaction():
        # One export to a schema at a time; a second one waits here.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"suffuse export {schema}"])
        old = _present(connection, schema)
        new = Place(schema, vector_schema(connection), 1 if old is None else old.generation + 1)
        dimensions = stored.features.shape[1]
        connection.execute(new.create(dimensions))
        _fill(connection, new, stored, report)
        _index(connection, new, stored, report)
        size = connection.execute(
            sql.SQL("SELECT sum(pg_total_relation_size(t::regclass)) FROM unnest(%s::text[]) t"),
            [[new.table(name).as_string(connection) for name in NAMES]],
        ).fetchone()
        assert size is not None
        _swap(connection, old, new)
    return Exported(schema, new.generation, stored.ids.visible, int(size[0]), time.perf_counter() - began)


def _check(stored: Stored) -> None:
    if stored.owners is not None:
        raise InvalidInput(
            "the index has several regions per image; only indexes with one vector per image can be exported"
        )
    if stored.ids.visible and (last := int(stored.ids.shown()[-1])) > _LARGEST:
        raise InvalidInput(f"the index has an image {last}; ids above {_LARGEST} cannot be exported; build it anew")
    whitening = stored.whitening
    for dimensions in (stored.features.shape[1], 0 if whitening is None else len(whitening.mean)):
        if dimensions > STORED:
            raise InvalidInput(
                f"the features have {dimensions} dimensions, pgvector stores at most {STORED}; build with --whiten"
            )


def _present(connection: Connection, schema: str) -> Place | None:
    """The generation that is there; None in a schema without one, which is made if need be."""
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
        raise DatabaseProblem(
            f"the schema {schema!r} holds {found[0][0]!r}, which is not of an export; choose another --schema"
        )
    current = connection.execute(
        sql.SQL("SELECT generation FROM {}.parameters").format(sql.Identifier(schema))
    ).fetchone()
    assert current is not None
    return Place(schema, "", current[0])


def _fill(connection: Connection, place: Place, stored: Stored, report: Progress) -> None:
    """All rows, by COPY."""
    n, dimensions = stored.ids.visible, stored.features.shape[1]
    params, whitening = stored.manifest.params, stored.whitening
    values = {
        "generation": place.generation,
        "created_by": stored.manifest.created_by,
        "images": n,
        "query_dimensions": dimensions if whitening is None else len(whitening.mean),
        "dimensions": dimensions,
        "alpha": params.alpha,
        "gamma": params.gamma,
        "k": params.k,
        "seed_index": seed_index(dimensions),
        "whitening_mean": None if whitening is None else json.dumps(whitening.mean.tolist()),
        "params": json.dumps(params.to_dict()),
    }
    # Literals and not parameters: beside those psycopg would read % in the name of the table, too.
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            place.table("parameters"),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Literal, values.values())),
        )
    )
    _copy(connection, place, "whitening", [] if whitening is None else [_axes(whitening)], lambda _: None)
    starts = range(0, n, _BLOCK)

    def items(first: int, places: NDArray[np.int64]) -> Iterator[bytes]:
        contents = [stored.items.at(place) for place in places.tolist()]
        return copying.item_rows(first, contents, stored.features[places], has_half(dimensions))

    def columns(first: int, places: NDArray[np.int64]) -> Iterator[bytes]:
        return copying.column_rows(first, _columns(stored, places))

    for name, rows in (("items", items), ("columns", columns)):
        report(name, 0, n)
        blocks = (b"".join(row for run in _runs(stored, start) for row in rows(*run)) for start in starts)
        _copy(
            connection, place, name, blocks,
            lambda blocks, name=name: report(name, min(blocks * _BLOCK, n), n),  # type: ignore[misc]
        )  # fmt: skip


def _copy(
    connection: Connection, place: Place, name: str, blocks: Iterable[bytes], copied: Callable[[int], None]
) -> None:
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(place.table(name))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(copying.HEADER)
        for number, block in enumerate(blocks, 1):
            copy.write(block)
            _flush(connection)
            copied(number)
        copy.write(copying.TRAILER)


def _flush(connection: Connection) -> None:
    """Wait until the server has taken what was written: libpq would keep it all in memory, and progress would lie."""
    while connection.pgconn.flush():
        select.select([], [connection.fileno()], [], 1)


def _axes(whitening: Whitening) -> bytes:
    """Column i of the projection as the row i, so that a component of a query is one inner product."""
    axes = copying.vectors(np.ascontiguousarray(whitening.projection.T))
    return b"".join(copying.row(copying.integer(number), axis) for number, axis in enumerate(axes))


def _runs(stored: Stored, start: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The next block of images: the first of ids that follow each other, and the places of these; run by run."""
    ids = stored.ids.shown()[start : start + _BLOCK]
    places = stored.ids.places(ids)
    for run in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(ids) != 1) + 1):
        yield int(ids[run[0]]), places[run]


def _columns(stored: Stored, places: NDArray[np.int64]) -> Entries:
    """These columns, plain, by the ids of images; entries of those that were removed are left out."""
    columns = plain(stored.columns, places)
    if len(columns.rows) and not 0 <= columns.rows.min() <= columns.rows.max() < len(stored.features):
        raise IndexBroken("the columns hold ids that do not exist; run suffuse verify, then copy the index again")
    shown = stored.ids.hidden[columns.rows] == 0 if len(stored.ids.hidden) else np.ones(len(columns.rows), bool)
    before = np.concatenate([[0], np.cumsum(shown)])
    ids = stored.ids.of(columns.rows[shown].astype(np.int64))
    return Entries(before[columns.indptr], ids.astype(np.int32), columns.values[shown])


def _index(connection: Connection, place: Place, stored: Stored, report: Progress) -> None:
    """What makes searches fast, when the rows are there: building it once is faster than adding to it."""
    n, dimensions = stored.ids.visible, stored.features.shape[1]
    connection.execute(place.index())
    # The vectors, and for each up to 32 links of 16 bytes on the lowest layer, with what holds them.
    wanted = min(_MOST_MEMORY_MB, n * (4 * dimensions + 1000) // 2**20 + 64)
    connection.execute(
        "SELECT set_config('maintenance_work_mem', %s, true) FROM pg_settings"
        " WHERE name = 'maintenance_work_mem' AND setting::bigint < %s",
        [f"{wanted}MB", wanted * 1024],
    )
    report("links", 0, n)
    if (links := place.link(dimensions)) is not None:
        with _watched(connection, lambda done: report("links", min(done, n), n)):
            connection.execute(links)
    report("links", n, n)
    for name in NAMES:
        connection.execute(sql.SQL("ANALYZE {}").format(place.table(name)))


@contextlib.contextmanager
def _watched(connection: Connection, tell: Callable[[int], None]) -> Iterator[None]:
    """Tell how many rows the server has put into an index; asked by a second connection, since this one is busy."""
    pid, dsn, password = connection.info.backend_pid, connection.info.dsn, connection.info.password
    over = threading.Event()

    def look() -> None:
        # Where there is no second connection, there is no progress to see; that is no reason to fail.
        with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, password=password, autocommit=True) as other:
            while not over.wait(_LOOK):
                for (done,) in other.execute(
                    "SELECT tuples_done FROM pg_stat_progress_create_index WHERE pid = %s", [pid]
                ):
                    tell(done)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _swap(connection: Connection, old: Place | None, new: Place) -> None:
    """Point the views to the new tables and drop the old ones, as soon as no transaction reads them."""
    functions = definitions(connection, new.schema, new.vectors)
    for _ in range(_ATTEMPTS):
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{_WAIT_MS}ms"])
                connection.execute(new.show())
                if old is not None:
                    connection.execute(old.drop())
                connection.execute(functions)
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            time.sleep(_PAUSE)
    raise DatabaseProblem(
        f"a transaction that reads the old index in the schema {new.schema!r} does not end; the old index stays."
        " Find it in pg_stat_activity, end it, and export again"
    )
