"""The service and its database: away and back, replaced, slow, and with as few rights as will do."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from tests.support import serving
from tests.support.serving import D, N, check_hits, ids

import suffuse
from suffuse import DatabaseProblem, Index, InvalidInput, Params
from suffuse.cli import serve as serve_verb
from suffuse.errors import MissingExtra
from suffuse.index import search as similar
from suffuse.postgres import export_index
from suffuse.server import Limits, create_app

pytest_plugins = ["tests.support.exported"]


def test_many_requests_at_once_are_answered_alike(plain):
    expected = ids(plain.search(positive=[3], top=9))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: plain.search(positive=[3], top=9), range(40)))
    assert all(ids(answer) == expected for answer in answers)


def test_a_new_export_is_seen_by_the_next_request(server, paths, tmp_path):
    export_index(paths["plain"], server.url, "served anew")
    with serving.serve(server.url, schema="served anew") as client:
        remembered = client.search(vectors=[[1.0] * D])["query"]
        features = np.random.default_rng(3).normal(size=(2 * N, 5))
        suffuse.build(features, tmp_path / "x.index", Params(k=5, keep=10), names=[{"new": 1}] * (2 * N))
        export_index(tmp_path / "x.index", server.url, "served anew")
        index = Index.open(tmp_path / "x.index").now
        query = similar.compose(index, [N + 1])
        check_hits(client.search(positive=[N + 1], top=9), similar.search(index, query, 9, refine=0))
        info = client.json("/api/info")
        assert (info["images"], info["dimensions"], list(info["metadata"])) == (2 * N, 5, ["new"])
        assert f"suffuse_images {2 * N}" in client.get("/metrics").text
        assert "replaced" in client.search(422, query=remembered)["error"]["message"]


@pytest.fixture(scope="module")
def away(server, paths):
    """A database of its own, so that nobody else minds if it takes no connections; its URL has a password."""
    url = server.url.replace("/postgres?", "/away?").replace("postgres:@", "postgres:secret@")
    server.run("CREATE DATABASE away")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    export_index(paths["plain"], url)
    yield url
    server.run("DROP DATABASE away WITH (FORCE)")


def test_it_answers_again_when_the_database_is_back(away, server, paths, caplog):
    with serving.serve(away) as client:
        expected = ids(client.search(positive=[3], top=9))
        # Idle connections break, and work is done by new ones.
        close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'away'"
        assert server.run(close)
        assert ids(client.search(positive=[3], top=9)) == expected
        server.run("ALTER DATABASE away ALLOW_CONNECTIONS false")
        server.run(close)
        for answer in (
            client.search(503, positive=[3]),
            client.search(503, vectors=[[1.0] * D]),
            *(client.json(path, 503) for path in ("/api/items", "/api/items/3", "/api/info", "/readyz")),
            client.json("/api/explain?query=i:3&item=4", 503),
        ):
            assert answer["error"]["message"] == "the database cannot be reached"
            assert "away" not in json.dumps(answer)
        assert client.json("/healthz") == {"status": "ok"}
        assert f"suffuse_images {N}" in client.get("/metrics").text
        server.run("ALTER DATABASE away ALLOW_CONNECTIONS true")
        assert client.json("/readyz") == {"status": "ok"}
        assert ids(client.search(positive=[3], top=9)) == expected
        with psycopg.connect(away, autocommit=True) as connection:
            connection.execute("DROP SCHEMA suffuse CASCADE")
        client.search(503, positive=[3])
        export_index(paths["plain"], away)
        assert ids(client.search(positive=[3], top=9)) == expected
    assert "secret" not in caplog.text


def test_a_database_that_is_away_while_the_service_gets_warm_does_not_matter(away, server):
    app = create_app(away)
    server.run("ALTER DATABASE away ALLOW_CONNECTIONS false")
    with serving.Client(app) as client:
        client.search(503, positive=[3], filter={"place": "Rome"})
        server.run("ALTER DATABASE away ALLOW_CONNECTIONS true")
        assert ids(client.search(positive=[3], filter={"place": "Rome"}))


def test_a_statement_that_takes_too_long_is_ended(server, paths):
    with serving.serve(server.url, schema="served plain", limits=Limits(seconds=0.2)) as client:
        client.json("/api/info")
        with psycopg.connect(server.url) as connection:
            connection.execute('LOCK TABLE "served plain".items IN ACCESS EXCLUSIVE MODE')
            client.get("/api/items/3", 504)
        assert client.json("/api/items/3")["id"] == 3


def test_connections_are_used_again_and_closed_in_the_end(server, paths):
    def count():
        return server.run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'")[0][0]

    app, ended = create_app(server.url + "&application_name=counted", schema="served plain"), threading.Event()
    while count():  # the server takes a moment to notice that a connection was closed
        ended.wait(0.01)
    for _ in range(2):  # an app can be started again
        with serving.Client(app) as client:
            for id in range(20):
                client.json(f"/api/items/{id}")
            assert 1 <= count() <= 2
        while count():
            ended.wait(0.01)


def test_a_role_that_may_only_read_is_enough(server, paths):
    server.run("CREATE ROLE looking LOGIN")
    server.run('GRANT USAGE ON SCHEMA "served plain" TO looking')
    with pytest.raises(DatabaseProblem, match="ask the owner"):
        create_app(server.as_role("looking"), schema="served plain")
    server.run('GRANT SELECT ON ALL TABLES IN SCHEMA "served plain" TO looking')
    with serving.serve(server.as_role("looking"), schema="served plain") as client:
        assert len(ids(client.search(positive=[3], negative=[5], top=9))) == 9
        client.json("/api/explain?query=i:3&item=4")
        server.run('REVOKE SELECT ON ALL TABLES IN SCHEMA "served plain" FROM looking')
        client.search(503, positive=[3])


def test_what_is_wrong_at_the_start_is_told_without_the_password(server, tmp_path):
    for url, schema, message in (
        (server.url, "nothing here", "suffuse export"),
        (server.bare, "suffuse", "pgvector"),
        ("postgresql://me:secret@127.0.0.1:1/x", "suffuse", "cannot connect"),
        ("postgresql://me:secret@[x/y", "suffuse", "cannot be read"),
    ):
        with pytest.raises(DatabaseProblem, match=message) as told:
            create_app(url, schema=schema)
        assert "secret" not in str(told.value)
    with pytest.raises(InvalidInput, match="no folder"):
        create_app(server.url, image_root=tmp_path / "nothing")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"suffuse\[postgres\]"):
        create_app("postgresql://me@127.0.0.1:1/x")


def test_the_verb_shows_host_and_database_only(server, paths, monkeypatch, capsys):
    monkeypatch.setattr(serve_verb, "_run", lambda _app, _sock: None)
    url = server.url.replace("postgres:@", "postgres:secret@")
    serve_verb.serve(url, port=0, schema="served plain")
    assert re.match(rf"Serving postgresql:///postgres \({N} images\) at http://127", capsys.readouterr().err)
    for given, shown in (
        (
            "postgresql://me:secret@db.example:5433/photos?password=secret&sslmode=require",
            "postgresql://db.example/photos",
        ),
        ("photos.index", "photos.index"),
    ):
        assert serve_verb._hide_secrets(given) == shown
