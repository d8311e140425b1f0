"""The service goes on with its index: it sees what others change, and a request sees one generation."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.test_changes import serve
from tests.server.test_process import address_of, get, started
from tests.support import serving
from tests.support.data import curves
from tests.support.serving import D, N, ids

import suffuse
from suffuse import Index, Params
from suffuse.index.catalogue import Catalogue
from suffuse.index.snapshot import Snapshot
from suffuse.server import Limits
from suffuse.server.models import SearchRequest

QUICK = Limits(refresh_seconds=0.01)


@pytest.fixture
def path(tmp_path):
    return serving.build(tmp_path)


def rows(count, seed=1):
    return curves(np.random.default_rng(seed), count, D)


def engine_of(client):
    return client._client.app.state.service.engine


def until(client, generation):
    while client.json("/api/changes")["generation"] != generation:
        pass


# --- what others change


def test_a_change_by_another_process_is_seen(path):
    new = rows(2)
    with serving.serve(path, limits=QUICK) as client:
        assert client.json("/api/info")["images"] == N
        program = (
            "import json, sys, suffuse; index = suffuse.Index.open(sys.argv[1]);"
            "index.add(__import__('numpy').array(json.loads(sys.argv[2])), names=['new 0', 'new 1']); index.remove([4])"
        )
        subprocess.run([sys.executable, "-c", program, str(path), json.dumps(new.tolist())], check=True)
        until(client, 3)
        assert client.json("/api/info")["images"] == N + 1
        assert ids(client.search(vectors=[new[1].tolist()]), "knn")[0] == N + 1
        assert client.json("/api/items?q=new")["total"] == 2
        client.get("/api/items/4", 404)
        Index.open(path).compact()
        until(client, 4)
        assert client.json("/api/changes")["stale"] == 0
        assert client.json(f"/api/items/{N + 1}")["name"] == "new 1"


def test_an_index_that_is_built_anew_is_served_and_old_queries_are_told(path):
    with serving.serve(path, limits=QUICK) as client:
        query = client.search(vectors=[[1.0] * D])["query"]
        new = path.parent / "new"
        suffuse.build(curves(np.random.default_rng(0), 30, 4), new, Params(k=5, truncation=30, keep=20))
        shutil.rmtree(path)
        new.rename(path)
        while client.json("/api/info")["images"] != 30:
            pass
        assert "search again" in client.search(422, query=query)["error"]["message"]
        assert client.search(vectors=[[1.0] * 4])["results"]["knn"]["hits"]


def put(path, content):
    """Write a file at once: the service looks all the time, and would see it empty."""
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


def test_an_index_that_breaks_is_served_as_it_was_until_it_is_whole_again(path, caplog):
    manifest = (path / "manifest.json").read_bytes()
    with serving.serve(path, limits=QUICK) as client:
        client.json("/api/info")
        expected = client.search(positive=[3])["results"]
        put(path / "manifest.json", b"{")
        while "the old one is served on" not in caplog.text:
            pass
        assert ids({"results": client.search(positive=[3])["results"]}) == ids({"results": expected})
        (path / "manifest.json").unlink()
        client.search(positive=[3])
        put(path / "manifest.json", manifest)
        Index.open(path).remove([9])
        until(client, 2)
        client.get("/api/items/9", 404)
    assert caplog.text.count("the old one is served on") == 1


def test_nothing_is_made_anew_while_nothing_changes(path, monkeypatch):
    looked, opened = threading.Semaphore(0), []
    with serving.serve(path, limits=QUICK) as client:
        client.json("/api/info")
        monkeypatch.setattr("suffuse.server.engine.Snapshot.open", lambda path: opened.append(path))
        engine = engine_of(client)
        signature = engine.read_signature

        def counted():
            looked.release()
            return signature()

        engine.read_signature = counted
        for _ in range(5):
            looked.acquire()
    assert not opened


def test_an_app_that_is_closed_follows_no_more_and_again_when_it_is_opened(path):
    client = serving.serve(path, limits=QUICK)
    with client:
        client.json("/api/info")
    assert not [thread for thread in threading.enumerate() if thread.name == "suffuse-follow"]
    Index.open(path).remove([3])
    with client:
        until(client, 2)


# --- one generation for one request


def test_a_request_sees_one_generation(path, monkeypatch):
    """It is changed after the search has begun: the hits are those of before, and so are their names."""
    with serve(path) as client:
        client.json("/api/info")
        engine = engine_of(client)
        before = engine.view.search(SearchRequest(positive=[3], top=N))
        understand = engine.queries.understand

        def meanwhile(index, *rest):
            monkeypatch.setattr(engine.queries, "understand", understand)
            for id in ids(before)[:5]:
                client("DELETE", f"/api/items/{id}")
            return understand(index, *rest)

        monkeypatch.setattr(engine.queries, "understand", meanwhile)
        during = engine.view.search(SearchRequest(positive=[3], top=N))
        after = engine.view.search(SearchRequest(positive=[3], top=N))
    assert ids(during) == ids(before)
    assert not set(ids(before)[:5]) & set(ids(after))


def test_searches_go_on_while_the_index_changes(path):
    stop, failed, gone = threading.Event(), [], set()
    with serve(path) as client:
        client.json("/api/info")

        def search(number):
            while not stop.is_set():
                confirmed = set(gone)
                answer = client._client.post("/api/search", json={"vectors": [[float(number + 1)] * D], "top": N})
                if answer.status_code != 200 or confirmed & set(ids(answer.json())):
                    failed.append(answer.text)

        threads = [threading.Thread(target=search, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(12):
                (added,) = client("POST", "/api/items", 201, json={"vectors": rows(1, number).tolist()}).json()["ids"]
                client("DELETE", f"/api/items/{number}")
                gone.add(number)
                assert added == N + number
                if number % 5 == 4:
                    client("POST", "/api/compact", 202)
                    while client.json("/api/changes")["compacting"]:
                        pass
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert client.json("/api/info")["images"] == N
    assert not failed


def test_a_generation_that_nobody_asks_any_more_is_let_go(path):
    """Without waiting for the garbage collector: a mapped index is large."""
    import weakref

    with serve(path) as client:
        client.json("/api/items?shuffle=3&q=a")
        client.search(positive=[3], filter={"good": True})
        client.json("/api/explain?query=i:3&item=5")
        old = weakref.ref(engine_of(client).view.index)
        client("DELETE", "/api/items/7")
        client.search(positive=[3])
        assert old() is None


# --- the catalogue


fields = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y", 1, 2.5, True, None, [1]]), max_size=3
)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_catalogue_that_grew_is_as_one_made_anew(data):
    """Of any items, hidden ones among them."""
    from suffuse.store.ids import Ids
    from suffuse.store.items import Items, encode_items

    items = [{**item, "name": f"n{number % 4}"} for number, item in enumerate(data.draw(st.lists(fields, min_size=1)))]
    text, offsets = encode_items(items)
    first = data.draw(st.integers(1, len(items)))
    hidden = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(items), max_size=len(items))), np.uint8)

    def catalogue(count, hidden, before=None):
        ids = Ids(count, None, hidden)
        return Catalogue(ids, Items(ids, memoryview(text), offsets), before)

    grown = catalogue(len(items), hidden, catalogue(first, hidden[:first] & (hidden[:first] - 1)))
    anew = catalogue(len(items), hidden)
    assert grown.fields == anew.fields
    for text_ in ("", "n1", "nothing"):
        assert grown.list_ids(text_, None).tolist() == anew.list_ids(text_, None).tolist()
        assert grown.list_ids(text_, 5).tolist() == anew.list_ids(text_, 5).tolist()
    assert set(grown.list_ids("", None).tolist()) == set(np.flatnonzero(hidden == 0).tolist())
    for field in anew.fields:
        for value in (["x"], [1, 2.5], True):
            assert (grown.match({field: value}) == anew.match({field: value})).all()


def test_only_what_was_added_is_read(path, monkeypatch):
    from suffuse.store.items import Items

    read = []
    at = Items.at
    with serve(path) as client:
        client.json("/api/info")
        monkeypatch.setattr(Items, "at", lambda items, place: read.append(place) or at(items, place))
        client("POST", "/api/items", 201, json={"vectors": rows(2).tolist(), "names": ["new 0", "new 1"]})
        assert {place for place in read if place < N} == set()
        assert client.json("/api/items?q=new 1")["items"][0]["id"] == N + 1


def test_a_shuffled_order_stays_when_pictures_come_and_go(path):
    def order(client):
        return [item["id"] for item in client.json("/api/items?shuffle=7&limit=500")["items"]]

    with serve(path) as client:
        before = order(client)
        client("DELETE", "/api/items/7")
        client("POST", "/api/items", 201, json={"vectors": rows(1).tolist()})
        after = order(client)
    assert [id for id in after if id != N] == [id for id in before if id != 7]
    assert N in after


# --- a real process


def test_a_real_service_takes_changes_and_sees_those_of_others(path, tmp_path):
    (tmp_path / "token").write_text("open sesame\n")
    (tmp_path / "token").chmod(0o600)
    process = started(path, "--port", 0, "--token-file", tmp_path / "token")
    token = {"Authorization": "Bearer open sesame"}
    try:
        address = address_of(process)

        def change(method, where, content=None):
            body = None if content is None else json.dumps(content).encode()
            headers = {**token, "Content-Type": "application/json"}
            request = urllib.request.Request(address + where, body, headers, method=method)
            with urllib.request.urlopen(request) as answer:
                return json.loads(answer.read())

        assert change("POST", "/api/items", {"vectors": rows(2).tolist()})["ids"] == [N, N + 1]
        change("DELETE", f"/api/items/{N}")
        Index.open(path).remove([5])
        while get(address + "/api/changes", **token)["generation"] != 4:
            pass
        assert get(address + "/api/info", **token)["images"] == N
        assert change("POST", "/api/compact")["compacting"] in (True, False)
        while (told := get(address + "/api/changes", **token))["compacting"]:
            pass
        assert (told["generation"], told["stale"]) == (5, 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert sorted(Snapshot.open(path).ids.list_visible().tolist()) == sorted({*range(N), N + 1} - {5})
    assert not (path / "compacting").exists()
