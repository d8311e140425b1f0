"""Matlab files of the published features: Iscen's cells and revisitop's columns, on small files of the same layouts."""

import h5py
import numpy as np
import pytest
import scipy.io
from tests.support.dataset_files import IMAGES, pairs, rows, write_pickle

from suffuse.errors import InvalidInput
from suffuse.research.datasets import read_mat


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
    dataset = read_mat(iscen / "oxford5k_resnet.mat")
    np.testing.assert_array_equal(dataset.features, rows(7)[:5])
    np.testing.assert_array_equal(dataset.queries, rows(7)[5:])
    assert (dataset.name, dataset.image_names, dataset.regional) == ("oxford5k_resnet", IMAGES, None)
    assert pairs(dataset.protocols["classic"]) == [([0], [1]), ([2], [])]


def test_the_regional_cells_of_iscen_are_read_with_their_owners(iscen):
    dataset = read_mat(iscen / "oxford5k_resnet.mat", regional=True)
    assert dataset.regional.region_owners.tolist() == [0, 0, 1, 2, 2, 2, 3, 4]
    np.testing.assert_array_equal(dataset.regional.regions[3:6], rows(3, seed=3))
    assert dataset.regional.query_region_owners.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(dataset.regional.query_regions[:2], rows(2, seed=2))


def test_the_larger_galleries_use_the_truth_of_the_smaller_ones(iscen):
    singles = [row[None] for row in rows(8)]
    write_iscen(iscen / "oxford105k_siamac.mat", singles, singles[:2], singles, singles[:2])
    dataset = read_mat(iscen / "oxford105k_siamac.mat")
    assert dataset.image_names[4:] == ["oxford_3", "distractor 0", "distractor 1", "distractor 2"]
    write_iscen(iscen / "oxford5k_siamac.mat", singles, singles[:2], singles, singles[:2])
    with pytest.raises(InvalidInput, match="8 features, the truth lists 5 images"):
        read_mat(iscen / "oxford5k_siamac.mat")


def test_another_truth_can_be_given(iscen):
    (iscen / "gnd_oxford5k.pkl").rename(iscen / "other.pkl")
    assert len(read_mat(iscen / "oxford5k_resnet.mat", iscen / "other.pkl").queries) == 2
    with pytest.raises(InvalidInput, match=r"there is no file .*gnd_oxford5k\.pkl"):
        read_mat(iscen / "oxford5k_resnet.mat")


def test_the_columns_of_revisitop_are_read(tmp_path):
    content = {"X": rows(5).T, "Q": rows(2, seed=1).T}
    scipy.io.savemat(tmp_path / "roxford5k_resnet_rsfm120k_gem.mat", content)
    truth = [{"easy": [0], "hard": [1], "junk": []}, {"easy": [], "hard": [2], "junk": [3]}]
    write_pickle(tmp_path / "gnd_roxford5k.pkl", truth)
    dataset = read_mat(tmp_path / "roxford5k_resnet_rsfm120k_gem.mat")
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
        read_mat(iscen / "oxford5k_resnet.mat")


def test_other_and_damaged_mat_files_are_refused(iscen):
    file = iscen / "oxford5k_resnet.mat"
    whole = file.read_bytes()
    with h5py.File(file, "w") as archive:
        archive["glob/V"] = rows(3)
    with pytest.raises(InvalidInput, match="has no cells /glob/V"):
        read_mat(file)
    scipy.io.savemat(file, {"X": rows(3)})
    with pytest.raises(InvalidInput, match="holds no X and Q"):
        read_mat(file)
    for content in (whole[: len(whole) // 2], b"nonsense " * 40, b""):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"oxford5k_resnet\.mat cannot be read"):
            read_mat(file)
    with pytest.raises(InvalidInput, match="there is no file"):
        read_mat(iscen / "paris6k_resnet.mat")
