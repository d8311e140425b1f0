"""The verbs of an index that lives: add, replace, remove, compact, and what info and verify say afterwards."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.support.builds import directory_bytes
from tests.support.data import clusters, curves
from tests.support.pictures import fill_folder, noise, tiny_network

import suffuse as library
from suffuse.cli.additions import summarize
from suffuse.store.locks import COMPACTING, LOCK, lock_writer
from suffuse.store.manifest import ARRAY_TYPES, ITEMS_FILE, read_manifest, write_manifest
from suffuse.store.segments import Segment

N, D, COUNT = 80, 8, 12
ROWS = curves(np.random.default_rng(2), N + 40, D)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "x.index"
    library.build(ROWS[:N], path, library.Params(k=6, keep=20), names=[f"{id} [a].jpg" for id in range(N)])
    return path


@pytest.fixture
def index(built, tmp_path):
    return Path(shutil.copytree(built, tmp_path / "x.index"))


@pytest.fixture
def more(tmp_path):
    """Ten more images, the first two by names that are there already."""
    np.save(tmp_path / "more.npy", ROWS[N : N + 10])
    names = ["3 [a].jpg", "5 [a].jpg", *(f"new {number}.jpg" for number in range(8))]
    (tmp_path / "more.txt").write_text("\n".join(names) + "\n")
    return tmp_path / "more.npy"


def test_images_are_added_and_found(suffuse, index, more):
    code, out, err = suffuse("add", index, more)
    assert (code, out) == (0, "")
    assert f"{index}: 10 images added, ids {N}..{N + 9}; {N + 10} images in all, generation 2" in err
    assert re.search(r"^\d+ lists of neighbours changed, \d+ columns solved, [\d.]+% of all columns stale, ", err, re.M)
    hits = library.Index.open(index).search(ROWS[N : N + 10], 1, method="knn")
    assert hits.ids[:, 0].tolist() == list(range(N, N + 10))


def test_names_labels_and_modes_reach_the_index(suffuse, index, tmp_path):
    np.savez(tmp_path / "more.npz", features=ROWS[N : N + 2], labels=[4, 5])
    (tmp_path / "names.csv").write_text("name,place\na.jpg,Oxford\nb.jpg,Paris\n")
    code, out, err = suffuse(
        "add", index, tmp_path / "more.npz", "--names", tmp_path / "names.csv", "--mode", "exact", "--json"
    )
    assert code == 0
    assert "columns " in err, "an exact change takes long, and has bars"
    done = json.loads(out)
    assert (done["added"], done["replaced"], done["removed"]) == ([N, N + 1], [], [])
    assert (done["images"], done["generation"], done["stale"], done["solved"]) == (N + 2, 2, 0.0, N + 2)
    assert library.Index.open(index).items[N + 1] == {"name": "b.jpg", "place": "Paris", "label": 5}
    assert not read_manifest(index).segments


def test_names_that_are_there_are_replaced_if_so_asked(suffuse, index, more):
    names = more.with_suffix(".txt")
    code, out, err = suffuse("add", index, more, "--names", names, "--replace", "--json")
    assert code == 0
    assert "2 images replaced, ids 3, 5" in err
    done = json.loads(out)
    assert (done["replaced"], done["added"]) == ([3, 5], list(range(N, N + 8)))
    opened = library.Index.open(index)
    assert opened.search(ROWS[N : N + 3], 1, method="knn").ids[:, 0].tolist() == [3, 5, N]
    assert (opened.items.name(3), opened.items.name(N)) == ("3 [a].jpg", "new 0.jpg")
    code, _, err = suffuse("add", index, more, "--names", names)
    assert code == 0
    assert "10 names in the index already; --replace would" in err
    assert len(library.Index.open(index)) == N + 18
    code, _, err = suffuse("add", index, more, "--names", names, "--replace")
    assert (code, "2 images are called '3 [a].jpg': ids 3, 88" in err) == (1, True)
    assert len(library.Index.open(index)) == N + 18


def test_regions_are_replaced_by_the_name_of_their_image(suffuse, tmp_path):
    path, owners = tmp_path / "r.index", np.repeat(np.arange(20), 3)
    rows = clusters(np.random.default_rng(1), 75, D)
    library.build(rows[:60], path, library.Params(k=6), owners=owners, names=[f"i{image}" for image in range(20)])
    np.save(tmp_path / "more.npy", rows[60:75])
    np.save(tmp_path / "owners.npy", np.array([1, 0, 2, 0, 1, 2, 2, 2, 1, 0, 2, 0, 3, 3, 3]))
    (tmp_path / "names.txt").write_text("new a\ni7\ni4\nnew b\n")
    code, out, err = suffuse(
        "add", path, tmp_path / "more.npy", "--owners", tmp_path / "owners.npy", "--names", tmp_path / "names.txt",
        "--replace", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert (json.loads(out)["replaced"], json.loads(out)["added"]) == ([7, 4], [20, 21])
    opened = library.Index.open(path)
    for id, image in ((20, 0), (7, 1), (4, 2), (21, 3)):
        expected = rows[60:75][np.load(tmp_path / "owners.npy") == image]
        np.testing.assert_array_equal(opened.features[opened.owners == opened.ids.find_row(id)], expected)


def test_images_are_replaced_by_id_and_keep_their_names(suffuse, index, more):
    code, _, err = suffuse("replace", index, more, "7", "20..27", "3")
    assert code == 0
    assert "10 images replaced, ids 7, 20, 21, 22, 23 and 5 more; 80 images in all" in err
    opened = library.Index.open(index)
    hits = opened.search(ROWS[N : N + 10], 1, method="knn")
    assert hits.ids[:, 0].tolist() == [7, *range(20, 28), 3]
    assert opened.items.name(7) == "7 [a].jpg"


def test_images_are_removed_by_id_range_and_name(suffuse, index, tmp_path):
    (tmp_path / "names.jsonl").write_text('{"name": "30 [a].jpg"}\n"31 [a].jpg"\n')
    code, out, err = suffuse(
        "remove", index, "2", "40..42", "--name", "10 [a].jpg", "--names", tmp_path / "names.jsonl", "--json"
    )
    assert code == 0
    assert "7 images removed, ids 2, 40, 41, 42, 10 and 2 more; 73 images in all, generation 2" in err
    assert "solved" not in err.splitlines()[1]
    assert json.loads(out)["removed"] == [2, 40, 41, 42, 10, 30, 31]
    assert set(range(N)) - set(library.Index.open(index).ids.list_visible().tolist()) == {2, 10, 30, 31, 40, 41, 42}


def test_many_stale_columns_are_told_and_compacted(suffuse, index):
    _, _, err = suffuse("remove", index, "5")
    assert "suffuse compact" not in err
    code, _, err = suffuse("remove", index, "0..2", "30..40")
    assert code == 0
    assert re.search(rf"\d\d% of all columns are stale: solved before .*: suffuse compact {index}", err)
    code, out, err = suffuse("compact", index, "--json")
    assert code == 0
    for stage in ("lists", "edges", "graph", "columns", "index"):
        assert re.search(rf"^{stage} .*65/65", err, re.M)
    assert f"{index}: 65 images, compacted as generation 4\n65 columns solved, none stale" in err
    done = json.loads(out)
    assert (done["images"], done["generation"], done["stale"], done["solved"]) == (65, 4, 0.0, 65)
    before = directory_bytes(index)
    code, _, err = suffuse("compact", index)
    assert (code, "nothing to compact" in err) == (0, True)
    assert directory_bytes(index) == before


def test_info_and_verify_tell_of_changes(suffuse, index, more):
    suffuse("add", index, more)
    suffuse("remove", index, "1..3")
    manifest = read_manifest(index)
    code, out, _ = suffuse("info", index, "--json")
    content = json.loads(out)
    assert (content["counts"]["images"], content["counts"]["elements"]) == (N + 7, N + 7)
    assert (content["generation"], content["next_id"], content["removed"]) == (3, N + 10, 3)
    assert content["segments"] == [segment["name"] for segment in manifest.segments]
    assert content["stale"] == library.Index.open(index).stale > 0
    assert content["bytes_total"] == sum(content["bytes"].values()) == sum(
        path.stat().st_size for path in index.iterdir() if path.name not in (LOCK, "manifest.json")
    )  # fmt: skip
    code, out, _ = suffuse("info", index)
    assert code == 0
    for words in (
        "87; the next one gets the id 90",
        "generation 3",
        "3 images removed or replaced",
        "% of all columns",
    ):
        assert words in out
    code, out, _ = suffuse("verify", index)
    count = len(manifest.segments)
    assert out.strip().endswith(f"generation 3 with {count} segment{'s' * (count != 1)}")


def test_an_older_index_is_built_anew_by_its_first_addition(suffuse, tmp_path):
    path = tmp_path / "old.index"
    library.build(ROWS[:N], path, library.Params(k=6, with_lists=False))
    np.save(tmp_path / "more.npy", ROWS[N:])
    _, _, err = suffuse("add", path, tmp_path / "more.npy")
    assert "it is built anew, this time only" in err
    _, _, err = suffuse("add", path, tmp_path / "more.npy")
    assert "it is built anew, this time only" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("add", "{index}", "{folder}/wide.npy"), 1, "have 9 dimensions, the index has 8"),
        (("add", "{index}", "{folder}/none.npy"), 1, "there is no file"),
        (("add", "{index}", "{folder}/more.npy", "--names", "{folder}/two.txt"), 1, "2 names for 10 images"),
        (("add", "{index}", "{folder}/more.npy", "--owners", "{folder}/owners.npy"), 1, "this index holds images"),
        (("add", "{index}", "{folder}/more.npy", "--replace"), 2, "--replace goes by names"),
        (("add", "{index}", "{folder}/more.npy", "{folder}/wide.npy"), 2, "one file of features at a time"),
        (("add", "{index}", "{folder}/more.npy", "--images", "{folder}"), 2, "are for pictures"),
        (("add", "{index}", "{folder}", "--transpose"), 2, "for a file of features"),
        (("add", "{index}", "{folder}"), 1, "does not say how its pictures became features"),
        (("add", "{folder}", "{folder}/more.npy"), 1, "not an index"),
        (("replace", "{index}", "{folder}/more.npy", "1..9"), 1, "10 images for 9 ids; give one image for each id"),
        (("replace", "{index}", "{folder}/more.npy", "1..9", "9"), 1, "image 9 is named 2 times"),
        (("remove", "{index}"), 2, "which images?"),
        (("remove", "{index}", "80"), 1, "there is no image 80; ids go from 0 to 79"),
        (("remove", "{index}", "7..99999999999999999"), 1, "there is no image 99999999999999999"),
        (("remove", "{index}", "7-9"), 2, "ids must be whole numbers such as 7, or ranges such as 120..129"),
        (("remove", "{index}", "9..7"), 2, "ranges of ids must go up, got 9..7; write 7..9"),
        (("remove", "{index}", "--name", "7"), 1, "no image is called '7'"),
        (("remove", "{index}", "--names", "{folder}/numbers.json"), 1, "7 is no name"),
        (("remove", "{index}", "--mode", "slow", "1"), 2, "slow"),
        (("compact", "{folder}"), 1, "not an index"),
    ],
)
def test_a_mistake_is_one_clear_line_and_changes_nothing(suffuse, index, more, tmp_path, arguments, code, message):
    np.save(tmp_path / "wide.npy", np.ones((2, D + 1)))
    np.save(tmp_path / "owners.npy", np.zeros(10, int))
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "numbers.json").write_text("[7]")
    before = {**directory_bytes(index), LOCK: None}
    found, out, err = suffuse(*(argument.format(index=index, folder=tmp_path) for argument in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert code == 2 or len(err.splitlines()) == 1
    assert {**directory_bytes(index), LOCK: None} == before


def test_a_second_writer_is_told_who_the_first_one_is(suffuse, index, more):
    with lock_writer(index):
        for verb in (("add", index, more), ("remove", index, "1"), ("compact", index)):
            code, _, err = suffuse(*verb)
            assert code == 1
            assert err == f"Error: process {os.getpid()} is changing {index}; try again when it is done\n"


def test_a_full_disk_is_told_and_the_index_is_as_before(suffuse, index, more, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("suffuse.index.writer.write_segment", full)
    code, _, err = suffuse("add", index, more)
    assert (code, err) == (1, "Error: No space left on device (somewhere); the index is as it was before\n")


def interrupted(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def _interruptible():
    """Ctrl+C reaches the program, also where a shell ignores SIGINT for the whole suite (`nohup make test &`).

    The command line itself leaves that to the shell, as programs do: in the background, Ctrl+C is not for them.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("verb", "place"),
    [
        ("add", "index.writer.write_segment"),
        ("add", "store.feature_files.load"),
        ("compact", "index.compact.run_stages"),
    ],
)
def test_an_interrupted_change_leaves_the_index_and_says_so(suffuse, index, more, monkeypatch, verb, place):
    suffuse("remove", index, "1")
    before = directory_bytes(index)
    monkeypatch.setattr(f"suffuse.{place}", interrupted)
    code, out, err = suffuse(verb, index, *([more] if verb == "add" else []))
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "Interrupted: the index is as it was before"
    monkeypatch.undo()
    assert directory_bytes(index) == before
    assert library.verify(index)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_that_comes_too_late_says_what_is_there(suffuse, index, more, monkeypatch):
    monkeypatch.setattr("suffuse.index.writer._Writer._summarize", interrupted)
    code, _, err = suffuse("add", index, more)
    assert (code, err) == (130, "Interrupted: the index is at generation 2\n")
    assert len(library.Index.open(index)) == N + 10


