"""Uploaded pictures that are added: found by what they show, and kept in the image folder without harm to it."""

import errno
import json

import pytest
from tests.server.test_changes import serve
from tests.support import serving
from tests.support.serving import D, FakeModel, N, file_of, ids, picture

from suffuse import Index
from suffuse.server import pictures as saving
from suffuse.store.locks import lock_writer


@pytest.fixture
def root(tmp_path):
    serving.write_pictures(tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def path(tmp_path):
    return serving.build(tmp_path)


def send(client, data, called="cat.png", status=201, method="POST", address="/api/items", **about):
    files = {"image": (called, data, "image/png")}
    return client(method, address, status, files=files, data={"request": json.dumps(about)}).json()


def files_of(root):
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


def test_an_uploaded_picture_is_added_saved_and_shown(path, root):
    data = file_of(picture(100))
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        answer = send(client, data, metadata={"place": "Rome"})
        assert (answer["ids"], answer["saved"]) == ([N], True)
        item = client.json(f"/api/items/{N}")
        assert (item["name"], item["metadata"]) == ("added/cat.png", {"place": "Rome"})
        assert (root / item["name"]).read_bytes() == data
        assert client.get(item["image"]).content == data
        client.get(item["thumb"])
        assert ids(client.upload(data), "knn")[0] == N
        assert client.json("/api/items?q=cat")["total"] == 1
        # Somebody may look at a picture that is replaced soon.
        assert client.get(item["image"]).headers["cache-control"] == "private, max-age=60"


def test_a_replaced_picture_has_a_new_file_and_the_old_one_stays(path, root):
    before = files_of(root)
    data = file_of(picture(101))
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        answer = send(client, data, status=200, method="PUT", address="/api/items/4")
        assert answer["ids"] == [4]
        assert client.get("/api/items/4/image").content == data
        assert client.json("/api/items/4")["metadata"]["place"] == "Paris"
        send(client, data, status=404, method="PUT", address=f"/api/items/{N}")
    assert files_of(root) == sorted([*before, "added/cat.png"])


def test_nothing_is_ever_overwritten(path, root):
    (root / "added").mkdir()
    (root / "added" / "cat.png").write_bytes(b"mine")
    (root / "added" / "cat-2.png").symlink_to(root / "nothing")
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        for _ in range(30):
            assert send(client, file_of(picture(7)))["saved"]
    assert (root / "added" / "cat.png").read_bytes() == b"mine"
    assert not (root / "nothing").exists()
    made = [file for file in (root / "added").iterdir() if file.is_file() and file.read_bytes() == file_of(picture(7))]
    assert len(made) == 30
    assert not list((root / "added").glob(".*"))


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ("../../evil.png", "evil"), ("..\\..\\evil.png", "evil"), ("/etc/passwd", "passwd"), ("C:\\a\\b.jpg", "b"),
        ("", "picture"), ("...", "picture"), (".png", "png"), ("a\0b.png", "a_b"), ("a/b/", "picture"),
        ("ein Bär.jpeg", "ein Bär"), ("x" * 400 + ".png", "x" * 150), ("日" * 200, "日" * 50), ("a<b>:|?*.png", "a_b"),
        ("two.dots.png", "two.dots"), ("\ud800.png", "_"), ("-rf.png", "rf"), (".htaccess.png", "htaccess"),
    ],
)  # fmt: skip
def test_names_are_made_harmless(called, expected):
    assert saving.clean_stem(called).startswith(expected.rstrip("_") or "picture")
    assert not set(saving.clean_stem(called)) & set('/\\\0:<>|?*"\n')
    assert len(saving.clean_stem(called).encode()) <= 150


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_the_ending_is_that_of_the_content(path, root, format):
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        answer = send(client, file_of(picture(3), format), called="cat.html")
        shown = client.get(f"/api/items/{answer['ids'][0]}/image")
        assert shown.headers["content-type"] == f"image/{format.lower()}"


def test_a_change_that_fails_leaves_no_file(path, root):
    before = files_of(root)
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        with lock_writer(path):
            send(client, file_of(picture(3)), status=409)
        send(client, b"no picture", status=415)
        send(client, file_of(picture(3)), status=422, metadata={"name": "x"})
        send(client, file_of(picture(3)), status=422, unknown=1)
    assert files_of(root) == before
    assert Index.open(path).manifest.generation == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_takes_no_file_and_the_picture_is_added(path, root, monkeypatch, number):
    (root / "added").mkdir()
    (root / "added" / "cat.png").write_bytes(b"another picture")

    def refuse(*_):
        raise OSError(number, "no")

    with serve(path, image_root=root, extractor=FakeModel()) as client:
        monkeypatch.setattr(saving, "write_bytes", refuse)
        answer = send(client, file_of(picture(3)))
        assert (answer["ids"], answer["saved"]) == ([N], False)
        # It must not show another's file.
        assert client.json(f"/api/items/{N}")["name"] != "added/cat.png"
        client.get(f"/api/items/{N}/image", 404)


def test_a_full_disk_is_told_and_nothing_is_left(path, root, monkeypatch):
    before = files_of(root)

    def full(*_):
        raise OSError(errno.ENOSPC, "no")

    with serve(path, image_root=root, extractor=FakeModel()) as client:
        monkeypatch.setattr(saving, "write_bytes", full)
        send(client, file_of(picture(3)), status=507)
    assert files_of(root) == before
    assert Index.open(path).manifest.generation == 1


def test_a_link_does_not_lead_a_file_out_of_the_folder(path, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (root / "added").symlink_to(tmp_path / "outside")
    with serve(path, image_root=root, extractor=FakeModel()) as client:
        assert not send(client, file_of(picture(3)))["saved"]
    assert not list((tmp_path / "outside").iterdir())


def test_without_a_folder_or_a_model(path, root):
    with serve(path, extractor=FakeModel()) as client:
        assert send(client, file_of(picture(3)))["saved"] is False
    with serve(path, image_root=root) as client:
        send(client, file_of(picture(3)), status=409)
    with serve(path, image_root=root, extractor=FakeModel(D + 1)) as client:
        send(client, file_of(picture(3)), status=409)
    assert not (root / "added").exists()
