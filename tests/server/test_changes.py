"""Changes over HTTP: only with the token, seen by searches when they are answered, told when they cannot be made."""

import errno
import threading

import numpy as np
import pytest
from tests.support import serving
from tests.support.data import curves
from tests.support.serving import D, FakeModel, N, file_of, ids, picture

from suffuse import Index, Params
from suffuse.errors import ChangeFailed
from suffuse.index import writer as living
from suffuse.server import Limits
from suffuse.store.locks import lock_writer

TOKEN = {"Authorization": "Bearer open sesame"}
CHANGES = [
    ("POST", "/api/items", {"json": {"vectors": [[1.0] * D]}}),
    ("PUT", "/api/items/3", {"json": {"vectors": [[1.0] * D]}}),
    ("DELETE", "/api/items/3", {}),
    ("POST", "/api/compact", {}),
]


@pytest.fixture
def path(tmp_path):
    return serving.build(tmp_path)


def serve(path, **options):
    """A service that takes changes, and a client that has the token."""
    client = serving.serve(path, token="open sesame", **options)
    client._client.headers.update(TOKEN)
    return client


def rows(count, seed=1):
    return curves(np.random.default_rng(seed), count, D)


def knn(client, vector, top=3):
    answer = client.search(vectors=[vector.tolist()], top=top)
    return ids(answer, "knn")


def wait_for_compaction(client):
    while (told := client.json("/api/changes"))["compacting"]:
        pass
    return told


# --- who may


@pytest.mark.parametrize(("method", "address", "options"), CHANGES)
def test_without_a_token_nobody_changes_anything_and_is_told_how(path, method, address, options):
    with serving.serve(path) as client:
        told = client(method, address, 403, **options).json()["error"]
        assert "with a token" in told["hint"]
        assert "SUFFUSE_TOKEN" in told["hint"]
        assert not client.json("/api/changes")["enabled"]
    assert Index.open(path).manifest.generation == 1


@pytest.mark.parametrize(("method", "address", "options"), CHANGES)
def test_a_wrong_token_changes_nothing(path, method, address, options):
    with serving.serve(path, token="open sesame") as client:
        for wrong in ("Bearer open sesam", "Bearer ", "Basic open sesame", "Bearer open sesame2", ""):
            answer = client(method, address, 401, headers={"Authorization": wrong}, **options)
            assert answer.headers["www-authenticate"] == "Bearer"
        client(method, address, 401, **options)
    assert Index.open(path).manifest.generation == 1


def test_a_service_may_be_for_reading_only(path):
    with serve(path, read_only=True) as client:
        for method, address, options in CHANGES:
            assert "not read-only" in client(method, address, 403, **options).json()["error"]["hint"]


# --- what they do


def test_added_pictures_are_found_listed_and_filtered_at_once(path):
    new = rows(3)
    with serve(path) as client:
        metadata = [{"place": "Lima", "year": 2060 + number} for number in range(3)]
        request = {"vectors": new.tolist(), "names": ["x/0.jpg", "x/1.jpg", "x/2.jpg"], "metadata": metadata}
        answer = client("POST", "/api/items", 201, json=request).json()
        assert answer["ids"] == [N, N + 1, N + 2]
        assert (answer["images"], answer["generation"], answer["removed"]) == (N + 3, 2, 0)
        for id, vector in zip(answer["ids"], new, strict=True):
            assert knn(client, vector)[0] == id
        assert client.json("/api/items?q=x/")["total"] == 3
        assert client.json(f"/api/items/{N}")["metadata"] == metadata[0]
        info = client.json("/api/info")
        assert (info["images"], info["metadata"]["year"]["max"]) == (N + 3, 2062)
        assert "Lima" in info["metadata"]["place"]["values"]
        found = client.search(positive=[3], top=N + 3, filter={"place": "Lima"}, method="knn")
        assert sorted(ids(found, "knn")) == answer["ids"]
        assert client.json("/api/changes")["generation"] == 2
        one = client("POST", "/api/items", 201, json={"vectors": new[:1].tolist()})
        assert one.headers["location"] == f"/api/items/{N + 3}"
        assert client.json(one.headers["location"])["name"] == str(N + 3)


