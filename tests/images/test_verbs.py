"""The verbs of pictures: a folder to features, and a folder to an index, killed, resumed and brought up to date."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.support.pictures import CHANNELS, fill_folder, noise, tiny_network

import suffuse as library
from suffuse.cli.images import suggest_k, suggest_whitening
from suffuse.images import extractor_from

COUNT = 24


@pytest.fixture
def model(tmp_path):
    return tiny_network(tmp_path / "tiny.onnx")


@pytest.fixture
def photos(tmp_path):
    fill_folder(tmp_path / "photos", COUNT)
    return tmp_path / "photos"


def test_a_folder_becomes_an_index_that_finds_its_pictures(suffuse, photos, tmp_path, model):
    index = tmp_path / "photos.index"
    (photos / "bad.png").write_bytes(b"\x89PNG nonsense")
    code, out, err = suffuse("images", photos, "-o", index, "--model", model, "--size", 96)
    assert (code, out) == (0, "")
    assert f"{COUNT} pictures extracted" in err
    assert "images/s" in err
    assert "1 file skipped:" in err
    assert "bad.png: " in err
    assert f"{COUNT} pictures, {COUNT} vectors of {CHANNELS} dimensions" in err
    assert "k 50, not whitened" in err
    opened = library.Index.open(index)
    assert opened.items[2]["name"] == "003.jpg"
    assert (opened.items[2]["width"], opened.items[2]["height"]) == (90, 50)
    facts = json.loads((index / "manifest.json").read_bytes())["pictures"]
    assert facts["root"] == str(photos)
    extractor = extractor_from(facts["extractor"])
    query = extractor.extract(photos / "deeper" / "005.jpg")
    hits = opened.search(query[None], top=1, method="knn")
    assert opened.items.name(int(hits.ids[0, 0])) == "deeper/005.jpg"


def test_a_second_run_brings_the_index_up_to_date(suffuse, photos, tmp_path, model):
    index = tmp_path / "photos.index"
    command = ("images", photos, "-o", index, "--model", model, "--size", 96)
    assert suffuse(*command)[0] == 0
    code, _, err = suffuse(*command)
    assert code == 1
    assert "exists already" in err
    assert "Traceback" not in err
    (photos / "000.jpg").unlink()
    noise(60, 60, seed=99).save(photos / "zzz.png")
    code, _, err = suffuse(*command, "--force")
    assert code == 0
    assert "1 picture extracted" in err
    assert f"{COUNT - 1} pictures known already" in err
    names = [item["name"] for item in library.Index.open(index).items]
    assert "zzz.png" in names
    assert "000.jpg" not in names


def test_an_index_of_regions(suffuse, photos, tmp_path, model):
    index = tmp_path / "photos.index"
    code, _, err = suffuse("images", photos, "-o", index, "--model", model, "--size", 96, "--regions", "--k", 7)
    assert code == 0
    assert "k 7" in err
    manifest = json.loads((index / "manifest.json").read_bytes())
    assert manifest["counts"]["images"] == COUNT
    assert manifest["counts"]["elements"] > COUNT


def test_whitening_is_as_it_was_asked_for(suffuse, photos, tmp_path, model):
    code, _, err = suffuse("images", photos, "-o", tmp_path / "a.index", "--model", model, "--size", 96, "--whiten", 4)
    assert (code, "whitened to 4" in err) == (0, True)
    code, _, err = suffuse("images", photos, "-o", tmp_path / "b.index", "--model", model, "--size", 96, "--whiten", 0)
    assert (code, "not whitened" in err) == (0, True)


@pytest.mark.parametrize("regions", [False, True])
def test_features_alone(suffuse, photos, tmp_path, model, regions):
    output = tmp_path / "features.npz"
    options = ["--regions"] if regions else []
    code, out, err = suffuse("extract", photos, "-o", output, "--model", model, "--size", 96, *options)
    assert (code, out) == (0, "")
    assert f"of {COUNT} pictures" in err
    with np.load(output) as arrays:
        assert set(arrays.files) == {"features", "names"} | ({"owners"} if regions else set())
        assert arrays["features"].shape[1] == CHANNELS
        assert arrays["names"].tolist() == sorted(arrays["names"].tolist())
        if regions:
            assert arrays["owners"].shape == arrays["features"].shape[:1]
            assert arrays["owners"].max() == COUNT - 1
    assert library.build(output, tmp_path / "x.index", library.Params(k=5)).summary.elements >= COUNT


def test_the_options_of_a_network_reach_it(suffuse, photos, tmp_path):
    model = tiny_network(tmp_path / "last.onnx", layout="nhwc")
    index = tmp_path / "photos.index"
    code, _, _ = suffuse(
        "images", photos, "-o", index, "--model", model, "--size", 64, "--layout", "nhwc", "--layer", "features",
        "--mean", "0.485,0.456,0.406", "--std", "0.25", "--pooling", "gem", "--threads", 1,
    )  # fmt: skip
    assert code == 0
    described = json.loads((index / "manifest.json").read_bytes())["pictures"]["extractor"]
    assert (described["mean"], described["std"]) == ([0.485, 0.456, 0.406], [0.25, 0.25, 0.25])
    assert (described["layout"], described["pooling"], described["size"]) == ("nhwc", "gem", 64)


def test_many_skipped_files_are_listed_in_a_file(suffuse, photos, tmp_path, model):
    for number in range(25):
        (photos / f"bad{number:02d}.jpg").write_text("hello")
    code, _, err = suffuse("extract", photos, "-o", tmp_path / "x.npz", "--model", model, "--size", 64)
    assert code == 0
    assert "25 files skipped:" in err
    assert "bad19.jpg" in err
    assert "bad20.jpg" not in err
    listed = (tmp_path / "x.npz.pictures" / "skipped.txt").read_text().splitlines()
    assert len(listed) == 25
    assert listed[24].startswith("bad24.jpg\tnot a picture")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["images", "nowhere", "-o", "x.index"], 1, "there is no folder nowhere"),
        (["images", "empty", "-o", "x.index"], 1, "0 usable pictures in empty"),
        (["extract", "empty", "-o", "x.npz"], 1, "no picture in empty could be used"),
        (["extract", "empty", "-o", "x.npy"], 2, "must end in .npz"),
        (["extract", "empty", "-o", "none/x.npz"], 1, "cannot be written there"),
        (["images", "empty", "-o", "x.index", "--k", "1"], 2, "k must be"),
        (["images", "empty", "-o", "x.index", "--size", "5"], 2, "size must be"),
        (["images", "empty", "-o", "x.index", "--mean", "1,2"], 2, "mean must be a number, or three"),
        (["images", "empty", "-o", "x.index", "--std", "x"], 2, "std must be a number, or three"),
    ],
)
def test_what_a_user_did_wrong_is_one_line(suffuse, tmp_path, monkeypatch, model, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    found, out, err = suffuse(*arguments, "--model", model)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err


def test_an_unknown_network_is_one_line(suffuse, photos, tmp_path):
    code, _, err = suffuse("images", photos, "-o", tmp_path / "x.index", "--model", "resnet")
    assert (code, "there is no network 'resnet'" in err) == (1, True)


def test_k_and_whitening_suit_the_number_of_pictures():
    assert [suggest_k(n, regions=False) for n in (2, 24, 100, 400, 500, 10**6)] == [50] * 6
    assert [suggest_k(n, regions=True) for n in (24, 10**6)] == [20, 200]
    assert suggest_whitening(2047, 1280) is None
    assert suggest_whitening(2048, 1280) == 512
    assert suggest_whitening(2048, 384) == 384


def test_the_module_can_be_run_from_a_shell(photos, tmp_path, model):
    command = [sys.executable, "-m", "suffuse", "images", photos, "-o", tmp_path / "x.index", "--model", model]
    done = subprocess.run([*map(str, command), "--size", "64"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.index" / "manifest.json").exists()
