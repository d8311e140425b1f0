"""Readers of public data sets, on small files in the same layouts; and pickles that want more than to be read."""

import contextlib
import json
import os
import pickle
import re
import struct

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from suffuse import plain_pickle
from suffuse.datasets import Regional, Truth, assemble, class_set, mat_set, oxford_folder, read_truth
from suffuse.errors import InvalidInput
from suffuse.evaluation import judge

IMAGES = ["all_souls_1", "bodleian_1", "oxford_1", "oxford_2", "oxford_3"]


def rows(n, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def pairs(judgements):
    return [(found.positives.tolist(), found.junk.tolist()) for found in judgements]


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
    dataset = oxford_folder(oxford)
    assert dataset.name == "oxford5k"
    assert dataset.features.shape == (5, 4)
    assert dataset.queries.shape == (2, 4)
    assert dataset.image_names == IMAGES
    assert dataset.query_names == ["bodleian_1", "all_souls_1"]
    assert dataset.kind == "official"
    assert {name: pairs(found) for name, found in dataset.protocols.items()} == {"classic": [([1, 2], [4]), ([0], [])]}
    assert dataset.regions.shape == (7, 3)
    assert dataset.query_region_owners.tolist() == [0, 0, 1]
    assert dataset.thumbnails == oxford / "thumbs"


def test_the_revisited_gallery_leaves_out_what_its_truth_does_not_list_and_matches_by_name(oxford):
    dataset = oxford_folder(oxford, revisited=True)
    assert dataset.name == "revisited oxford5k"
    assert dataset.image_names == ["all_souls_1", "oxford_1", "oxford_2", "oxford_3"]
    np.testing.assert_array_equal(dataset.features, np.load(oxford / "gallery_rmac.npy")[[0, 2, 3, 4]])
    assert dataset.queries.shape == (3, 4)
    assert pairs(dataset.protocols["easy"])[0] == ([3], [0, 1, 2])
    assert pairs(dataset.protocols["medium"])[0] == ([0, 1, 3], [2])
    assert pairs(dataset.protocols["hard"]) == [([0, 1], [2, 3]), ([0], []), ([], [2])]
    assert dataset.regions is None  # the file of query regions is that of the other queries


def test_regions_of_images_that_are_left_out_go_with_them(oxford):
    np.save(oxford / "revisited_query_regions.npy", rows(3, d=3))
    np.save(oxford / "revisited_query_region_owners.npy", np.arange(3))
    dataset = oxford_folder(oxford, revisited=True)
    np.testing.assert_array_equal(dataset.regions, np.load(oxford / "regions.npy")[[0, 1, 4, 5, 6]])
    assert dataset.region_owners.tolist() == [0, 0, 1, 2, 3]
    assert dataset.region_owners.dtype == np.int32


def test_a_folder_without_regions_and_thumbnails_is_fine(oxford):
    (oxford / "regions.npy").unlink()
    (oxford / "thumbs").rmdir()
    dataset = oxford_folder(oxford)
    assert dataset.regions is dataset.region_owners is dataset.query_regions is dataset.thumbnails is None


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no folder .*nowhere"):
        oxford_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"there is no file .*gallery_rmac\.npy"):
        oxford_folder(tmp_path)


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


def write_pickle(path, gnd, protocol=2):
    content = {"imlist": IMAGES, "qimlist": [f"query_{i}" for i in range(len(gnd))], "gnd": gnd}
    path.write_bytes(pickle.dumps(content, protocol))


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
    dataset = class_set(classes, 4, np.random.default_rng(0))
    assert (dataset.name, dataset.kind) == ("digits", "classes")
    assert len(dataset.features) == len(dataset.labels) == 8
    everyone = np.concatenate([dataset.features, dataset.queries])
    assert sorted(everyone[:, 0]) == list(range(1, 24, 2))
    assert sorted(map(int, dataset.image_names + dataset.query_names)) == list(range(12))
    for name, (positives, junk) in zip(dataset.query_names, dataset.protocols["classes"], strict=True):
        assert set(positives) == {i for i, other in enumerate(dataset.image_names) if (int(other) - int(name)) % 3 == 0}
        assert len(junk) == 0


