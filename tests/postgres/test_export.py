"""An index becomes tables: whole or not at all, while others search, and under any name."""

import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql
from tests.support import indexes
from tests.support.damage import change_array, put, sign_again
from tests.support.data import clusters, curves
from tests.support.postgres import LOCKED

import suffuse
from suffuse import Index, IndexBroken, InvalidInput, InvalidParams, Params
from suffuse.core.columns import Columns
from suffuse.errors import DatabaseProblem
from suffuse.postgres import PostgresIndex, export, export_index
from suffuse.postgres.schema import NAMES

N, D = 120, 10
PARAMS = Params(k=8, truncation=60, keep=20)
QUERIES = np.eye(D)[:4]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two indexes that answer differently; the second has fewer images and dimensions and is whitened."""
    folder = tmp_path_factory.mktemp("two")
    suffuse.build(curves(np.random.default_rng(0), N, D), folder / "first.index", PARAMS)
    other = clusters(np.random.default_rng(1), N - 30, D)
    suffuse.build(other, folder / "second.index", Params(k=6, keep=15, whiten=6, values="float32"))
    return folder / "first.index", folder / "second.index"


def tables(server, schema):
    return {name for (name,) in server.run("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])}


def test_the_tables_hold_what_the_index_holds(server, tmp_path):
    names = [
        {"name": f"Grüße {id} \u2028 'x'", "year": 1990 + id, "deep": {"a": [id, None, True, 1.5]}} for id in range(N)
    ]
    names[5], names[6] = {}, {"name": ""}
    for values, graph in (("uint8", "local"), ("float16", "paper"), ("float32", "local")):
        params = Params(k=8, truncation=60, keep=20, values=values, graph=graph)
        suffuse.build(curves(np.random.default_rng(0), N, D), tmp_path / values, params, names=names)
        done = export_index(tmp_path / values, server.url, "contents")
        index = Index.open(tmp_path / values)
        found = server.run("SELECT id, name, metadata, embedding::real[] FROM contents.items ORDER BY id")
        assert [row[0] for row in found] == list(range(N))
        assert [row[1] for row in found] == [index.items.name(id) for id in range(N)]
        assert [row[2] for row in found] == [{k: v for k, v in item.items() if k != "name"} for item in names]
        np.testing.assert_array_equal(np.array([row[3] for row in found], np.float32), index.features)
        columns = np.zeros((N, N), np.float32)
        for id, ids, entries in server.run('SELECT id, rows, "values" FROM contents.columns'):
            columns[ids, id] = entries
        np.testing.assert_allclose(columns, indexes.stored_columns(index), rtol=1e-6)
        marks = [row for (row,) in server.run("SELECT marks FROM contents.items ORDER BY id")]
        ((ranks,),) = server.run("SELECT ranks FROM contents.parameters")
        if graph == "paper":  # which weighs seeds by their similarities
            assert (ranks, marks) == (None, [None] * N)
        else:
            assert ranks == [1, 2, 4, 7]
            np.testing.assert_array_equal(np.array(marks, np.float16), index.now.marks(np.arange(N)))
        assert done.images == N
        assert done.bytes > index.features.nbytes
    ((generation, gamma, k, shown),) = server.run("SELECT generation, gamma, k, params FROM contents.parameters")
    assert (generation, gamma, k) == (3, params.gamma, params.k)
    assert shown == json.loads(json.dumps(params.to_dict()))
    assert tables(server, "contents") == {f"{name}_3" for name in NAMES}


def test_progress_goes_from_nothing_to_everything(server, two):
    heard = {}
    export_index(
        two[0], server.url, "progress", lambda stage, done, total: heard.setdefault(stage, []).append((done, total))
    )
    assert list(heard) == ["items", "columns", "links"]
    for steps in heard.values():
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]


def test_searches_have_answers_at_every_moment_of_an_export(server, two):
    expected = [Index.open(path).search(QUERIES, 15, refine=0).ids.tolist() for path in two]
    assert expected[0] != expected[1]
    export_index(two[0], server.url, "busy")
    answers, failures, stop = [], [], threading.Event()

    def search():
        try:
            with PostgresIndex(server.url, "busy") as index:
                while not stop.is_set():
                    answers.append(index.search(QUERIES, 15, exact=True).ids.tolist())
        except Exception as error:
            failures.append(error)

    readers = [threading.Thread(target=search) for _ in range(3)]
    for reader in readers:
        reader.start()
    for path in (two[1], two[0]) * 2:
        export_index(path, server.url, "busy")
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    # Never a mixture: a batch is answered by one of both.
    assert all(answer in expected for answer in answers)
    assert all(answer in answers for answer in expected)
    assert tables(server, "busy") == {f"{name}_5" for name in NAMES}


def test_a_transaction_that_began_before_is_told_to_begin_again(server, two):
    export_index(two[0], server.url, "old")
    with psycopg.connect(server.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")  # its view of the database is fixed from here on
        export_index(two[0], server.url, "old")
        for call in ("search(%s)", "search(%s, prepared => true)"):
            with (
                pytest.raises(psycopg.errors.SerializationFailure, match="replaced after this transaction began"),
                connection.transaction(),
            ):
                connection.execute(f"SELECT * FROM old.{call}", [str([1.0] * D)])


def test_an_export_waits_for_readers_and_gives_up_in_the_end(server, two, monkeypatch):
    export_index(two[0], server.url, "held")
    monkeypatch.setattr(export, "_PAUSE", 0.05)
    monkeypatch.setattr(export, "_WAIT_MS", 50)
    with psycopg.connect(server.url) as reader:
        before = reader.execute("SELECT id FROM held.search(%s)", [str([1.0] * D)]).fetchall()
        with monkeypatch.context() as impatient:
            impatient.setattr(export, "_ATTEMPTS", 2)
            with pytest.raises(DatabaseProblem, match="does not end; the old index stays"):
                export_index(two[1], server.url, "held")
        assert reader.execute("SELECT id FROM held.search(%s)", [str([1.0] * D)]).fetchall() == before
        waiting = threading.Thread(target=export_index, args=[two[1], server.url, "held"])
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
        reader.commit()
        waiting.join()
    with PostgresIndex(server.url, "held") as index:
        assert len(index) == N - 30


def test_an_export_that_fails_leaves_the_old_one(server, two, tmp_path):
    export_index(two[0], server.url, "kept")
    before = tables(server, "kept")
    suffuse.build(curves(np.random.default_rng(0), N, D), tmp_path / "x", Params(k=8, keep=20, values="float32"))
    change_array("rows.npy", put(-1, N))(tmp_path / "x")
    with pytest.raises(IndexBroken, match=r"rows\.npy was changed or damaged"):
        export_index(tmp_path / "x", server.url, "kept")
    sign_again(tmp_path / "x")
    with pytest.raises(IndexBroken, match="ids that do not exist"):
        export_index(tmp_path / "x", server.url, "kept")
    for name, message in (({"name": "a\0b"}, "U\\+0000"), ({"name": "a", "b": ["\0"]}, "U\\+0000")):
        suffuse.build(curves(np.random.default_rng(0), N, D), tmp_path / "y", PARAMS, names=[name] * N, force=True)
        with pytest.raises(InvalidInput, match=message):
            export_index(tmp_path / "y", server.url, "kept")
    assert tables(server, "kept") == before
    with PostgresIndex(server.url, "kept") as index:
        np.testing.assert_array_equal(
            index.search(QUERIES, exact=True).ids, Index.open(two[0]).search(QUERIES, refine=0).ids
        )


def test_a_role_that_may_only_read_can_search_also_after_the_next_export(server, two):
    export_index(two[0], server.url, "read")
    server.run("CREATE ROLE reader LOGIN")
    url = server.as_role("reader")
    with PostgresIndex(url, "read") as index, pytest.raises(DatabaseProblem, match="permission denied for schema read"):
        index.search(QUERIES)
    server.run("GRANT USAGE ON SCHEMA read TO reader")
    server.run("GRANT SELECT ON read.parameters, read.items, read.columns, read.whitening TO reader")
    for path in (two[0], two[1]):
        export_index(path, server.url, "read")
        with PostgresIndex(url, "read") as index:
            found, opened = index.search(QUERIES, exact=True), Index.open(path)
            np.testing.assert_array_equal(found.ids, opened.search(QUERIES, refine=0).ids)
            assert index.explain(QUERIES[0], int(found.ids[0, 0]))
            for change in ("DELETE FROM read.items", "UPDATE read.parameters SET gamma = 1", "DROP VIEW read.items"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    index._connection.execute(change)
    with pytest.raises(DatabaseProblem, match="ask the owner of the database"):
        export_index(two[0], url, "read")
    with pytest.raises(DatabaseProblem, match="permission denied for database"):
        export_index(two[0], url, "their own")


@pytest.mark.parametrize(
    "schema",
    [
        '"; DROP SCHEMA public; --',
        "$suffuse$ $$ $body$",
        "it's",
        "Übergröße 🙂",
        "%s {schema} {0}",
        "a.b",
        "SELECT",
        "x" * 63,
    ],
)
def test_a_schema_may_have_any_name(server, two, schema):
    for path in two:
        export_index(path, server.url, schema)
        with PostgresIndex(server.url, schema) as index:
            found, opened = index.search(QUERIES, exact=True), Index.open(path)
            np.testing.assert_array_equal(found.ids, opened.search(QUERIES, refine=0).ids)
            assert len(index) == len(opened)
            assert index.explain(QUERIES[0], int(found.ids[0, 0]))
    server.run(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    assert server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'public'")


@pytest.mark.parametrize("schema", ["", "a\0b", "x" * 64, "ü" * 32, "\ud800"])
def test_a_name_that_the_database_would_change_is_refused(two, schema):
    with pytest.raises(InvalidParams, match="schema must"):
        export_index(two[0], "postgresql://nowhere", schema)


def test_only_one_vector_per_image_can_be_exported(server, gallery, tmp_path):
    suffuse.build(gallery, tmp_path / "regional", indexes.REGIONS, owners=indexes.OWNERS)
    with pytest.raises(InvalidInput, match="several regions per image"):
        export_index(tmp_path / "regional", server.url)
    suffuse.build(np.random.default_rng(0).normal(size=(8, 16001)), tmp_path / "wide", Params(k=2))
    with pytest.raises(InvalidInput, match="16001 dimensions, pgvector stores at most 16000"):
        export_index(tmp_path / "wide", server.url)


def test_an_export_of_a_version_without_ranks_is_replaced(server, two):
    export_index(two[0], server.url, "earlier")
    items = "id, name, metadata, embedding::vector AS embedding, half::halfvec AS half"
    for name, shown, added in (("items", items, "marks"), ("parameters", "*", "ranks")):
        server.run(f"DROP VIEW earlier.{name}")
        server.run(f"ALTER TABLE earlier.{name}_1 DROP COLUMN {added}")
        server.run(f"CREATE VIEW earlier.{name} AS SELECT {shown} FROM earlier.{name}_1")
    assert export_index(two[0], server.url, "earlier").generation == 2
    with PostgresIndex(server.url, "earlier") as index:
        found, opened = index.search(QUERIES, exact=True), Index.open(two[0])
        np.testing.assert_array_equal(found.ids, opened.search(QUERIES, refine=0).ids)


def test_a_schema_of_another_program_is_left_alone(server, two):
    server.run("CREATE SCHEMA theirs")
    server.run("CREATE TABLE theirs.items (id integer)")
    with pytest.raises(
        DatabaseProblem, match=r"'theirs' holds 'items', which is not of an export; choose another schema"
    ):
        export_index(two[0], server.url, "theirs")
    assert tables(server, "theirs") == {"items"}


# --- the command line


def test_the_verb_exports_and_says_what_it_did(server, two, suffuse):
    code, out, err = suffuse("export", two[0], "--to", server.url, "--schema", "by [verb]")
    assert code == 0, err
    assert not out
    assert f"{N} images in the schema 'by [verb]', generation 1" in err
    with PostgresIndex(server.url, "by [verb]") as index:
        assert len(index) == N


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://someone:secret@127.0.0.1:1/x", "cannot connect to PostgreSQL"),
        ("postgresql://someone:sec%zzret@[", "cannot be read; write postgresql://"),
        ("{locked}", 'password authentication failed for user "locked"'),
        ("{unknown}", 'role "unknown" does not exist'),
        ("{bare}", "CREATE EXTENSION vector"),
    ],
)
def test_what_is_wrong_with_a_database_is_said_in_a_line(server, two, suffuse, url, message):
    urls = {
        "locked": server.url.replace("postgres:@", f"{LOCKED}:secret@", 1),
        "unknown": server.as_role("unknown"),
        "bare": server.bare,
    }
    code, _, err = suffuse("export", two[0], "--to", urls.get(url.strip("{}"), url))
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert "sec" not in err.replace("seconds", "")
    assert len([line for line in err.splitlines() if line.strip()]) == 1


def test_an_index_that_is_not_there_is_named(suffuse, tmp_path):
    code, _, err = suffuse("export", tmp_path / "no.index", "--to", "postgresql://127.0.0.1:1/x")
    assert code == 1
    assert "no.index" in err


def test_evaluate_ranks_by_sql_alone_and_finds_the_same(server, suffuse, tmp_path):
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "set.npz", features=clusters(rng, 80, 8, spread=1.5), labels=np.arange(80) % 4)
    for k in (5, 8):
        code, _, err = suffuse(
            "evaluate", tmp_path / "set.npz", "--methods", "graph", "--k", k, "--postgres", server.url,
            "--json", tmp_path / "out.json",
        )  # fmt: skip
        assert code == 0, err
        graph, by_sql = json.loads((tmp_path / "out.json").read_text())["results"]
        assert (graph["method"], by_sql["method"]) == ("graph", "sql")
        first = [name for name in graph["more"]["classes"] if name.startswith("any found@")]
        assert first == ["any found@1", "any found@5", "any found@10"]
        assert all(by_sql["more"]["classes"][name] == graph["more"]["classes"][name] for name in first)
        # With k = 8 columns reach everything; behind those of k = 5 the index goes on by districts, SQL by cosine.
        assert (by_sql["quality"] == graph["quality"]) == (k == 8)
    code, _, err = suffuse("evaluate", tmp_path / "set.npz", "--methods", "sql")
    assert code == 2
    assert "sql" in err


def test_what_to_install_is_said_where_psycopg_is_missing(monkeypatch, suffuse, two):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["suffuse", "postgres"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    code, _, err = suffuse("export", two[0], "--to", "postgresql://127.0.0.1:1/x")
    assert code == 1
    assert "pip install 'suffuse[postgres]'" in err


def test_the_statements_of_the_documentation_run(server, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
    names = [{"name": f"{id}.jpg", "place": "Oxford" if id % 2 else "Paris", "year": 1990 + id} for id in range(N)]
    suffuse.build(curves(np.random.default_rng(0), N, D), tmp_path / "x", PARAMS, names=names)
    export_index(tmp_path / "x", server.url)
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 8
    for statement in ";".join(blocks).split(";"):
        if statement.strip():
            server.run(statement.replace("[...]", str([1.0] * D)))
    with PostgresIndex(server.as_role("searcher")) as index:
        assert index.search(QUERIES, filter={"place": "Oxford"}).ids.shape == (4, 10)


# --- rows


def test_a_column_without_entries_is_an_empty_array(server):
    columns = Columns.of(np.array([0, 0, 2]), np.array([7, 3], np.int32), np.array([0.5, 0.25], np.float32))
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TEMPORARY TABLE few (id integer, rows integer[], entries real[])")
        with connection.cursor() as cursor, cursor.copy("COPY few FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(export.HEADER + export.encode_columns(np.array([4, 5]), columns) + export.TRAILER)
        found = connection.execute("SELECT * FROM few ORDER BY id").fetchall()
    assert found == [(4, [], []), (5, [7, 3], [0.5, 0.25])]


@pytest.mark.parametrize("item", [{"name": "\ud800"}, {"size": float("nan")}])
def test_an_item_that_is_no_text_is_named(item):
    with pytest.raises(InvalidInput, match="image 3 cannot be written"):
        export.encode_item(item, 3)