def test_ids_that_follow_each_other_are_a_range():
    assert [summarize(ids) for ids in ([4], [4, 5], [5, 4], [1, 3], list(range(0, 14, 2)))] == [
        "id 4", "ids 4..5", "ids 5, 4", "ids 1, 3", "ids 0, 2, 4, 6, 8 and 2 more"
    ]  # fmt: skip


# --- pictures


@pytest.fixture(params=[(), ("--regions", "--k", 7), ("--whiten", 4)], ids=["one", "regions", "whitened"])
def photos(request, suffuse, tmp_path):
    """An index of a folder of pictures, and the folder."""
    folder = tmp_path / "photos"
    fill_folder(folder, COUNT)
    model = tiny_network(tmp_path / "tiny.onnx")
    code, _, err = suffuse("images", folder, "-o", tmp_path / "p.index", "--model", model, "--size", 96, *request.param)
    assert code == 0, err
    return folder, tmp_path / "p.index"


def test_new_pictures_of_the_folder_are_added_and_others_skipped(suffuse, photos):
    folder, index = photos
    (folder / "later").mkdir()
    noise(80, 60, seed=70).save(folder / "later" / "a.jpg")
    noise(80, 60, seed=71).save(folder / "b.png")
    noise(80, 60, seed=72).save(folder / "c.png")
    (folder / "later" / "bad.jpg").write_text("hello")
    code, out, err = suffuse("add", index, folder / "later", folder / "b.png", folder / "000.jpg", "--json")
    assert code == 0, err
    assert "2 pictures extracted" in err
    assert "later/bad.jpg: not a picture" in err
    assert "1 picture in the index already: 000.jpg" in err
    done = json.loads(out)
    assert (done["added"], done["skipped"]) == ([COUNT, COUNT + 1], ["000.jpg"])
    opened = library.Index.open(index)
    assert opened.items[COUNT + 1] == {**opened.items[COUNT + 1], "name": "later/a.jpg", "width": 80, "height": 60}
    shutil.rmtree(index.with_name("p.index.pictures"))  # nothing is extracted of what is known by name
    code, out, err = suffuse("add", index, folder)
    assert code == 0, err
    assert "1 picture extracted" in err
    assert f"{COUNT + 2} pictures in the index already: 000.jpg, 001.jpg" in err
    # As if all had been there from the beginning: the same vectors for the same names.
    code, out, err = suffuse("add", index, folder, "--replace")
    assert (code, "nothing to do, still 15 images" in err) == (0, True), err


