"""Folders: what is extracted is kept, a run that was killed goes on, and what cannot be used is listed."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tests.support.pictures import CHANNELS, encoded, fill_folder, noise, tiny_network

from suffuse.errors import BuildInterrupted, InvalidInput, InvalidParams
from suffuse.images import cache as cache_module
from suffuse.images import load_extractor
from suffuse.images.cache import locate_cache
from suffuse.images.folder import extract_folder

COUNT = 14


@pytest.fixture
def model(tmp_path):
    return tiny_network(tmp_path / "tiny.onnx")


@pytest.fixture
def extractor(model):
    return load_extractor(model, 96, threads=1)


@pytest.fixture
def photos(tmp_path):
    fill_folder(tmp_path / "photos", COUNT)
    return tmp_path / "photos"


def names(found):
    return [item["name"] for item in found.items]


def test_every_picture_has_its_own_vector_in_order_of_names(photos, tmp_path, extractor):
    (photos / "notes.txt").write_text("no picture")
    (photos / ".hidden.jpg").write_bytes(b"")
    seen = []
    found = extract_folder(photos, tmp_path / "cache", extractor, progress=lambda *state: seen.append(state))
    assert names(found) == sorted(names(found))
    assert len(found.items) == found.extracted == COUNT
    assert "deeper/002.jpg" in names(found)
    assert found.owners is None
    assert found.skipped == []
    for row, name in zip(found.features, names(found), strict=True):
        np.testing.assert_array_equal(row, extractor.extract(photos / name))
    assert seen[0] == ("pictures", 0, COUNT)
    assert seen[-1] == ("pictures", COUNT, COUNT)
    assert found.rate > 0
    assert 0 < found.busy <= 1


def test_items_say_what_is_known_of_a_file(photos, tmp_path, extractor):
    os.utime(photos / "001.jpg", (1_000_000_000, 1_000_000_000))
    found = extract_folder(photos, tmp_path / "cache", extractor)
    size = (photos / "001.jpg").stat().st_size
    assert found.items[1] == {"name": "001.jpg", "width": 70, "height": 50, "bytes": size, "date": "2001-09-09"}


def test_regions_belong_to_their_pictures(photos, tmp_path, extractor):
    found = extract_folder(photos, tmp_path / "cache", extractor, regions=True)
    assert len(found.owners) == len(found.features) > COUNT
    for number, name in enumerate(names(found)):
        np.testing.assert_array_equal(found.features[found.owners == number], extractor.extract_regions(photos / name))


def test_a_second_run_extracts_only_what_is_new_or_changed(photos, tmp_path, extractor):
    cache = tmp_path / "cache"
    first = extract_folder(photos, cache, extractor)
    again = extract_folder(photos, cache, extractor)
    assert again.extracted == 0
    np.testing.assert_array_equal(first.features, again.features)
    assert again.items == first.items

    noise(70, 50, seed=50).save(photos / "new.png")
    noise(70, 50, seed=51).save(photos / "003.jpg")  # changed
    (photos / "004.jpg").unlink()
    third = extract_folder(photos, cache, extractor)
    assert third.extracted == 2
    assert names(third) == sorted({*names(first), "new.png"} - {"004.jpg"})
    for row, name in zip(third.features, names(third), strict=True):
        np.testing.assert_array_equal(row, extractor.extract(photos / name))


def test_moved_touched_and_copied_files_are_known_by_their_content(photos, tmp_path, extractor):
    cache = tmp_path / "cache"
    extract_folder(photos, cache, extractor)
    (photos / "000.jpg").rename(photos / "moved.jpg")
    os.utime(photos / "001.jpg", (5, 5))
    shutil.copyfile(photos / "003.jpg", photos / "deeper" / "copy.jpg")
    found = extract_folder(photos, cache, extractor)
    assert found.extracted == 0
    assert {"moved.jpg", "deeper/copy.jpg"} < set(names(found))
    assert found.items[names(found).index("001.jpg")]["date"] == "1970-01-01"
    for row, name in zip(found.features, names(found), strict=True):
        np.testing.assert_array_equal(row, extractor.extract(photos / name))


def test_another_extractor_has_features_of_its_own(photos, tmp_path, model, extractor):
    cache = tmp_path / "cache"
    first = extract_folder(photos, cache, extractor)
    other = extract_folder(photos, cache, load_extractor(model, 128, threads=1))
    assert other.extracted == COUNT
    assert not np.allclose(first.features, other.features)
    assert extract_folder(photos, cache, extractor).extracted == 0
    moved = model.rename(tmp_path / "elsewhere.onnx")  # the same network in another place
    assert extract_folder(photos, cache, load_extractor(moved, 96, threads=1)).extracted == 0
    assert extract_folder(photos, cache, load_extractor(moved, 96, threads=1), regions=True).extracted == COUNT


def test_what_cannot_be_used_is_listed_and_the_run_goes_on(photos, tmp_path, extractor):
    whole = encoded(noise(64, 64), "JPEG")
    (photos / "a-truncated.jpg").write_bytes(whole[:-300])
    (photos / "b-empty.png").write_bytes(b"")
    (photos / "c-text.gif").write_text("hello")
    (photos / "d-phone.HEIC").write_bytes(b"x")
    (photos / "e-nowhere.jpg").symlink_to(photos / "nothing.jpg")
    (photos / "f-folder.jpg").mkdir()
    expected = [
        ("a-truncated.jpg", "truncated"), ("b-empty.png", "empty"), ("c-text.gif", "not a picture"),
        ("d-phone.HEIC", ".heic is not read; convert"), ("e-nowhere.jpg", "no such file"),
    ]  # fmt: skip
    for extracted in (COUNT, 0):  # the second run says the same
        found = extract_folder(photos, tmp_path / "cache", extractor)
        assert found.extracted == extracted
        assert [skipped.name for skipped in found.skipped] == [name for name, _ in expected]
        for (_, reason), (_, words) in zip(found.skipped, expected, strict=True):
            assert words in reason
        assert len(found.items) == COUNT
    (photos / "a-truncated.jpg").write_bytes(whole)  # cured
    assert "a-truncated.jpg" in names(extract_folder(photos, tmp_path / "cache", extractor))


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are any bytes")
def test_a_name_that_is_not_utf8_is_listed(photos, tmp_path, extractor):
    (photos / os.fsdecode(b"caf\xe9.jpg")).write_bytes(encoded(noise(), "JPEG"))
    found = extract_folder(photos, tmp_path / "cache", extractor)
    assert [(skipped.name, "not UTF-8" in skipped.reason) for skipped in found.skipped] == [("caf?.jpg", True)]


def test_a_picture_in_which_the_network_finds_nothing_is_listed(photos, tmp_path, extractor, monkeypatch):
    monkeypatch.setattr(extractor, "run", lambda _: np.zeros((1, CHANNELS, 2, 2), np.float32))
    found = extract_folder(photos, tmp_path / "cache", extractor)
    assert found.items == []
    assert found.features.shape == (0, CHANNELS)
    assert {skipped.reason for skipped in found.skipped} == {"the network found nothing in it"}


PROGRAM = """
    import sys, time
    from suffuse.images import cache
    from suffuse.images import load_extractor
    from suffuse.images.folder import extract_folder

    cache.BLOCK_PICTURES = 3
    folder, kept, model = sys.argv[1:]

    def report(stage, done, total):
        if done >= 8:
            print(done, flush=True)
            time.sleep(600)  # until the test kills this process

    extract_folder(folder, kept, load_extractor(model, 96, threads=1), progress=report)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_run_that_was_killed_goes_on(photos, tmp_path, model, extractor):
    cache = tmp_path / "cache"
    arguments = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(photos), str(cache), str(model)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        done = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    found = extract_folder(photos, cache, extractor)
    kept = done // 3 * 3
    assert kept >= 6
    assert found.extracted == COUNT - kept
    undisturbed = extract_folder(photos, tmp_path / "other", extractor)
    np.testing.assert_array_equal(found.features, undisturbed.features)
    assert found.items == undisturbed.items