def test_a_class_set_that_leaves_one_out_keeps_its_queries_as_junk(classes):
    dataset = class_set(classes, None, np.random.default_rng(0), leave_one_out=True)
    assert len(dataset.features) == len(dataset.queries) == 12
    assert pairs(dataset.protocols["classes"])[4] == ([1, 7, 10], [4])
    assert len(class_set(classes, 5, np.random.default_rng(0), leave_one_out=True).queries) == 5


def test_the_same_generator_chooses_the_same_queries(classes):
    first, second = (class_set(classes, 4, np.random.default_rng(7)) for _ in range(2))
    assert first.query_names == second.query_names


@pytest.mark.parametrize("queries", [None, 0, 11])
def test_a_class_set_needs_queries_and_a_gallery(classes, queries):
    with pytest.raises(InvalidInput, match=f"{queries} queries of 12 elements; choose between 1 and 10"):
        class_set(classes, queries, np.random.default_rng(0))


def test_a_class_set_without_labels_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", features=rows(5))
    with pytest.raises(InvalidInput, match="has no labels"):
        class_set(tmp_path / "x.npz", 2, np.random.default_rng(0))


def write_cells(archive, where, matrices):
    """A Matlab cell array of 1 x n, as its version 7.3 writes it: references to (vectors, d) in a hidden group."""
    references = np.empty((len(matrices), 1), h5py.ref_dtype)
    for i, matrix in enumerate(matrices):
        cell = archive.create_dataset(f"#refs#/{where.replace('/', '_')}_{i}", data=matrix)
        if matrix.ndim == 1:
            cell.attrs["MATLAB_empty"] = np.uint8(1)
        references[i, 0] = cell.ref
    archive.create_dataset(where, data=references, dtype=h5py.ref_dtype)


def write_iscen(path, images, queries, reg_images, reg_queries):
    with h5py.File(path, "w") as archive:
        write_cells(archive, "glob/V", images)
        write_cells(archive, "glob/Q", queries)
        write_cells(archive, "reg/V", reg_images)
        write_cells(archive, "reg/Q", reg_queries)


@pytest.fixture
def iscen(tmp_path):
    """oxford5k_resnet.mat with five images and two queries, and its truth."""
    globals_, regions = rows(7), [rows(count, seed=count) for count in (2, 1, 3, 1, 1, 2, 1)]
    singles = [globals_[i : i + 1] for i in range(7)]
    write_iscen(tmp_path / "oxford5k_resnet.mat", singles[:5], singles[5:], regions[:5], regions[5:])
    write_pickle(tmp_path / "gnd_oxford5k.pkl", [{"ok": [0], "junk": [1]}, {"ok": [2], "junk": []}])
    return tmp_path


def test_the_cells_of_iscen_are_read(iscen):
    dataset = mat_set(iscen / "oxford5k_resnet.mat")
    np.testing.assert_array_equal(dataset.features, rows(7)[:5])
    np.testing.assert_array_equal(dataset.queries, rows(7)[5:])
    assert (dataset.name, dataset.image_names, dataset.regions) == ("oxford5k_resnet", IMAGES, None)
    assert pairs(dataset.protocols["classic"]) == [([0], [1]), ([2], [])]


def test_the_regional_cells_of_iscen_are_read_with_their_owners(iscen):
    dataset = mat_set(iscen / "oxford5k_resnet.mat", regional=True)
    assert dataset.region_owners.tolist() == [0, 0, 1, 2, 2, 2, 3, 4]
    np.testing.assert_array_equal(dataset.regions[3:6], rows(3, seed=3))
    assert dataset.query_region_owners.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(dataset.query_regions[:2], rows(2, seed=2))


