"""Data sets from folders, truths and labels: matched by name, judged by protocol, refused where they do not fit."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataset_files import IMAGES, pairs, rows, write_pickle

from suffuse.errors import InvalidInput
from suffuse.research.datasets import Regional, Truth, assemble, read_class_set, read_folder, read_truth
from suffuse.research.evaluation import judge


@pytest.fixture
def oxford(tmp_path):
    """Five images, two queries; the revisited protocol drops the second image, lists the others backwards, adds one."""
    folder = tmp_path / "oxford5k"
    (folder / "thumbs").mkdir(parents=True)
    np.save(folder / "gallery_rmac.npy", rows(5).astype(np.float16))
    np.save(folder / "queries_rmac.npy", rows(2, seed=1))
    np.save(folder / "revisited_queries_rmac.npy", rows(3, seed=2))
    np.save(folder / "regions.npy", rows(7, d=3))
    np.save(folder / "region_owners.npy", np.array([0, 0, 1, 1, 2, 3, 4], np.int32))
    np.save(folder / "query_regions.npy", rows(3, d=3, seed=1))
    np.save(folder / "query_region_owners.npy", np.array([0, 0, 1], np.int32))
    classic = [
        {"name": "bodleian_1", "box": [0, 0, 9.5, 9], "ok": [1, 2], "junk": [4]},
        {"name": "all_souls_1", "box": [0, 0, 9, 9], "ok": [0], "junk": []},
    ]
    (folder / "ground_truth.json").write_text(json.dumps({"images": IMAGES, "queries": classic}))
    revisited = [
        {"name": "bodleian_1", "box": [0, 0, 9, 9], "easy": [0], "hard": [2, 3], "junk": [1]},
        {"name": "x", "box": [0, 0, 9, 9], "easy": [], "hard": [3], "junk": []},
        {"name": "y", "box": [0, 0, 9, 9], "easy": [1], "hard": [], "junk": []},
    ]
    listed = ["oxford_3", "oxford_2", "oxford_1", "all_souls_1"]
    (folder / "revisited_ground_truth.json").write_text(json.dumps({"images": listed, "queries": revisited}))
    return folder


def test_an_oxford_folder_is_read_whole(oxford):
    dataset = read_folder(oxford)
    assert dataset.name == "oxford5k"
    assert dataset.features.shape == (5, 4)
    assert dataset.queries.shape == (2, 4)
    assert dataset.image_names == IMAGES
    assert dataset.query_names == ["bodleian_1", "all_souls_1"]
    assert dataset.kind == "official"
    assert {name: pairs(found) for name, found in dataset.protocols.items()} == {"classic": [([1, 2], [4]), ([0], [])]}
    assert dataset.regional.regions.shape == (7, 3)
    assert dataset.regional.query_region_owners.tolist() == [0, 0, 1]
    assert dataset.thumbnails == oxford / "thumbs"


def test_the_revisited_gallery_leaves_out_what_its_truth_does_not_list_and_matches_by_name(oxford):
    dataset = read_folder(oxford, revisited=True)
    assert dataset.name == "revisited oxford5k"
    assert dataset.image_names == ["all_souls_1", "oxford_1", "oxford_2", "oxford_3"]
    np.testing.assert_array_equal(dataset.features, np.load(oxford / "gallery_rmac.npy")[[0, 2, 3, 4]])
    assert dataset.queries.shape == (3, 4)
    assert pairs(dataset.protocols["easy"])[0] == ([3], [0, 1, 2])
    assert pairs(dataset.protocols["medium"])[0] == ([0, 1, 3], [2])
    assert pairs(dataset.protocols["hard"]) == [([0, 1], [2, 3]), ([0], []), ([], [2])]
    assert dataset.regional is None  # the file of query regions is that of the other queries


def test_regions_of_images_that_are_left_out_go_with_them(oxford):
    np.save(oxford / "revisited_query_regions.npy", rows(3, d=3))
    np.save(oxford / "revisited_query_region_owners.npy", np.arange(3))
    dataset = read_folder(oxford, revisited=True)
    np.testing.assert_array_equal(dataset.regional.regions, np.load(oxford / "regions.npy")[[0, 1, 4, 5, 6]])
    assert dataset.regional.region_owners.tolist() == [0, 0, 1, 2, 3]
    assert dataset.regional.region_owners.dtype == np.int32


def test_a_folder_without_regions_and_thumbnails_is_fine(oxford):
    (oxford / "regions.npy").unlink()
    (oxford / "thumbs").rmdir()
    dataset = read_folder(oxford)
    assert dataset.regional is dataset.thumbnails is None


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no folder .*nowhere"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"there is no file .*gallery_rmac\.npy"):
        read_folder(tmp_path)


TRUTH = Truth(IMAGES, ["q"], {"classic": [judge(np.array([1]), np.array([2]))]})


def test_a_truth_of_another_gallery_is_refused():
    for count in (4, 6):
        with pytest.raises(InvalidInput, match=f"{count} features, the truth lists 5 images"):
            assemble("set", rows(count), rows(1), TRUTH)


def test_distractors_follow_the_images_of_the_truth():
    dataset = assemble("set", rows(7), rows(1), TRUTH, distractors=True)
    assert dataset.image_names == [*IMAGES, "distractor 0", "distractor 1"]
    with pytest.raises(InvalidInput, match="4 features, the truth lists 5 images"):
        assemble("set", rows(4), rows(1), TRUTH, distractors=True)


def test_queries_and_truth_must_agree():
    with pytest.raises(InvalidInput, match="2 queries, the truth judges 1"):
        assemble("set", rows(5), rows(2), TRUTH)
    with pytest.raises(InvalidInput, match="queries have 3 dimensions, features 4"):
        assemble("set", rows(5), rows(1, d=3), TRUTH)


def test_owners_must_exist():
    with pytest.raises(InvalidInput, match="set: query regions belong to 1, the last is 0"):
        assemble("set", rows(5), rows(1), TRUTH, regional=Regional(rows(5), np.arange(5), rows(2), np.arange(2)))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (IMAGES[:4], "4 different names for 5 features"),
        ([*IMAGES[:4], IMAGES[0]], "4 different names for 5 features"),
        ([*IMAGES[:4], "other"], "1 images of the truth have no features, such as 'oxford_3'"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, words):
    with pytest.raises(InvalidInput, match=words):
        assemble("set", rows(5), rows(1), TRUTH, gallery_names=names)


def test_a_truth_that_lists_an_image_twice_cannot_be_matched_by_name():
    twice = TRUTH._replace(image_names=[*IMAGES[:4], IMAGES[0]])
    with pytest.raises(InvalidInput, match="lists an image twice"):
        assemble("set", rows(5), rows(1), twice, gallery_names=IMAGES)


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_the_order_of_the_truth_does_not_change_who_is_positive(order, positives):
    truth = Truth(
        [IMAGES[i] for i in order], ["q"], {"classic": [judge(np.array([order.index(i) for i in positives], int))]}
    )
    dataset = assemble("set", rows(5), rows(1), truth, gallery_names=IMAGES)
    assert dataset.image_names == IMAGES
    assert pairs(dataset.protocols["classic"]) == [(sorted(positives), [])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "has no list 'images'"),
        ('{"images": ["a"]}', "has no list 'queries'"),
        ('{"images": ["a"], "queries": []}', "does not name every image"),
        ('{"images": [1], "queries": [{"name": "q", "ok": [0], "junk": []}]}', "does not name every image"),
        ('{"images": ["a"], "queries": [{"ok": [0], "junk": []}]}', "does not name every image"),
        ('{"images": ["a"], "queries": [3]}', "does not name every image"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": [0]}]}', "needs ok and junk, or easy, hard and junk"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": [1], "junk": []}]}', "ok of query q names image 1 of 1"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": [0], "junk": [-1]}]}', "junk of query q names image -1"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": [0.5], "junk": []}]}', "not a list of whole numbers"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": [[0], []], "junk": []}]}', "not a list of whole numbers"),
        ('{"images": ["a"], "queries": [{"name": "q", "ok": 0, "junk": []}]}', "not a list of whole numbers"),
    ],
)
def test_a_truth_that_makes_no_sense_is_refused(tmp_path, content, words):
    file = tmp_path / "truth.json"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=words):
        read_truth(file)


def test_a_truth_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "truth.txt").write_text("")
    with pytest.raises(InvalidInput, match=r"known are \.json and \.pkl"):
        read_truth(tmp_path / "truth.txt")
    with pytest.raises(InvalidInput, match="there is no file"):
        read_truth(tmp_path / "truth.json")


@pytest.mark.parametrize("protocol", range(6))
def test_the_pickles_of_cnnimageretrieval_and_revisitop_are_read(tmp_path, protocol):
    box = np.array([1.5, 2.0, 3.0, 4.0])
    classic = [{"ok": [1, 2], "junk": np.array([], float), "bbx": box}, {"ok": np.array([3]), "junk": [0], "bbx": box}]
    write_pickle(tmp_path / "gnd_oxford5k.pkl", classic, protocol)
    truth = read_truth(tmp_path / "gnd_oxford5k.pkl")
    assert truth.image_names == IMAGES
    assert truth.query_names == ["query_0", "query_1"]
    assert pairs(truth.protocols["classic"]) == [([1, 2], []), ([3], [0])]
    revisited = [{"easy": np.array([4]), "hard": np.array([0], np.int32), "junk": [], "bbx": box}]
    write_pickle(tmp_path / "gnd_roxford5k.pkl", revisited, protocol)
    truth = read_truth(tmp_path / "gnd_roxford5k.pkl")
    assert {name: pairs(found) for name, found in truth.protocols.items()} == {
        "easy": [([4], [0])], "medium": [([0, 4], [])], "hard": [([0], [4])],
    }  # fmt: skip


@pytest.fixture
def classes(tmp_path):
    file = tmp_path / "digits.npz"
    np.savez(file, features=np.arange(1, 25, dtype=np.float32).reshape(12, 2), labels=np.arange(12) % 3)
    return file


def test_a_class_set_holds_its_queries_out_of_the_gallery(classes):
    dataset = read_class_set(classes, 4, np.random.default_rng(0))
    assert (dataset.name, dataset.kind) == ("digits", "classes")
    assert len(dataset.features) == 8
    everyone = np.concatenate([dataset.features, dataset.queries])
    assert sorted(everyone[:, 0]) == list(range(1, 24, 2))
    assert sorted(map(int, dataset.image_names + dataset.query_names)) == list(range(12))
    for name, (positives, junk) in zip(dataset.query_names, dataset.protocols["classes"], strict=True):
        assert set(positives) == {i for i, other in enumerate(dataset.image_names) if (int(other) - int(name)) % 3 == 0}
        assert len(junk) == 0


def test_a_class_set_that_leaves_one_out_keeps_its_queries_as_junk(classes):
    dataset = read_class_set(classes, 12, np.random.default_rng(0), leave_one_out=True)
    assert len(dataset.features) == len(dataset.queries) == 12
    assert pairs(dataset.protocols["classes"])[4] == ([1, 7, 10], [4])
    assert len(read_class_set(classes, 5, np.random.default_rng(0), leave_one_out=True).queries) == 5


def test_the_same_generator_chooses_the_same_queries(classes):
    first, second = (read_class_set(classes, 4, np.random.default_rng(7)) for _ in range(2))
    assert first.query_names == second.query_names


@pytest.mark.parametrize("queries", [0, 11])
def test_a_class_set_needs_queries_and_a_gallery(classes, queries):
    with pytest.raises(InvalidInput, match=f"{queries} queries of 12 elements; choose between 1 and 10"):
        read_class_set(classes, queries, np.random.default_rng(0))


def test_a_class_set_without_labels_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", features=rows(5))
    with pytest.raises(InvalidInput, match="has no labels"):
        read_class_set(tmp_path / "x.npz", 2, np.random.default_rng(0))