def test_an_interrupted_run_keeps_all_that_it_did(photos, tmp_path, extractor):
    def stop(stage, done, total):
        if done >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_folder(photos, tmp_path / "cache", extractor, progress=stop)
    assert extract_folder(photos, tmp_path / "cache", extractor).extracted <= COUNT - 5


def blocks(cache):
    return sorted(cache.glob("*/*.npy")), sorted(cache.glob("*/*.jsonl"))


@pytest.mark.parametrize("damage", ["no list", "no rows", "short list", "short rows", "nonsense", "other rows"])
def test_a_damaged_block_is_extracted_again(photos, tmp_path, extractor, monkeypatch, damage):
    monkeypatch.setattr(cache_module, "BLOCK_PICTURES", 5)
    cache = tmp_path / "cache"
    whole = extract_folder(photos, cache, extractor)
    rows, lists = blocks(cache)
    assert len(rows) == len(lists) == 3
    match damage:
        case "no list":
            lists[1].unlink()
        case "no rows":
            rows[1].unlink()
        case "short list":
            lists[1].write_bytes(lists[1].read_bytes()[:-40])
        case "short rows":
            rows[1].write_bytes(rows[1].read_bytes()[:-4])
        case "nonsense":
            lists[1].write_bytes(b"[1]\n\xff")
        case "other rows":
            np.save(rows[1], np.zeros((5, CHANNELS + 1), np.float32))
    found = extract_folder(photos, cache, extractor)
    assert found.extracted == 5
    np.testing.assert_array_equal(found.features, whole.features)


def test_a_place_where_nothing_can_be_kept_is_named(photos, tmp_path, extractor):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildInterrupted, match=r"is kept in .*; cure this and run it again"):
        extract_folder(photos, tmp_path / "file" / "cache", extractor)


def test_wrong_arguments_are_told(photos, tmp_path, extractor, model):
    with pytest.raises(InvalidInput, match="there is no folder"):
        extract_folder(tmp_path / "none", tmp_path / "cache", extractor)
    vectors = load_extractor(model, 96, output="vector")
    with pytest.raises(InvalidParams, match="regions need a network with a feature map"):
        extract_folder(photos, tmp_path / "cache", vectors, regions=True)


def test_the_cache_lies_beside_the_output(tmp_path):
    assert locate_cache(tmp_path / "photos.index") == tmp_path / "photos.index.pictures"
