"""Requests made up from the OpenAPI description, valid and not: never an error of the server, always the one shape."""

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from tests.support import serving
from tests.support.serving import D, FakeModel

from suffuse.server import create_app


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fuzz")
    serving.write_pictures(directory / "root")
    app = create_app(
        serving.build(directory), image_root=directory / "root", extractor=FakeModel(), token="t", hosts=None
    )  # fmt: skip
    app.state.service.warm().result()
    return schemathesis.openapi.from_asgi("/openapi.json", app)


ALLOWED = {200, 201, 202, 400, 401, 404, 405, 409, 413, 415, 422}
OPERATIONS = [
    ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/api/info"), ("GET", "/api/items"),
    ("POST", "/api/items"), ("GET", "/api/items/{id}"), ("PUT", "/api/items/{id}"), ("DELETE", "/api/items/{id}"),
    ("GET", "/api/items/{id}/image"), ("GET", "/api/items/{id}/thumb"), ("POST", "/api/search"),
    ("GET", "/api/explain"), ("POST", "/api/compact"), ("GET", "/api/changes"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_can_be_asked_breaks_the_service(schema, method, path, mode):
    described = {(method.upper(), path) for path in schema for method in schema[path]}
    assert described == set(OPERATIONS)
    operation = schema[path][method]
    statuses = set()

    @settings(
        max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        answer = case.call(headers={**case.headers, "Authorization": "Bearer t"})
        statuses.add(answer.status_code)
        assert answer.status_code in ALLOWED, answer.text
        if answer.status_code >= 400 and case.method != "HEAD":
            assert set(answer.json()["error"]) == {"code", "message", "hint"}

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # an address without parameters cannot be asked wrongly
    else:
        assert statuses, method


@pytest.mark.parametrize("seed", range(3))
def test_broken_uploads_never_break_the_service(tmp_path, seed):
    """Files that were good, with bytes changed, cut and doubled."""
    rng = np.random.default_rng(seed)
    path = serving.build(tmp_path)
    with serving.serve(path, extractor=FakeModel()) as client:
        for format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
            good = serving.file_of(serving.picture(seed), format)
            for _ in range(8):
                data = bytearray(good)
                for place in rng.integers(0, len(data), rng.integers(1, 20)):
                    data[place] = rng.integers(0, 256)
                cut = int(rng.integers(1, len(data))) if rng.random() < 0.5 else len(data)
                files = {"image": ("x", bytes(data[:cut]), "image/png")}
                answer = client._client.post("/api/search", files=files, data={"request": '{"top": 2}'})
                assert answer.status_code in (200, 413, 415, 422), answer.text


def test_huge_json_is_refused(tmp_path):
    with serving.serve(serving.build(tmp_path)) as client:
        told = {"Content-Type": "application/json"}
        for body in (
            b'{"positive": [' + b"1," * 3_900_000 + b"1]}",
            b'{"vectors": [[' + b"1.5," * 1_900_000 + b"1]]}",
            b'{"filter": {' + b",".join(b'"f%d": 1' % i for i in range(100_000)) + b"}}",
            b'{"query": "' + b"x" * 7_000_000 + b'"}',
            b"[" * 7_000_000,
        ):
            client("POST", "/api/search", 422, content=body, headers=told)
        client("POST", "/api/search", 413, content=b" " * 8_000_001, headers=told)
        client.search(422, vectors=[[1.0] * D] * 101)