def test_removed_pictures_are_nowhere(path):
    with serve(path) as client:
        before = client.search(positive=[3], top=N)
        gone = ids(before)[0]
        remembered = client.search(vectors=[[1.0] * D], positive=[gone])["query"]
        answer = client("DELETE", f"/api/items/{gone}").json()
        assert (answer["ids"], answer["removed"], answer["images"]) == ([], 1, N - 1)
        for method in ("diffusion", "knn"):
            found = ids(client.search(positive=[3], top=N, method=method), method)
            assert gone not in found
            assert len(found) == N - 2
        listed = client.json("/api/items?limit=500")
        assert (listed["total"], gone in [item["id"] for item in listed["items"]]) == (N - 1, False)
        assert gone not in [item["id"] for item in client.json("/api/items?limit=500&shuffle=3")["items"]]
        client.get(f"/api/items/{gone}", 404)
        client.get(f"/api/explain?query=i:3&item={gone}", 404)
        client.get(f"/api/explain?query=i:{gone}&item=3", 422)
        assert str(gone) in client.search(422, query=remembered)["error"]["message"]
        assert "removed" in client.search(422, positive=[gone])["error"]["message"]
        client("DELETE", f"/api/items/{gone}", 404)
        client("PUT", f"/api/items/{gone}", 404, json={"vectors": [[1.0] * D]})


def test_a_replaced_picture_keeps_its_id_and_what_is_not_given(path):
    new = rows(2, seed=8)
    with serve(path) as client:
        before = client.json("/api/items/7")
        client("PUT", "/api/items/7", json={"vectors": [new[0].tolist()]})
        assert client.json("/api/items/7") == before
        assert knn(client, new[0])[0] == 7
        client("PUT", "/api/items/7", json={"vectors": [new[1].tolist()], "metadata": {"year": 1}})
        assert client.json("/api/items/7") == {**before, "metadata": {"year": 1}}
        answer = client("PUT", "/api/items/7", json={"vectors": [new[1].tolist()], "name": "new.jpg"}).json()
        assert client.json("/api/items/7") == {**before, "metadata": {"year": 1}, "name": "new.jpg"}
        assert (answer["ids"], answer["images"]) == ([7], N)
        assert [item["id"] for item in client.json("/api/items?limit=500")["items"]] == list(range(N))
        assert client.json("/api/items?q=new.jpg")["items"][0]["id"] == 7
        assert client.json("/api/items?q=picture 7.jpg")["total"] == 0


def test_queries_survive_changes_and_compaction(path):
    """What is remembered goes by ids: places change when the index is compacted."""
    vector = rows(1, seed=4)[0]
    with serve(path) as client:
        query = client.search(vectors=[vector.tolist()], positive=[50], negative=[20])["query"]
        client("DELETE", "/api/items/0")
        client("DELETE", "/api/items/1?mode=exact")
        again = client.search(query=query, top=N)
        fresh = client.search(vectors=[vector.tolist()], positive=[50], negative=[20], top=N)
        assert ids(again) == ids(fresh)
        assert not {0, 1, 50, 20} & set(ids(again))
        told = client.json("/api/explain", params={"query": query, "item": ids(again)[0]})
        assert told["item"]["id"] == ids(again)[0]
        assert client.json("/api/items/50")["name"] == serving.name_of(50)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_both_modes_change_as_the_library_does(path, mode):
    new = rows(4)
    with serve(path) as client:
        client("POST", f"/api/items?mode={mode}", 201, json={"vectors": new.tolist()})
        client("DELETE", f"/api/items/5?mode={mode}")
        stale = client.json("/api/changes")["stale"]
        assert (stale == 0) == (mode == "exact")
        index = Index.open(path)
        expected = index.search(new, top=10)
        for vector, wanted in zip(new, expected.ids, strict=True):
            assert ids(client.search(vectors=[vector.tolist()], top=10)) == wanted.tolist()
        client("POST", "/api/items?mode=quick", 422, json={"vectors": new.tolist()})


