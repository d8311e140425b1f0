"""Pictures over HTTP: files and thumbnails under the root and nowhere else, uploads, parts, forged files."""

import io
import json
import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.support import serving
from tests.support.damage import write_signed
from tests.support.serving import D, FakeModel, N, file_of, name_of, picture

import suffuse
from suffuse import InvalidInput, Params
from suffuse.server import Limits, create_app


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures") / "root"
    serving.write_pictures(made)
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return serving.build(tmp_path_factory.mktemp("pictures-index"))


@pytest.fixture(scope="module")
def client(path, root):
    with serving.serve(path, image_root=root, extractor=FakeModel()) as client:
        yield client


def shown(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def test_info_and_items_tell_that_there_are_pictures(client):
    info = client.json("/api/info")
    assert (info["pictures"], info["upload"]) == (True, True)
    item = client.json("/api/items/3")
    assert (item["image"], item["thumb"]) == ("/api/items/3/image", "/api/items/3/thumb")


def test_the_file_of_an_item_comes_as_it_is(client, root):
    answer = client.get("/api/items/3/image")
    assert answer.content == (root / name_of(3)).read_bytes()
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"].startswith("private")


def test_a_thumbnail_is_small_and_known_again(client):
    answer = client.get("/api/items/3/thumb?size=32")
    assert answer.headers["content-type"] == "image/jpeg"
    assert shown(answer.content).size == (32, 24)
    known = {"If-None-Match": answer.headers["etag"]}
    again = client.get("/api/items/3/thumb?size=32", 304, headers=known)
    assert again.content == b""
    assert client.get("/api/items/3/thumb?size=16", headers=known).content
    for size in (15, 1025, "big"):
        client.get(f"/api/items/3/thumb?size={size}", 422)


def test_thumbnails_are_made_once_and_anew_when_the_file_changes(path, tmp_path, monkeypatch):
    serving.write_pictures(tmp_path)
    made = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: made.append(1) or original(*a, **k))
    with serving.serve(path, image_root=tmp_path) as client:
        first = client.get("/api/items/3/thumb")
        assert client.get("/api/items/3/thumb").content == first.content
        assert len(made) == 1
        picture(99, size=(20, 90)).save(tmp_path / name_of(3))
        other = client.get("/api/items/3/thumb")
        assert len(made) == 2
        assert other.headers["etag"] != first.headers["etag"]
        assert shown(other.content).size == (20, 90)


def test_thumbnails_take_no_more_memory_than_allowed():
    from suffuse.server.pictures import LruCache

    kept = LruCache(10, len)
    for key, value in (("a", b"1234"), ("b", b"1234"), ("a", b"12345"), ("c", b"12345")):
        kept.put(key, value)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (b"12345", None, b"12345")
    kept.put("huge", b"x" * 11)
    assert len(kept) == 0