def test_the_larger_galleries_use_the_truth_of_the_smaller_ones(iscen):
    singles = [row[None] for row in rows(8)]
    write_iscen(iscen / "oxford105k_siamac.mat", singles, singles[:2], singles, singles[:2])
    dataset = mat_set(iscen / "oxford105k_siamac.mat")
    assert dataset.image_names[4:] == ["oxford_3", "distractor 0", "distractor 1", "distractor 2"]
    write_iscen(iscen / "oxford5k_siamac.mat", singles, singles[:2], singles, singles[:2])
    with pytest.raises(InvalidInput, match="8 features, the truth lists 5 images"):
        mat_set(iscen / "oxford5k_siamac.mat")


def test_another_truth_can_be_given(iscen):
    (iscen / "gnd_oxford5k.pkl").rename(iscen / "other.pkl")
    assert len(mat_set(iscen / "oxford5k_resnet.mat", iscen / "other.pkl").queries) == 2
    with pytest.raises(InvalidInput, match=r"there is no file .*gnd_oxford5k\.pkl"):
        mat_set(iscen / "oxford5k_resnet.mat")


def test_the_columns_of_revisitop_are_read(tmp_path):
    content = {"X": rows(5).T, "Q": rows(2, seed=1).T}
    scipy.io.savemat(tmp_path / "roxford5k_resnet_rsfm120k_gem.mat", content)
    truth = [{"easy": [0], "hard": [1], "junk": []}, {"easy": [], "hard": [2], "junk": [3]}]
    write_pickle(tmp_path / "gnd_roxford5k.pkl", truth)
    dataset = mat_set(tmp_path / "roxford5k_resnet_rsfm120k_gem.mat")
    np.testing.assert_array_equal(dataset.features, rows(5))
    np.testing.assert_array_equal(dataset.queries, rows(2, seed=1))
    assert list(dataset.protocols) == ["easy", "medium", "hard"]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (rows(2), r"cell 1 of /glob/V holds 2 vectors, an array of shape \(2, 4\)"),
        (rows(1, d=1), r"cell 1 of /glob/V holds 1 vectors, an array of shape \(1, 1\)"),
        (np.array([4, 0], np.uint64), r"cell 1 of /glob/V holds 0 vectors"),
    ],
)
def test_cells_of_an_odd_shape_are_refused(iscen, cell, words):
    singles = [row[None] for row in rows(5)]
    write_iscen(iscen / "oxford5k_resnet.mat", [singles[0], cell, *singles[2:]], singles[:2], singles, singles[:2])
    with pytest.raises(InvalidInput, match=words):
        mat_set(iscen / "oxford5k_resnet.mat")


