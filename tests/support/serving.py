"""A small index with pictures to serve, a model that is none, and a client that checks the shape of every error."""

import io
import json

import numpy as np
from PIL import Image, ImageDraw
from starlette.testclient import TestClient
from tests.support.data import curves

import suffuse
from suffuse import Params
from suffuse.server import create_app

N, D = 60, 8
PARAMS = Params(k=8, truncation=60, keep=30, with_graph=True)
# What is exported to a database, by kind.
EXPORTED = {
    "plain": PARAMS,
    "whitened": Params(k=8, truncation=60, keep=20, whiten=6),
    "paper": Params(k=8, truncation=60, keep=20, graph="paper"),
}
CODES = {
    400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "invalid_request",
    409: "unsupported", 413: "too_large", 415: "unsupported", 422: "invalid_request", 500: "internal",
    501: "unsupported", 503: "busy", 504: "timeout", 507: "no_space",
}  # fmt: skip


def picture(number, size=(64, 48)):
    """A picture that differs from all others."""
    rng = np.random.default_rng(number)
    image = Image.new("RGB", size, tuple(rng.integers(0, 256, 3).tolist()))
    ImageDraw.Draw(image).ellipse((8, 8, 40, 40), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def file_of(image, format="PNG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def name_of(id):
    return f"{'ab'[id % 2]}/picture {id}.jpg"


def features():
    return curves(np.random.default_rng(5), N, D)


def items():
    """Names with metadata of all kinds: some pictures have no year, and one field is of mixed kinds."""
    made = []
    for id in range(N):
        item = {"name": name_of(id), "place": ["Oxford", "Paris", "Rome"][id % 3], "good": id % 4 == 0, "odd": [id]}
        if id % 5:
            item["year"] = 1990 + id
        made.append(item)
    return made


def write_pictures(root):
    for id in range(N):
        path = root / name_of(id)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(id).save(path)


class FakeModel:
    """The mean colours of nine places, cut or filled to the dimensions of the index."""

    def __init__(self, dimensions=D):
        self.dimensions, self.seen = dimensions, []

    def extract(self, image):
        self.seen.append(image.size)
        values = np.asarray(image.resize((3, 3)), np.float32).ravel()[: self.dimensions]
        return np.pad(values + 1, (0, self.dimensions - len(values)))

    def extract_regions(self, image):
        return np.stack([self.extract(image), self.extract(image.rotate(90))])


class Client:
    """Starlette's client; every answer of 400 and more must have the one shape, and none may tell a path."""

    def __init__(self, app, **options):
        self._client = TestClient(app, raise_server_exceptions=False, **options)

    def __enter__(self):
        self._client.__enter__()
        return self

    def __exit__(self, *error):
        self._client.__exit__(*error)

    def __call__(self, method, path, status=200, **options):
        answer = self._client.request(method, path, **options)
        assert answer.status_code == status, answer.text[:500]
        if status >= 400:
            check_problem(answer)
        return answer

    def get(self, path, status=200, **options):
        return self("GET", path, status, **options)

    def json(self, path, status=200, **options):
        return self("GET", path, status, **options).json()

    def search(self, status=200, **request):
        return self("POST", "/api/search", status, json=request).json()

    def upload(self, data, status=200, **request):
        files = {"image": ("picture.png", data, "image/png")}
        return self("POST", "/api/search", status, files=files, data={"request": json.dumps(request)}).json()


def check_problem(answer):
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"code", "message", "hint"}
    # An index that is being changed is no conflict that stays.
    waits = answer.status_code == 409 and "retry-after" in answer.headers
    assert error["code"] == ("busy" if waits else CODES[answer.status_code])
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "/tmp" not in answer.text
    assert "site-packages" not in answer.text


def build(directory, **options):
    path = directory / "test.index"
    suffuse.build(features(), path, options.pop("params", PARAMS), names=items(), **options)
    return path


def serve(path, **options):
    return Client(create_app(path, **options))


def ids(answer, method="diffusion"):
    return [hit["id"] for hit in answer["results"][method]["hits"]]


def check_hits(answer, expected, method="diffusion"):
    hits = answer["results"][method]["hits"]
    assert [hit["id"] for hit in hits] == expected.ids.tolist()
    np.testing.assert_allclose([hit["score"] for hit in hits], expected.scores, rtol=1e-4, atol=1e-6)
    assert [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