def test_an_index_of_regions_takes_owners(tmp_path):
    features, owners = rows(40, seed=3), np.repeat(np.arange(20), 2)
    params = Params(k=6, truncation=30, keep=20)
    import suffuse

    suffuse.build(features, tmp_path / "r.index", params, owners=owners)
    new = rows(4, seed=9).tolist()
    with serve(tmp_path / "r.index", extractor=FakeModel()) as client:
        client("POST", "/api/items", 422, json={"vectors": new})
        assert client("POST", "/api/items", 201, json={"vectors": new, "owners": [0, 0, 1, 1]}).json()["ids"] == [
            20,
            21,
        ]
        client("PUT", "/api/items/3", json={"vectors": new[:3]})
        files = {"image": ("x.png", file_of(picture(3)), "image/png")}
        assert client("POST", "/api/items", 201, files=files).json()["ids"] == [22]
        info = client.json("/api/info")
        assert (info["images"], info["elements"]) == (23, 40 + 4 + 1 + 2)


def test_compaction_runs_beside_searches_and_tells_how_far_it_is(path, monkeypatch):
    reached, go = threading.Event(), threading.Event()
    compact = living.compact

    def slow(path, *, progress):
        def report(*told):
            progress(*told)
            reached.set()
            go.wait()

        return compact(path, progress=report)

    monkeypatch.setattr("suffuse.index.writer.compact", slow)
    with serve(path) as client:
        client("DELETE", "/api/items/5")
        assert client.json("/api/changes")["stale"] > 0
        assert client("POST", "/api/compact", 202).json()["compacting"]
        reached.wait()
        told = client.json("/api/changes")
        assert told["compacting"]
        assert set(told["progress"]) == {"stage", "done", "total"}
        assert client.search(positive=[3])["results"]["knn"]["hits"]
        assert client("DELETE", "/api/items/6", 409).headers["retry-after"]
        client("POST", "/api/compact", 202)  # which is the same one
        go.set()
        told = wait_for_compaction(client)
        assert (told["stale"], told["progress"], told["last_error"]) == (0, None, None)
        assert (told["generation"], told["images"]) == (3, N - 1)
        client.get("/api/items/5", 404)
        assert client.json("/api/items/6")["name"] == serving.name_of(6)
        text = client.get("/metrics").text
        assert "suffuse_generation 3" in text
        assert "suffuse_stale_share 0" in text
        assert f"suffuse_images {N - 1}" in text


def test_a_service_that_ends_does_not_wait_for_a_compaction(path, monkeypatch):
    """It stops at the next step, and the index stays as it was."""
    reached = threading.Event()
    compact = living.compact

    def slow(path, *, progress):
        def report(*told):
            reached.set()
            while True:  # until it raises
                progress(*told)

        return compact(path, progress=report)

    monkeypatch.setattr("suffuse.index.writer.compact", slow)
    with serve(path) as client:
        client("DELETE", "/api/items/5")
        client("POST", "/api/compact", 202)
        reached.wait()
        changes = client._client.app.state.service.changes
    changes._compaction.result()
    assert Index.open(path).manifest.generation == 2


# --- what cannot be