def test_changed_pictures_are_replaced_and_keep_their_ids(suffuse, photos):
    folder, index = photos
    before = library.Index.open(index)
    noise(60, 50, seed=90).save(folder / "000.jpg")
    os.utime(folder / "001.jpg", (0, 0))  # another date, the same picture
    noise(60, 50, seed=91).save(folder / "new.jpg")
    code, out, err = suffuse("add", index, folder, "--replace", "--json")
    assert code == 0, err
    done = json.loads(out)
    assert (done["replaced"], done["added"]) == ([0], [COUNT])
    assert done["skipped"] == sorted(item["name"] for item in before.items if item["name"] != "000.jpg")
    after = library.Index.open(index)
    assert after.items.name(0) == "000.jpg"
    assert after.items[0]["bytes"] == (folder / "000.jpg").stat().st_size


def test_pictures_elsewhere_are_refused_and_a_moved_folder_is_found(suffuse, photos, tmp_path):
    folder, index = photos
    noise(80, 60, seed=70).save(tmp_path / "outside.jpg")
    code, _, err = suffuse("add", index, tmp_path / "outside.jpg")
    assert code == 1
    assert f"outside.jpg is not in {folder}, the folder of the index's pictures" in err
    moved = folder.rename(tmp_path / "moved")
    noise(80, 60, seed=70).save(moved / "later.jpg")
    model = (tmp_path / "tiny.onnx").rename(tmp_path / "other.onnx")
    assert suffuse("add", index, moved)[0] == 1
    code, _, err = suffuse("add", index, moved / "later.jpg", "--images", moved)
    assert (code, "there is no network" in err) == (1, True)
    code, _, err = suffuse("add", index, moved / "later.jpg", "--images", moved, "--model", model)
    assert code == 0, err
    assert library.Index.open(index).items.name(COUNT) == "later.jpg"
    code, _, err = suffuse("add", index, moved / "nothing.jpg", "--images", moved)
    assert (code, "there is no file or folder" in err) == (1, True)


# --- the page about the format


def test_the_page_about_the_format_names_every_file_array_and_key(index):
    page = (Path(__file__).parents[2] / "docs" / "index-format.md").read_text()
    written = set(re.findall(r"`([\w.-]+)`", page))
    assert set(ARRAY_TYPES) | {ITEMS_FILE, LOCK, COMPACTING} <= written
    assert set(Segment._fields) <= written
    write_manifest(index, read_manifest(index))
    assert set(json.loads((index / "manifest.json").read_bytes())) <= written
