"""The service says what it holds: health, info, items, metrics, documentation, page."""

import re

import numpy as np
import pytest
from tests.support import serving
from tests.support.serving import N, name_of

from suffuse import Params
from suffuse.index.catalogue import Catalogue
from suffuse.server import Limits, app
from suffuse.store.ids import Ids
from suffuse.store.items import Items, encode_items


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return serving.build(tmp_path_factory.mktemp("info"))


@pytest.fixture(scope="module")
def client(index):
    with serving.serve(index) as client:
        yield client


def test_it_is_alive_and_gets_ready(client):
    assert client.json("/healthz") == {"status": "ok"}
    client.json("/api/info")  # waits until it is warm
    assert client.json("/readyz") == {"status": "ok"}


def test_it_is_not_ready_before_it_is_warm(index, monkeypatch):
    import threading

    go = threading.Event()
    monkeypatch.setattr("suffuse.server.engine.IndexEngine.warm", lambda _: go.wait())
    with serving.serve(index) as client:
        client.get("/readyz", 503)
        assert client.json("/healthz") == {"status": "ok"}
        go.set()
        while client._client.get("/readyz").status_code == 503:
            pass


def test_an_index_that_cannot_be_read_is_never_ready(index, monkeypatch):
    def broken(_):
        raise RuntimeError("/tmp/secret/path")

    monkeypatch.setattr("suffuse.server.engine.IndexEngine.warm", broken)
    with serving.serve(index) as client:
        client.get("/api/info", 500)
        client.get("/readyz", 500)


def test_info_tells_what_the_index_holds_and_what_can_be_done(client):
    info = client.json("/api/info")
    assert (info["name"], info["images"], info["elements"], info["dimensions"]) == ("test.index", N, N, serving.D)
    assert info["params"]["k"] == 8
    assert info["methods"] == ["diffusion", "knn"]
    assert (info["regional"], info["pictures"], info["upload"]) == (False, False, False)
    assert (info["explain"], info["chain"]) == (True, True)
    assert info["limits"] == {
        "top": 1000, "seeds": 1000, "positive": 100, "negative": 100, "vectors": 100,
        "upload_bytes": 20_000_000, "pixels": 100_000_000,
    }  # fmt: skip
    assert info["metadata"] == {
        "place": {"type": "string", "values": ["Oxford", "Paris", "Rome"]},
        "good": {"type": "boolean", "values": [False, True]},
        "year": {"type": "number", "min": 1991, "max": 2049},
    }  # "odd" holds lists, which nobody can filter by


def test_a_field_with_many_values_offers_the_commonest():
    values = [f"v{number:03}" for number in range(80)] + ["v079"] * 5
    text, offsets = encode_items([{"name": "x", "tag": value} for value in values])
    ids = Ids(len(values))
    fields = Catalogue(ids, Items(ids, memoryview(text), offsets)).fields
    assert len(fields["tag"]["values"]) == 50
    assert "v079" in fields["tag"]["values"]


def test_items_come_in_pages(client):
    page = client.json("/api/items?offset=10&limit=3")
    assert (page["total"], page["offset"]) == (N, 10)
    assert [item["id"] for item in page["items"]] == [10, 11, 12]
    assert page["items"][0] == client.json("/api/items/10")
    assert client.json("/api/items?offset=1000")["items"] == []
    assert len(client.json("/api/items")["items"]) == 60


def test_a_shuffled_list_has_everyone_once_and_stays_the_same(client):
    first = [i["id"] for i in client.json("/api/items?shuffle=7&limit=40")["items"]]
    rest = [i["id"] for i in client.json("/api/items?shuffle=7&limit=40&offset=40")["items"]]
    assert sorted(first + rest) == list(range(N))
    assert first != sorted(first)
    assert first != [i["id"] for i in client.json("/api/items?shuffle=8&limit=40")["items"]]


def test_names_are_found_by_a_part_of_them(client):
    page = client.json("/api/items?q=PICTURE 3")
    expected = [id for id in range(N) if "picture 3" in name_of(id)]
    assert [item["id"] for item in page["items"]] == expected
    shuffled = client.json("/api/items?q=PICTURE 3&shuffle=2")
    assert sorted(item["id"] for item in shuffled["items"]) == expected
    assert client.json("/api/items?q=nobody")["total"] == 0


def test_an_item_has_its_name_and_metadata(client):
    assert client.json("/api/items/7") == {
        "id": 7, "name": name_of(7), "metadata": {"place": "Paris", "good": False, "odd": [7], "year": 1997},
        "image": None, "thumb": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/api/items/{N}", 404),
        ("/api/items/99999999999999999999999", 404),
        ("/api/items/-1", 422),
        ("/api/items/three", 422),
        ("/api/items/3/image", 404),
        ("/api/items/3/thumb", 404),
        ("/api/items/3/nothing", 404),
        ("/api/items?limit=0", 422),
        ("/api/items?limit=501", 422),
        ("/api/items?offset=-1", 422),
        ("/api/items?shuffle=x", 422),
        ("/api/items?q=" + "x" * 201, 422),
        ("/api", 404),
        ("/api/items/", 404),
        ("/../manifest.json", 404),
    ],
)
def test_what_is_not_there_is_said_in_one_shape(client, path, status):
    client.get(path, status)