def test_another_writer_is_waited_for(path):
    with serve(path) as client:
        with lock_writer(path):
            for method, address, options in CHANGES[:3]:
                answer = client(method, address, 409, **options)
                assert answer.headers["retry-after"]
                assert answer.json()["error"]["code"] == "busy"
            client("POST", "/api/compact", 202)
            told = wait_for_compaction(client)["last_error"]
            assert told["code"] == "busy"
            assert set(told) == {"code", "message", "hint", "at"}
        client("DELETE", "/api/items/3")
        client("POST", "/api/compact", 202)
        assert wait_for_compaction(client)["last_error"] is None


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 503)])
def test_a_disk_that_takes_nothing_is_told_without_a_path(path, monkeypatch, number, status):
    def fail(*_, **__):
        raise ChangeFailed("at /tmp/secret; the index is as it was before") from OSError(number, "no")

    with serve(path) as client:
        client.json("/api/info")
        monkeypatch.setattr("suffuse.index.writer.change", fail)
        told = client("DELETE", "/api/items/3", status).json()["error"]
        assert "as it was before" in told["message"]
        assert client.json("/api/items/3")


def test_a_change_that_is_made_but_not_safe_yet_is_told_and_served(path, monkeypatch):
    """The directory could not be flushed after the switch."""
    change = living.change

    def unsure(*arguments, **options):
        change(*arguments, **options)
        raise ChangeFailed("no; the change is there and can be searched") from OSError(errno.EIO, "no")

    with serve(path) as client:
        client.json("/api/info")
        monkeypatch.setattr("suffuse.index.writer.change", unsure)
        assert "is made" in client("DELETE", "/api/items/3", 503).json()["error"]["message"]
        client.get("/api/items/3", 404)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"vectors": []}, {"vectors": [[]]}, {"vectors": [[1.0] * (D + 1)]}, {"vectors": [[0.0] * D]},
        {"vectors": [[1.0] * D, [1.0]]}, {"vectors": [["x"] * D]}, {"vectors": [[1.0] * D], "names": []},
        {"vectors": [[1.0] * D], "names": ["a", "b"]}, {"vectors": [[1.0] * D], "names": [3]},
        {"vectors": [[1.0] * D], "metadata": [{"name": "x"}]}, {"vectors": [[1.0] * D], "metadata": []},
        {"vectors": [[1.0] * D], "names": ["a"], "metadata": [{}, {}]}, {"vectors": [[1.0] * D], "owners": [0]},
        {"vectors": [[1.0] * D] * 1001}, {"vectors": [[1.0] * D], "more": 1}, {"vectors": [[1e400] * D]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(path, body):
    with serve(path) as client:
        client("POST", "/api/items", 422, content=serving.json.dumps(body), headers={"Content-Type": "application/json"})  # fmt: skip  # noqa: E501
        client("POST", "/api/items", 415, content=b"x", headers={"Content-Type": "text/plain"})
        client("DELETE", "/api/items/-1", 422)
        client("DELETE", f"/api/items/{10**30}", 404)
    assert Index.open(path).manifest.generation == 1


def test_a_change_may_take_longer_than_a_search(path, monkeypatch):
    """It would be written all the same, so it must not be answered by 504."""
    change = living.change

    def slow(*arguments, **options):
        threading.Event().wait(0.5)
        return change(*arguments, **options)

    with serve(path, limits=Limits(seconds=0.2)) as client:
        while client._client.get("/readyz").status_code != 200:
            pass
        monkeypatch.setattr("suffuse.index.writer.change", slow)
        client("DELETE", "/api/items/3")


def test_everything_may_be_removed_and_something_added_again(tmp_path):
    import suffuse

    suffuse.build(np.eye(3), tmp_path / "x.index", Params(k=2, truncation=3, keep=3))
    with serve(tmp_path / "x.index") as client:
        for id in range(3):
            client("DELETE", f"/api/items/{id}")
        assert client.json("/api/info")["images"] == 0
        assert client.json("/api/items")["items"] == []
        assert client.search(vectors=[[1.0, 0, 0]])["results"]["knn"]["hits"] == []
        client.search(422, positive=[0])
    with serve(tmp_path / "x.index") as client:  # gets warm with nothing in it
        assert client.json("/api/info")["images"] == 0
        client("POST", "/api/items", 201, json={"vectors": [[1.0, 1.0, 0]]})
        assert ids(client.search(vectors=[[1.0, 0, 0]]), "knn") == [3]