def test_other_and_damaged_mat_files_are_refused(iscen):
    file = iscen / "oxford5k_resnet.mat"
    whole = file.read_bytes()
    with h5py.File(file, "w") as archive:
        archive["glob/V"] = rows(3)
    with pytest.raises(InvalidInput, match="has no cells /glob/V"):
        mat_set(file)
    scipy.io.savemat(file, {"X": rows(3)})
    with pytest.raises(InvalidInput, match="holds no X and Q"):
        mat_set(file)
    for content in (whole[: len(whole) // 2], b"nonsense " * 40, b""):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"oxford5k_resnet\.mat cannot be read"):
            mat_set(file)
    with pytest.raises(InvalidInput, match="there is no file"):
        mat_set(iscen / "paris6k_resnet.mat")


# ---------------------------------------------------------------- pickles

PLAIN = {
    "matrix": np.arange(6).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "words": np.array(["ab", "c"]), "bytes": np.array([b"ab"]), "none": np.array([], np.int16), "zero": np.array(5),
    "big": np.arange(3, dtype=">i4"), "truth": np.array([True, False]), "complex": np.array([1j]),
    "single": np.float32(2.5), "list": [1, 2.5, "é", None, True, b"\xff\x00", b"", 10**30, (1, ())], "set": {1, 2},
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_survives_every_protocol(protocol):
    found = plain_pickle.loads(pickle.dumps(PLAIN, protocol), "x")
    assert found.keys() == PLAIN.keys()
    for key, value in PLAIN.items():
        assert type(found[key]) is type(value), key
        np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(value)) if key not in ("list", "set") else None
        assert getattr(found[key], "dtype", None) == getattr(value, "dtype", None)
    assert (found["list"], found["set"]) == (PLAIN["list"], PLAIN["set"])


def test_arrays_written_by_older_numpy_and_python_2_are_read():
    old = pickle.dumps({"ok": np.array([3, 200])}, 2).replace(b"numpy._core", b"numpy.core")
    assert plain_pickle.loads(old, "x")["ok"].tolist() == [3, 200]
    raw = np.array([3, 200], "<i8").tobytes()
    python2 = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR(I1\n(I2\ntcnumpy\ndtype\n"
        b"(U\x02i8I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntbI00\nU" + bytes([len(raw)]) + raw + b"tb."
    )
    assert plain_pickle.loads(python2, "x").tolist() == [3, 200]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(json_like, st.integers(0, 5))
def test_what_is_written_plain_is_read_the_same(value, protocol):
    assert plain_pickle.loads(pickle.dumps(value, protocol), "x") == value


class Gadget:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_before_it_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    file = tmp_path / "gnd_oxford5k.pkl"
    write_pickle(file, [{"ok": Gadget(os.system, f"touch {marker}"), "junk": []}], protocol)
    with pytest.raises(InvalidInput, match=r"gnd_oxford5k\.pkl is refused: it names (posix|nt)\.system, which is not"):
        read_truth(file)
    assert not marker.exists()


def call(module, name, *arguments):
    """A pickle that calls module.name(*arguments), by names as they are written, dots and all."""
    text = [pickle.dumps(argument, 4)[2:-1] for argument in (module, name)]
    values = b"".join(pickle.dumps(argument, 2)[2:-1] for argument in arguments)
    return b"\x80\x04" + b"".join(text) + b"\x93(" + values + b"tR."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"), ("builtins", "exec"), ("builtins", "getattr"), ("builtins", "__import__"),
        ("builtins", "open"), ("builtins", "bytearray"), ("builtins", "set.__class__"), ("subprocess", "Popen"),
        ("numpy", "load"), ("numpy", "fromfile"), ("numpy", "ndarray.tofile"), ("numpy", "dtype.type"),
        ("numpy._core.multiarray", "fromfile"), ("numpy.testing._private.utils", "runstring"),
        ("copyreg", "__newobj__"), ("operator", "attrgetter"), ("functools", "partial"), ("importlib", "import_module"),
        ("types", "CodeType"), ("suffuse.plain_pickle", "load"), ("_codecs", "decode"), ("collections", "OrderedDict"),
    ],
)  # fmt: skip
def test_every_other_name_is_refused_and_told(module, name):
    with pytest.raises(InvalidInput, match=re.escape(f"x is refused: it names {module}.{name}, which")):
        plain_pickle.loads(call(module, name, "1"), "x")


def array_of(code, state, raw, shape=(1,)):
    """A pickle of an array whose dtype, dtype state and contents are chosen freely."""
    reconstruct = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    values = [pickle.dumps(value, 3)[2:-1] for value in (shape, code, state, raw)]
    dtype = b"cnumpy\ndtype\n(" + values[1] + b"\x89\x88tR" + values[2] + b"b"
    return b"\x80\x03" + reconstruct + b"(K\x01" + values[0] + dtype + b"\x89" + values[3] + b"tb."


ADDRESS = struct.pack("<Q", 0xDEADBEEF)
PLAIN_STATE = (3, "<", None, None, None, -1, -1, 0)


def test_the_arrays_of_the_next_tests_are_right_where_nothing_is_wrong():
    assert plain_pickle.loads(array_of("i8", PLAIN_STATE, struct.pack("<q", 7)), "x").tolist() == [7]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        # Flags of 0 would make numpy take the bytes for the address of a Python object.
        (array_of("O8", (3, "|", None, None, None, -1, -1, 0), ADDRESS), "an array of type 'O8'"),
        (array_of("V8", (3, "|", None, ("a",), {"a": ("O", 0)}, 8, 1, 0), ADDRESS), "an array of type 'V8'"),
        (array_of("i8", (3, "<", None, ("a",), {"a": ("O", 0)}, 8, 1, 0), ADDRESS), "an array of records"),
        (array_of("i8", (3, "<", ("i8", (9,)), None, None, 72, 8, 0), ADDRESS), "an array of records"),
        (array_of("i8", (3, "O", None, None, None, -1, -1, 0), ADDRESS), "odd byte order 'O'"),
        (array_of("i8,O", PLAIN_STATE, ADDRESS), "an array of type 'i8,O'"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(2,)), r"shape \(2,\) and type int64 in 8 bytes"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(2**40,)), "in 8 bytes"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(-1,)), r"an array of shape \(-1,\)"),
        (array_of("S0", PLAIN_STATE, b"", shape=(2**40,)), "in 0 bytes"),
        (array_of("i8", PLAIN_STATE, [1]), "does not consist of bytes"),
        (call("numpy._core.multiarray", "_reconstruct", "ndarray", (2**40,), b"b"), "an array of an unknown class"),
        (call("numpy", "ndarray", (2**40,)), "a call of _NdarrayName with 1 values"),
        (call("builtins", "bytes", 2**50), "a call of _NoBytes with 1 values"),
        (call("_codecs", "encode", "x", "rot13"), "bytes encoded by 'rot13'"),
        (b"cnumpy\nndarray\n.", "it holds a function or a type"),
        (b"cnumpy\ndtype\n(U\x02i8tR.", "it holds a function or a type"),
        # A state for a name: attributes that would stay when the next file is read.
        (b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.", "a state for _Encode"),
        (b"\x80\x02c_codecs\nencode\nN}U\x08__call__K\x01s\x86b.", "a state for _Encode"),
        (b"Pname\n.", "refers to something outside of the file, 'name'"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "entry 2147483647 in a pickle of 9 bytes"),
        (b"\x80\x02]q\x00h\x00a.", "it contains itself"),
        (b"]" * 100_000 + b"a" * 99_999 + b".", "nested too deeply"),
    ],
)
def test_tricks_with_allowed_names_are_refused(data, words):
    with pytest.raises(InvalidInput, match=f"x is refused: .*{words}"):
        plain_pickle.loads(data, "x")


def test_shared_parts_are_not_copied_over_and_over():
    value = []
    for _ in range(200):
        value = [value, value]  # 2 ** 200 leaves if each were visited
    found = plain_pickle.loads(pickle.dumps(value, 2), "x")
    assert found[0] is found[1]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04\x95", b"\x82\x01.", b"0.", b"cnumpy\ndtype\n)\x81."])
def test_damaged_pickles_are_refused(data):
    with pytest.raises(InvalidInput, match="x cannot be read as a pickle"):
        plain_pickle.loads(data, "x")


@given(st.binary(max_size=60), st.integers(0, 5), st.data())
def test_changed_bytes_never_do_anything_but_fail_or_load(noise, protocol, data):
    content = bytearray(pickle.dumps(PLAIN, protocol))
    start = data.draw(st.integers(0, len(content)))
    content[start : start + len(noise)] = noise
    with contextlib.suppress(InvalidInput):
        plain_pickle.loads(bytes(content), "x")


def test_a_pickle_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="there is no file"):
        plain_pickle.load(tmp_path / "gnd.pkl")
