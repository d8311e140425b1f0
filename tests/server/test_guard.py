"""Whom the service answers and how much it takes: token, origins, hosts, sizes, times, crowds, headers."""

import threading

import pytest
from tests.support import serving
from tests.support.serving import D, file_of, picture

from suffuse.errors import IndexBroken
from suffuse.server import Limits


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return serving.build(tmp_path_factory.mktemp("guard"))


@pytest.fixture(scope="module")
def client(path):
    with serving.serve(path) as client:
        yield client


ADDRESSES = ["/api/info", "/api/items", "/api/items/3", "/metrics", "/api/explain?query=i:3&item=4", "/nothing"]


def test_with_a_token_everything_but_the_page_and_its_health_needs_it(path):
    right = {"Authorization": "Bearer s3cret-ü"}
    with serving.serve(path, token="s3cret-ü") as client:
        for address in ADDRESSES:
            assert client.get(address, 401).headers["www-authenticate"] == "Bearer"
        client.search(401, positive=[3])
        for address in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert client._client.get(address).status_code in (200, 503)
        for wrong in (
            b"Bearer s3cret",
            b"Bearer ",
            b"Basic s3cret",
            b"s3cret",
            b"Bearer s3cret-\xff",
            b"Bearer s3cret-\xc3\xbc x",
        ):
            client.get("/api/info", 401, headers={"Authorization": wrong})
        client.get("/api/info", headers={"Authorization": "bearer s3cret-ü".encode()})
        client.get("/nothing", 404, headers={"Authorization": right["Authorization"].encode()})
        assert client.json("/openapi.json")["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_other_origins_may_read_only_if_asked_for(path, client):
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.get("/api/info", headers=asked).headers
    assert client.get("/api/info").headers["cross-origin-resource-policy"] == "same-origin"
    with serving.serve(path, cors=["https://example.org"], token="x") as shared:
        allowed = shared("OPTIONS", "/api/search", headers=asked).headers
        assert allowed["access-control-allow-origin"] == "https://example.org"
        refused = shared.get("/api/info", 401, headers=asked).headers
        assert refused["access-control-allow-origin"] == "https://example.org"
        other = {**asked, "Origin": "https://evil.example"}
        assert "access-control-allow-origin" not in shared.get("/api/info", 401, headers=other).headers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "LOCALHOST:1", "[::1]:8000", "[::1]"])
def test_the_service_answers_to_its_names(path, host):
    with serving.serve(path, hosts={"127.0.0.1", "localhost", "[::1]"}) as client:
        client.get("/healthz", headers={"Host": host})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::2]"])
def test_a_page_elsewhere_cannot_borrow_the_address(path, host):
    with serving.serve(path, hosts={"127.0.0.1", "localhost", "[::1]"}) as client:
        client.get("/healthz", 400, headers={"Host": host})


def test_every_answer_has_headers_that_keep_browsers_safe(client):
    for answer in (client.get("/api/info"), client.get("/nothing", 404), client.search(422) and client.get("/docs")):
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_long_bodies_are_refused_as_soon_as_they_are_too_long(path):
    sent = []

    def endless():
        for _ in range(1000):
            sent.append(1)
            yield b" " * 1000

    with serving.serve(path, limits=Limits(json_bytes=10_000)) as client:
        told = {"Content-Type": "application/json"}
        client("POST", "/api/search", 413, content=b" " * 10_001, headers=told)
        client("POST", "/api/search", 413, content=endless(), headers=told)
        client("POST", "/api/search", 422, content=b" " * 10_000, headers=told)


def test_the_length_is_believed_only_if_it_is_too_long(path):
    """A body that says it is short is counted all the same, and one that says it is long is never read."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from suffuse.server.guard import limit_body
    from suffuse.server.problems import Problem

    async def receive():
        taken.append(1)
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    def scope(length):
        return {"type": "http", "headers": [(b"content-length", length), (b"content-type", b"application/json")]}

    for length, chunks in ((b"100000", 0), (b"5", 2), (b"nonsense", 2), (b"-1", 2)):
        taken = []
        counted = limit_body(receive, scope(length), Limits(json_bytes=1000))

        async def read(counted=counted):
            while True:
                await counted()

        # In a thread of its own: a browser of other tests may have a loop in this one.
        with ThreadPoolExecutor(1) as pool, pytest.raises(Problem) as problem:
            pool.submit(lambda read=read: asyncio.run(read())).result()
        assert problem.value.status == 413
        assert len(taken) == chunks


def test_requests_that_take_too_long_are_ended(path, monkeypatch):
    go = threading.Event()
    with serving.serve(path, limits=Limits(seconds=0.2)) as client:
        while client._client.get("/readyz").status_code != 200:
            pass
        monkeypatch.setattr("suffuse.server.engine.IndexView.read_item", lambda *_: go.wait())
        try:
            client.get("/api/items/3", 504)
            client.json("/healthz")
        finally:
            go.set()


def test_a_crowd_is_told_to_come_again(path, monkeypatch):
    entered, go = threading.Semaphore(0), threading.Event()

    def slow(_engine, id):
        entered.release()
        go.wait()
        return {"id": id}

    with serving.serve(path, limits=Limits(waiting=2)) as client:
        client.json("/api/info")
        monkeypatch.setattr("suffuse.server.engine.IndexView.read_item", slow)
        service = client._client.app.state.service
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(client._client.get("/api/items/3").status_code))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while service.lookups.busy < 2:
            entered.acquire(timeout=0.01)
        assert client.get("/api/items/3", 503).headers["retry-after"] == "1"
        client.json("/healthz")
        go.set()
        for thread in threads:
            thread.join()
        assert answers == [200, 200]
        assert service.lookups.busy == 0


@pytest.mark.parametrize(
    "error", [RuntimeError("at /tmp/secret"), IndexBroken("/tmp/secret is broken"), OSError("/tmp/x")]
)
def test_what_goes_wrong_inside_is_logged_and_not_told(path, monkeypatch, caplog, error):
    def fail(*_):
        raise error

    with serving.serve(path) as client:
        client.json("/api/info")
        monkeypatch.setattr("suffuse.server.engine.IndexView.read_item", fail)
        client.get("/api/items/3", 500)
    assert str(error) in caplog.text


def test_a_model_that_fails_is_not_told_either(path, caplog):
    class Broken(serving.FakeModel):
        def extract(self, _):
            raise RuntimeError("/tmp/model.onnx exploded")

    with serving.serve(path, extractor=Broken()) as client:
        client.upload(file_of(picture(1)), 500)
    assert "exploded" in caplog.text


def test_searches_from_many_threads_are_all_answered(path):
    with serving.serve(path) as client:
        expected = client.search(positive=[3], negative=[7])["results"]["diffusion"]["hits"]
        failed = []

        def ask(number):
            for _ in range(10):
                answer = client.search(positive=[3], negative=[7])
                if answer["results"]["diffusion"]["hits"] != expected:
                    failed.append(number)
                client.search(vectors=[[float(number + 1)] * D])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


def test_many_complaints_are_cut_short(client):
    answer = client.search(422, positive=["x"] * 100)
    assert "more" in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 1000