def test_methods_that_an_address_does_not_take_are_refused(client):
    client("POST", "/api/info", 405)
    client("PATCH", "/api/items/3", 405)
    client("DELETE", "/api/items", 405)
    client("GET", "/api/search", 405)


def test_metrics_count_requests_by_route_and_status(index):
    with serving.serve(index) as client:
        for _ in range(3):
            client.get("/api/items/3")
        client.get("/api/items/4444", 404)
        client.get("/who/knows", 404)
        text = client.get("/metrics").text
    assert 'suffuse_requests_total{method="GET",route="/api/items/{id}",status="200"} 3' in text
    assert 'suffuse_requests_total{method="GET",route="/api/items/{id}",status="404"} 1' in text
    assert 'suffuse_requests_total{method="GET",route="other",status="404"} 1' in text
    assert "who/knows" not in text
    buckets = re.findall(r'seconds_bucket\{.*route="/api/items/\{id\}",status="200",le="(.*)"\} (\d+)', text)
    counts = [int(count) for _, count in buckets]
    assert counts == sorted(counts)
    assert (buckets[-1][0], counts[-1]) == ("+Inf", 3)
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{.*\})? [0-9.e+-]+", line), line


def test_the_documentation_needs_nothing_from_outside(client):
    page = client.get("/docs").text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) == 4
    for address in addresses:
        assert "//" not in address
        assert len(client.get("/" + address).content) > 50


def test_the_documentation_has_examples_and_names_every_error(client):
    schema = client.json("/openapi.json")
    assert set(schema["paths"]) == {
        "/healthz", "/readyz", "/metrics", "/api/info", "/api/items", "/api/items/{id}", "/api/items/{id}/image",
        "/api/items/{id}/thumb", "/api/search", "/api/explain", "/api/compact", "/api/changes",
    }  # fmt: skip
    assert schema["components"]["schemas"]["SearchRequest"]["examples"]
    for operations in schema["paths"].values():
        for operation in operations.values():
            assert operation["responses"]["422"]["content"]["application/json"]["schema"] == {
                "$ref": "#/components/schemas/ProblemAnswer"
            }
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(schema).replace("'", '"')))
    assert references <= set(schema["components"]["schemas"])


def test_without_the_files_there_is_no_documentation_page(index, monkeypatch):
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda _: None)
    with serving.serve(index) as client:
        client.get("/docs", 404)


def test_the_page_is_served_where_there_is_one(index, tmp_path, monkeypatch):
    monkeypatch.setattr(app, "_PAGE", tmp_path / "none")
    with serving.serve(index) as client:
        client.get("/", 404)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<p>hello")
    (tmp_path / "page" / "app.js").write_text("let a = 1;")
    (tmp_path / "secret.txt").write_text("no")
    monkeypatch.setattr(app, "_PAGE", tmp_path / "page")
    with serving.serve(index) as client:
        answer = client.get("/")
        assert answer.text == "<p>hello"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert client.get("/static/app.js").headers["cache-control"] == "no-cache"
        client.get("/static/../secret.txt", 404)
        client.get("/static/%2e%2e/secret.txt", 404)
        client.get("/static/nothing.js", 404)


def test_an_index_without_names_is_served_by_numbers(tmp_path):
    import suffuse

    suffuse.build(serving.features(), tmp_path / "x.index", Params(k=8, truncation=60, keep=30))
    with serving.serve(tmp_path / "x.index") as client:
        assert client.json("/api/items/3")["name"] == "3"
        info = client.json("/api/info")
        assert (info["metadata"], info["chain"]) == ({}, False)
        told = client.json("/api/explain?query=i:3&item=5")
        assert told["chain"] is None
        assert "with_graph=True" in told["chain_missing"]


def test_limits_are_shown_as_they_are(index):
    with serving.serve(index, limits=Limits(pixels=17)) as client:
        assert client.json("/api/info")["limits"]["pixels"] == 17


def test_the_smallest_index_is_served(tmp_path):
    import suffuse

    suffuse.build(np.eye(2), tmp_path / "x.index", Params(k=2, truncation=2, keep=2))
    with serving.serve(tmp_path / "x.index") as client:
        assert client.search(positive=[0], negative=[1])["results"]["diffusion"]["hits"] == []
        assert [hit["id"] for hit in client.search(positive=[0])["results"]["diffusion"]["hits"]] == [1]
