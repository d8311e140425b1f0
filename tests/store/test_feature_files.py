"""Feature files: every kind and every type gives the rows that were written, mapped where they lie in one piece."""

import sys

import h5py
import numpy as np
import pytest
from tests.support import reference
from tests.support.data import some_rows

from suffuse.core.features import ACCEPTED_TYPES, unit_rows
from suffuse.errors import MissingExtra
from suffuse.store.feature_files import load, load_owners


def write_npy(path, matrix):
    np.save(path.with_suffix(".npy"), matrix)
    return path.with_suffix(".npy")


def write_npy_in_fortran_order(path, matrix):
    return write_npy(path, np.asfortranarray(matrix))


def write_npy_of_the_other_byte_order(path, matrix):
    return write_npy(path, matrix.astype(matrix.dtype.newbyteorder(">")))


def write_npz(path, matrix):
    np.savez(path.with_suffix(".npz"), features=matrix, other=np.zeros(3))
    return path.with_suffix(".npz")


def write_compressed_npz(path, matrix):
    np.savez_compressed(path.with_suffix(".npz"), features=matrix)
    return path.with_suffix(".npz")


def write_npz_under_another_name(path, matrix):
    np.savez(path.with_suffix(".npz"), features=np.zeros(1), gallery=matrix)
    return f"{path.with_suffix('.npz')}::gallery"


def write_h5(path, matrix):
    with h5py.File(path.with_suffix(".h5"), "w") as archive:
        archive["features"] = matrix
        archive["other"] = np.zeros((3, 3))
    return path.with_suffix(".h5")


def write_h5_with_one_matrix(path, matrix):
    with h5py.File(path.with_suffix(".hdf5"), "w") as archive:
        archive["deep/inside"] = matrix
        archive["labels"] = np.arange(len(matrix))
    return path.with_suffix(".hdf5")


def write_h5_with_a_chosen_matrix(path, matrix):
    with h5py.File(path.with_suffix(".h5"), "w") as archive:
        archive["features"] = np.zeros((3, 3))
        archive["group/name"] = matrix
    return f"{path.with_suffix('.h5')}::group/name"


def write_mat(path, matrix):
    """As Matlab writes X with one column per image: a 512-byte block of text, and the transposed matrix."""
    file = path.with_suffix(".mat")
    with h5py.File(file, "w", userblock_size=512) as archive:
        archive["X"] = matrix
        archive["X"].attrs["MATLAB_class"] = np.bytes_("double")
    with file.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + b"\0" * 8 + b"\x00\x02IM")
    return file


WRITERS = [
    write_npy,
    write_npy_in_fortran_order,
    write_npy_of_the_other_byte_order,
    write_npz,
    write_compressed_npz,
    write_npz_under_another_name,
    write_h5,
    write_h5_with_one_matrix,
    write_h5_with_a_chosen_matrix,
    write_mat,
]


@pytest.mark.parametrize("dtype", ACCEPTED_TYPES)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_kind_of_file_and_every_type_gives_the_rows_that_were_written(tmp_path, write, dtype):
    matrix = some_rows(np.random.default_rng(1), dtype=dtype)
    loaded = load(write(tmp_path / "features", matrix)).features
    np.testing.assert_array_equal(loaded, matrix)
    rows = unit_rows(loaded, "features")
    assert (rows.dtype, rows.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(rows, reference.unit_rows(matrix), rtol=1e-7, atol=0)


def write_fvecs(path, matrix):
    words = np.empty((len(matrix), matrix.shape[1] + 1), "<i4")
    words[:, 0] = matrix.shape[1]
    words[:, 1:] = matrix.astype("<f4").view("<i4")
    words.tofile(path)
    return path


def test_fvecs_files_give_the_rows_that_were_written(tmp_path):
    matrix = some_rows(np.random.default_rng(2))
    loaded = load(write_fvecs(tmp_path / "features.fvecs", matrix)).features
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, matrix)
    np.testing.assert_allclose(unit_rows(loaded, "features"), reference.unit_rows(matrix), rtol=1e-7, atol=0)


def base_map(array):
    while array is not None and not (isinstance(array, np.memmap) and array.filename):
        array = array.base
    return array


@pytest.mark.parametrize("kind", ["npy", "fvecs"])
def test_npy_and_fvecs_files_are_memory_mapped_and_read_only(tmp_path, kind):
    matrix = some_rows(np.random.default_rng(3))
    path = tmp_path / f"features.{kind}"
    if kind == "npy":
        np.save(path, matrix)
    else:
        write_fvecs(path, matrix)
    for transpose in (False, True):
        loaded = load(path, transpose=transpose).features
        assert base_map(loaded) is not None
        with pytest.raises(ValueError, match="read-only"):
            loaded[0, 0] = 1


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_transpose_turns_columns_into_rows(tmp_path, suffix):
    matrix = some_rows(np.random.default_rng(4))
    writers = {".npy": write_npy, ".npz": write_npz, ".h5": write_h5}
    path = writers[suffix](tmp_path / "features", np.ascontiguousarray(matrix.T))
    np.testing.assert_array_equal(load(path, transpose=True).features, matrix)
    assert load(path).features.shape == (5, 12)


def test_a_suffix_in_capitals_is_the_same_kind(tmp_path):
    matrix = some_rows(np.random.default_rng(5))
    write_npy(tmp_path / "features", matrix).rename(tmp_path / "FEATURES.NPY")
    np.testing.assert_array_equal(load(str(tmp_path / "FEATURES.NPY")).features, matrix)


def test_labels_of_an_npz_file_come_with_the_features_and_other_files_have_none(tmp_path):
    matrix = some_rows(np.random.default_rng(6))
    np.savez(tmp_path / "both.npz", features=matrix, labels=np.arange(12) % 3)
    np.testing.assert_array_equal(load(tmp_path / "both.npz").labels, np.arange(12) % 3)
    assert load(write_npz(tmp_path / "features", matrix)).labels is None
    assert load(write_npy(tmp_path / "features", matrix)).labels is None


@pytest.mark.parametrize("userblock", [0, 512], ids=["HDF5", "with Matlab's user block"])
def test_an_hdf5_dataset_in_one_piece_is_memory_mapped_and_a_compressed_one_is_read(tmp_path, userblock):
    rows = np.random.default_rng(9).standard_normal((7, 5)).astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=userblock) as archive:
        archive["features"] = rows
        archive.create_dataset("small", data=rows, compression="gzip")
    mapped, read = load(tmp_path / "x.h5").features, load(f"{tmp_path / 'x.h5'}::small").features
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert not isinstance(read, np.memmap)
    np.testing.assert_array_equal(mapped, rows)
    np.testing.assert_array_equal(read, rows)


def test_owners_are_read_from_an_npy_file(tmp_path):
    np.save(tmp_path / "owners.npy", np.array([0, 0, 1]))
    np.testing.assert_array_equal(load_owners(str(tmp_path / "owners.npy")), [0, 0, 1])


@pytest.mark.parametrize("write", [write_h5, write_h5_with_one_matrix, write_mat], ids=["h5", "hdf5", "mat"])
def test_where_h5py_is_missing_only_its_files_are_refused_and_the_extra_is_named(tmp_path, monkeypatch, write):
    matrix = some_rows(np.random.default_rng(7))
    file = write(tmp_path / "features", matrix)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[hdf5\]'"):
        load(file)
    np.testing.assert_array_equal(load(write_npy(tmp_path / "features", matrix)).features, matrix)