def test_turned_photographs_are_shown_upright(path, tmp_path):
    serving.write_pictures(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(1, size=(60, 30)).save(tmp_path / name_of(3), exif=exif)
    with serving.serve(path, image_root=tmp_path) as client:
        assert shown(client.get("/api/items/3/thumb").content).size == (30, 60)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Names that lead out of the root in every way there is."""
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "root").mkdir()
    (directory / "root-secret").mkdir()
    secret = directory / "secret.jpg"
    picture(1).save(secret)
    picture(2).save(directory / "root-secret" / "secret.jpg")
    (directory / "root" / "link.jpg").symlink_to(secret)
    (directory / "root" / "folder").symlink_to(directory)
    (directory / "root" / "loop.jpg").symlink_to(directory / "root" / "loop.jpg")
    (directory / "root" / "dir.jpg").mkdir()
    (directory / "root" / "page.html").write_text("<script>alert(1)</script>")
    (directory / "root" / "drawing.svg").write_text("<svg/>")
    picture(3).save(directory / "root" / "inside.jpg")
    (directory / "root" / "inner.jpg").symlink_to(directory / "root" / "inside.jpg")
    names = [
        "../secret.jpg", str(secret), "folder/secret.jpg", "link.jpg", "../root-secret/secret.jpg", "loop.jpg",
        "dir.jpg", "a\0b.jpg", "x" * 5000 + ".jpg", "", ".", "nothing.jpg", "page.html", "drawing.svg",
        "inner.jpg", "folder/../inside.jpg",
    ]  # fmt: skip
    features = serving.features()[: len(names)]
    suffuse.build(features, directory / "x.index", Params(k=4, truncation=16, keep=8), names=names)
    with serving.serve(directory / "x.index", image_root=directory / "root", extractor=FakeModel()) as client:
        yield client, names


def test_no_name_leads_out_of_the_root(hostile):
    client, names = hostile
    for id, name in enumerate(names):
        status = {"inner.jpg": 200, "page.html": 415, "drawing.svg": 415}.get(name, 404)
        client.get(f"/api/items/{id}/image", status)
        client.get(f"/api/items/{id}/thumb", status)
        client.search(status, positive=[id], box=[0, 0, 1, 1])


def bomb(width, height):
    """A PNG of few bytes that says it is huge."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def forged():
    whole = file_of(picture(1), "JPEG")
    gif = file_of(picture(1), "GIF")
    return {
        "empty": b"",
        "text": b"hello",
        "half": whole[: len(whole) // 2],
        "head": whole[:4],
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
        "gif header": gif[:13],
        "noise": np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes(),
        "png noise": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "zero": bomb(0, 10),
        "tiff": b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 400,
        "webp": b"RIFF\xff\xff\xff\x7fWEBPVP8 " + b"\0" * 40,
        "bmp": b"BM" + b"\xff" * 60,
    }


@pytest.mark.parametrize("kind", list(forged()))
def test_files_that_are_no_pictures_are_refused(client, kind):
    client.upload(forged()[kind], 415)


@pytest.mark.parametrize("size", [(9000, 9000), (12_000, 12_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_pictures_that_would_fill_the_memory_are_refused_before_they_are_decoded(path, root, size):
    with serving.serve(path, image_root=root, extractor=FakeModel(), limits=Limits(pixels=80_000_000)) as client:
        client.upload(bomb(*size), 413)


def test_broken_files_in_the_folder_are_told_as_such(path, tmp_path):
    serving.write_pictures(tmp_path)
    for id, data in enumerate([*forged().values(), bomb(60_000, 60_000)]):
        (tmp_path / name_of(id)).write_bytes(data)
    with serving.serve(path, image_root=tmp_path) as client:
        for id in range(len(forged())):
            client.get(f"/api/items/{id}/thumb", 415)
        client.get(f"/api/items/{len(forged())}/thumb", 413)


@pytest.mark.parametrize(
    ("mode", "format"),
    [("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("I;16", "PNG"), ("I", "TIFF"),
     ("F", "TIFF"), ("CMYK", "JPEG"), ("RGB", "WEBP"), ("P", "GIF"), ("RGB", "BMP")],
)  # fmt: skip
def test_pictures_of_every_kind_are_read(client, mode, format):
    if mode == "I;16":
        image = Image.fromarray(np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21)
    elif mode in ("I", "F"):
        image = Image.fromarray(np.arange(48 * 64, dtype=np.int32 if mode == "I" else np.float32).reshape(48, 64))
    else:
        image = picture(3).convert(mode)
    assert len(client.upload(file_of(image, format), top=4)["results"]["knn"]["hits"]) == 4


def test_sixteen_bits_of_grey_keep_their_contrast():
    from suffuse.server.pictures import decode_picture

    grey = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (8, 1))
    values = np.asarray(decode_picture(file_of(Image.fromarray(grey)), 10_000))[0, :, 0]
    assert (values.min(), values.max()) == (0, 255)
    assert len(np.unique(values)) == 64


def test_an_upload_is_searched_by_its_vector_and_remembered(client):
    data = file_of(picture(3))
    answer = client.upload(data, top=5)
    vector = FakeModel().extract(picture(3))
    by_vector = client.search(vectors=[vector.tolist()], top=5)
    for method in ("diffusion", "knn"):
        assert [hit["id"] for hit in answer["results"][method]["hits"]] == [
            hit["id"] for hit in by_vector["results"][method]["hits"]
        ]
    again = client.search(query=answer["query"], negative=[answer["results"]["knn"]["hits"][0]["id"]], top=5)
    assert again["results"]["knn"]["hits"] != answer["results"]["knn"]["hits"]


def test_a_box_is_a_part_of_the_picture(path, root):
    model = FakeModel()
    with serving.serve(path, image_root=root, extractor=model) as client:
        box = [0.25, 0.5, 0.75, 1.0]
        part = client.upload(file_of(picture(3, size=(200, 100))), box=box, top=3)
        assert model.seen.pop() == (100, 50)
        whole = client.upload(file_of(picture(3, size=(200, 100))), top=3)
        assert model.seen.pop() == (200, 100)
        assert client.search(query=whole["query"], box=box, top=3)["results"].keys()
        assert model.seen.pop() == (100, 50)
        # A part of a part is again one of the whole picture.
        client.search(query=part["query"], box=[0, 0, 0.1, 0.1], top=3)
        assert model.seen.pop() == (20, 10)
        answer = client.search(positive=[3], box=[0, 0, 0.5, 0.5], top=N)
        assert model.seen.pop() == (32, 24)
        assert 3 not in [hit["id"] for hit in answer["results"]["knn"]["hits"]]
        assert answer["query"].startswith("q-")
        client.search(positive=[3], box=[0.5, 0.5, 0.5001, 0.5001], top=3)
        assert model.seen.pop() == (1, 1)
        again = client.search(query=answer["query"], top=N)
        assert 3 not in [hit["id"] for hit in again["results"]["knn"]["hits"]]


@pytest.mark.parametrize("box", [[0, 0, 0, 1], [0.5, 0, 0.4, 1], [-0.1, 0, 1, 1], [0, 0, 1, 1.1]])
def test_a_box_outside_the_picture_is_refused(client, box):
    client.search(422, positive=[3], box=box)
    client.upload(file_of(picture(3)), 422, box=box)


def test_without_a_model_there_are_no_uploads(path, root):
    with serving.serve(path, image_root=root) as client:
        assert not client.json("/api/info")["upload"]
        assert "suffuse images" in client.upload(file_of(picture(3)), 409)["error"]["hint"]
        client.search(409, positive=[3], box=[0, 0, 1, 1])


def test_without_pictures_there_are_no_parts_of_them(path):
    with serving.serve(path, extractor=FakeModel()) as client:
        client.search(409, positive=[3], box=[0, 0, 1, 1])
        answer = client.search(vectors=[[1.0] * D])
        client.search(409, query=answer["query"], box=[0, 0, 1, 1])
        client.search(409, query="i:3", box=[0, 0, 1, 1])


def test_a_model_that_does_not_fit_is_told(path):
    with serving.serve(path, extractor=FakeModel(D + 1)) as client:
        client.upload(file_of(picture(3)), 409)


def test_files_are_kept_as_long_as_there_is_room(path):
    data = file_of(picture(3))
    with serving.serve(path, extractor=FakeModel(), limits=Limits(remembered_bytes=len(data) + 10)) as client:
        first, second = client.upload(data, top=1), client.upload(data, top=1)
        client.search(query=second["query"], box=[0, 0, 1, 1])
        assert "upload" in client.search(409, query=first["query"], box=[0, 0, 1, 1])["error"]["hint"]
        client.search(query=first["query"])  # the query itself is still known


def test_uploads_are_limited_in_size(path):
    data = file_of(picture(3), "BMP")
    with serving.serve(path, extractor=FakeModel(), limits=Limits(upload_bytes=len(data) - 1)) as client:
        client.upload(data, 413)
    with serving.serve(path, extractor=FakeModel(), limits=Limits(upload_bytes=len(data))) as client:
        client.upload(data)


def test_forms_that_are_not_as_they_should_be_are_refused(client):
    good = file_of(picture(3))

    def post(status, **options):
        client("POST", "/api/search", status, **options)

    post(422, files={"other": ("x.png", good)})
    post(422, files={"image": (None, "text")})
    post(422, files={"image": ("x.png", good), "request": (None, "{")})
    post(422, files={"image": ("x.png", good), "request": (None, json.dumps({"query": "i:3"}))})
    post(422, files={"image": ("x.png", good), "request": (None, json.dumps({"vectors": [[1.0] * D]}))})
    post(400, files=[("image", ("x.png", good)), ("image", ("y.png", good))])
    post(400, files={"image": ("x.png", good), "request": (None, " " * 1_100_000)})
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=abc"):
        answer = client._client.post("/api/search", content=b"--nonsense\r\n\r\n", headers={"Content-Type": kind})
        assert answer.status_code in (400, 422)
        serving.check_problem(answer)


def with_pictures(path, copy, pictures):
    """The same index, made from a folder."""
    shutil.copytree(path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    write_signed(copy, {**manifest, "pictures": pictures})
    return copy


def test_the_index_says_where_its_pictures_are(path, root, tmp_path, monkeypatch, caplog):
    model = FakeModel()
    path = with_pictures(path, tmp_path / "a.index", {"root": str(root), "extractor": {"model": "fake"}})
    monkeypatch.setattr("suffuse.images.extractor_from", lambda _: model, raising=False)
    with serving.serve(path) as client:
        assert client.json("/api/info")["pictures"]
        assert client.json("/api/info")["upload"]
    path = with_pictures(path, tmp_path / "b.index", {"root": str(tmp_path / "gone")})
    with serving.serve(path) as client:
        info = client.json("/api/info")
        assert (info["pictures"], info["upload"]) == (False, False)
    assert "start with where they are" in caplog.text


def test_a_model_that_cannot_be_loaded_is_said_and_the_rest_is_served(path, tmp_path, monkeypatch, caplog):
    def missing(_):
        raise suffuse.MissingExtra("onnxruntime", "images")

    path = with_pictures(path, tmp_path / "a.index", {"extractor": {"model": "fake"}})
    monkeypatch.setattr("suffuse.images.extractor_from", missing, raising=False)
    with serving.serve(path) as client:
        assert not client.json("/api/info")["upload"]
    assert "onnxruntime is not installed" in caplog.text


def test_a_folder_that_is_not_there_is_refused(path, tmp_path):
    with pytest.raises(InvalidInput, match="there is no folder"):
        create_app(path, image_root=tmp_path / "gone")
