"""Broken feature files: each is refused by an error that names the file and says what to do, and none crashes."""

import contextlib
import struct
import zipfile

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.damage import REMEDY, npy_header

from suffuse import InvalidInput, SuffuseError, build
from suffuse.core import Damaged
from suffuse.store.feature_files import load, load_owners
from suffuse.store.files import map_array

GOOD = np.arange(1.0, 25.0, dtype=np.float32).reshape(6, 4)


def with_value(value, dtype=np.float32):
    matrix = GOOD.astype(dtype)
    matrix[3, 2] = value
    return matrix


def with_zero_row():
    matrix = GOOD.copy()
    matrix[4] = 0
    return matrix


def npy(array, **options):
    return lambda path: np.save(path, array, **options)


def raw(content):
    return lambda path: path.write_bytes(content)


def npy_bytes(array=GOOD):
    return npy_header(array.dtype.str, array.shape) + array.tobytes()


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def damaged_zip(path):
    np.savez(path, features=GOOD)
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF  # inside the data: the checksum no longer fits
    path.write_bytes(content)


def truncated_zip(path):
    np.savez(path, features=GOOD)
    path.write_bytes(path.read_bytes()[:-30])


def damaged_compressed_zip(path):
    np.savez_compressed(path, features=GOOD)
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(content)


def zip_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", "not an array")


def empty_zip(path):
    with zipfile.ZipFile(path, "w"):
        pass


def npy_named_npz(path):
    with path.open("wb") as stream:
        np.save(stream, GOOD)


def npz_named_npy(path):
    with path.open("wb") as stream:
        np.savez(stream, features=GOOD)


def fvecs(*rows):
    return raw(b"".join(struct.pack(f"<i{len(values)}f", count, *values) for count, values in rows))


def h5(**datasets):
    def write(path):
        with h5py.File(path, "w") as archive:
            for name, data in datasets.items():
                archive[name.replace("__", "/")] = data

    return write


def truncated_h5(path):
    h5(features=np.ones((500, 20)))(path)
    path.write_bytes(path.read_bytes()[:4000])


def nothing(path):
    """Write no file."""


def old_mat(path):
    scipy.io.savemat(path, {"X": GOOD})


BROKEN_FEATURES = {
    "nan": ("a.npy", npy(with_value(np.nan)), "row 3 of features holds nan; remove the row or extract it again"),
    "inf": ("a.npy", npy(with_value(np.inf)), "row 3 of features holds inf; remove the row"),
    "inf in float16": ("a.npy", npy(with_value(-np.inf, np.float16)), "row 3 of features holds -inf"),
    "nan in fvecs": ("a.fvecs", fvecs((2, [1, 2]), (2, [np.nan, 1])), "row 1 of features holds nan"),
    "zero row": ("a.npy", npy(with_zero_row()), "row 4 of features is all zeros and has no direction; remove"),
    "one dimension": ("a.npy", npy(GOOD[0]), r"a\.npy must have two dimensions .*found shape \(4,\)"),
    "three dimensions": ("a.npy", npy(GOOD[None]), r"a\.npy must have two dimensions .*found shape \(1, 6, 4\)"),
    "no dimension": ("a.npy", npy(np.float32(3)), r"a\.npy must have two dimensions .*found shape \(\)"),
    "empty file": ("a.npy", raw(b""), r"a\.npy is empty \(0 bytes\); write the features again"),
    "no rows": ("a.npy", npy(GOOD[:0]), r"a\.npy has 0 rows; at least 2 are needed"),
    "one row": ("a.npy", npy(GOOD[:1]), r"a\.npy has 1 rows; at least 2 are needed"),
    "no columns": ("a.npy", npy(GOOD[:, :0]), r"a\.npy has rows without values, shape \(6, 0\)"),
    "objects": ("a.npy", npy(GOOD.astype(object), allow_pickle=True), r"a\.npy cannot be read: .*; write it again"),
    "pickle": ("a.npy", raw(b"\x80\x04N."), r"a\.npy is not a \.npy file but something that begins with"),
    "int64": ("a.npy", npy(GOOD.astype(np.int64)), r"a\.npy has values of type int64; use one of .*astype"),
    "bool": ("a.npy", npy(GOOD > 3), r"a\.npy has values of type bool; use one of float16"),
    "complex": ("a.npy", npy(GOOD.astype(complex)), r"a\.npy has values of type complex128; use one of"),
    "strings": ("a.npy", npy(GOOD.astype(str)), r"a\.npy has values of type <U\d+; use one of"),
    "records": ("a.npy", npy(np.zeros((3, 2), "f4,f4")), r"a\.npy has values of type .*; use one of"),
    "truncated data": ("a.npy", raw(npy_bytes()[:-10]), r"a\.npy cannot be read: .*; write it again"),
    "truncated header": ("a.npy", raw(npy_bytes()[:40]), r"a\.npy cannot be read: .*; write it again"),
    "garbage header": ("a.npy", raw(npy_bytes().replace(b"{", b"[")), r"a\.npy cannot be read: .*; write it again"),
    "open bracket": ("a.npy", raw(npy_bytes().replace(b", }", b",  ")), r"a\.npy cannot be read: .*; write it again"),
    "huge shape": ("a.npy", raw(npy_bytes().replace(b"(6, 4)", b"(6, 1" + b"0" * 30 + b")")), r"a\.npy cannot be read"),
    "text": ("a.npy", raw(b"0.1 0.2 0.3"), r"a\.npy is not a \.npy file but something that begins with b'0.1 0.2 '"),
    "npz renamed": ("a.npy", npz_named_npy, r"a\.npy is not a \.npy file but a zip archive, perhaps \.npz; rename it"),
    "npy renamed": ("a.npz", npy_named_npz, r"a\.npz is not an \.npz archive but a \.npy file; rename it"),
    "npz without features": ("a.npz", npz(x=GOOD, y=GOOD), r"a\.npz has no array 'features', it holds x, y; choose"),
    "npz without anything": ("a.npz", empty_zip, r"a\.npz has no array 'features', it holds nothing; choose"),
    "npz of text": ("a.npz", zip_of_text, r"a\.npz: 'features' is not an array; write it again with numpy\.savez"),
    "npz with objects": (
        "a.npz",
        npz(features=GOOD.astype(object)),
        r"a\.npz cannot be read: it holds Python objects, which are never",
    ),
    "few labels": ("a.npz", npz(features=GOOD, labels=np.arange(5)), r"a\.npz: 6 features but labels of shape \(5,\)"),
    "wide labels": (
        "a.npz",
        npz(features=GOOD, labels=GOOD),
        r"6 features but labels of shape \(6, 4\); one label per",
    ),
    "wrong checksum": ("a.npz", damaged_zip, r"a\.npz cannot be read: Bad CRC-32 .*; write it again"),
    "truncated zip": ("a.npz", truncated_zip, r"a\.npz cannot be read: File is not a zip file; write it again"),
    "zip that does not inflate": ("a.npz", damaged_compressed_zip, r"a\.npz cannot be read: .*; write it again"),
    "fvecs of a wrong size": (
        "a.fvecs",
        raw(b"\2\0\0\0" + b"\0" * 9),
        r"a\.fvecs is not \.fvecs: 13 bytes do not hold",
    ),
    "fvecs of one byte": (
        "a.fvecs",
        raw(b"\2"),
        r"a\.fvecs is not \.fvecs: 1 bytes do not hold rows of 2 values; write",
    ),
    "uneven fvecs": (
        "a.fvecs",
        fvecs((2, [1, 2]), (3, [1, 1])),
        r"a\.fvecs: row 1 says it has 3 values, the first has 2",
    ),
    "negative fvecs": ("a.fvecs", fvecs((-2, [1, 2])), r"a\.fvecs is not \.fvecs: 12 bytes do not hold rows of -2"),
    "fvecs without values": (
        "a.fvecs",
        fvecs((0, []), (0, [])),
        r"a\.fvecs is not \.fvecs: 8 bytes do not hold rows of 0",
    ),
    "not HDF5": ("a.h5", raw(b"nonsense"), r"a\.h5 is not an HDF5 file; write it again"),
    "truncated HDF5": ("a.h5", truncated_h5, r"a\.h5 cannot be read: .*; write it again"),
    "several datasets": ("a.h5", h5(x=GOOD, g__y=GOOD), r"a\.h5 has no dataset 'features', it holds g/y, x; choose"),
    "no dataset": ("a.h5", h5(), r"a\.h5 has no dataset 'features', it holds no matrix; choose with a\.h5::NAME"),
    "a group": (
        "a.h5",
        h5(features__a=GOOD, features__b=GOOD),
        r"a\.h5 has no dataset 'features', it holds features/a",
    ),
    "HDF5 vector": ("a.h5", h5(features=GOOD[0]), r"a\.h5 must have two dimensions .*found shape \(4,\)"),
    "HDF5 int64": ("a.h5", h5(features=GOOD.astype(np.int64)), r"a\.h5 has values of type int64; use one of"),
    "HDF5 without data": (
        "a.h5",
        h5(features=h5py.Empty("f4")),
        r"a\.h5 has no dataset 'features', it holds no matrix",
    ),
    "old Matlab": ("a.mat", old_mat, r"a\.mat is not an HDF5 file; in Matlab, save with the option '-v7\.3'"),
    "unknown suffix": (
        "a.parquet",
        raw(b"PAR1"),
        r"a\.parquet: unknown kind of file '\.parquet'; known are \.npy, \.npz",
    ),
    "no suffix": ("a", raw(b"x"), r"a: unknown kind of file ''; known are \.npy"),
    "a directory": ("a.npy", lambda path: path.mkdir(), r"a\.npy is a directory; give the path of a feature file"),
    "missing": ("a.npy", nothing, r"there is no file .*a\.npy; give the path of a feature file"),
}


@pytest.mark.parametrize("case", BROKEN_FEATURES)
def test_a_broken_feature_file_is_refused_and_leaves_no_index(tmp_path, case):
    name, write, message = BROKEN_FEATURES[case]
    write(tmp_path / name)
    with pytest.raises(InvalidInput, match=message) as refusal:
        build(tmp_path / name, tmp_path / "x.index")
    assert REMEDY.search(str(refusal.value))
    assert "allow_pickle" not in str(refusal.value)
    assert not (tmp_path / "x.index").exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("a.h5::nothing", r"a\.h5 has no dataset 'nothing', it holds g/y, x; choose with a\.h5::NAME"),
        ("a.h5::g", r"a\.h5 has no dataset 'g', it holds g/y, x"),
        ("a.npz::nothing", r"a\.npz has no array 'nothing', it holds x; choose with a\.npz::NAME"),
        ("a.npy::x", r"a\.npy holds one array only; leave out '::x'"),
        ("a.fvecs::x", r"a\.fvecs holds one array only; leave out '::x'"),
    ],
)
def test_a_dataset_that_is_not_there_is_refused(tmp_path, choice, message):
    h5(x=GOOD, g__y=GOOD)(tmp_path / "a.h5")
    npz(x=GOOD)(tmp_path / "a.npz")
    npy(GOOD)(tmp_path / "a.npy")
    fvecs((2, [1, 2]), (2, [2, 1]))(tmp_path / "a.fvecs")
    with pytest.raises(InvalidInput, match=message):
        load(f"{tmp_path}/{choice}")


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("o.npy", npz_named_npy, r"o\.npy is not a \.npy file but a zip archive"),
        ("o.npy", raw(b"0 0 1 1"), r"o\.npy is not a \.npy file but something that begins with b'0 0 1 1'"),
        ("o.npy", raw(b""), r"o\.npy is not a \.npy file but something that begins with b''"),
        (
            "o.npy",
            npy(np.array([0, None])),
            r"o\.npy cannot be read: it holds Python objects, which are never loaded; write it again",
        ),
        ("o.npy", raw(npy_bytes()[:-10]), r"o\.npy cannot be read: .*; write it again"),
        ("o.npy", raw(npy_bytes().replace(b", }", b",  ")), r"o\.npy cannot be read: .*; write it again"),
        ("o.npy", nothing, r"there is no file .*o\.npy; give a \.npy file with the image of each region"),
    ],
)
def test_a_broken_file_of_owners_is_refused(tmp_path, name, write, message):
    write(tmp_path / name)
    with pytest.raises(InvalidInput, match=message) as refusal:
        load_owners(tmp_path / name)
    assert "allow_pickle" not in str(refusal.value)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A file to damage again and again."""
    return tmp_path_factory.mktemp("damaged") / "a.npy"


@settings(deadline=None, max_examples=300)
@given(place=st.integers(0, 127), byte=st.integers(0, 255), cut=st.integers(0, 300))
@pytest.mark.filterwarnings("ignore")  # numpy's own, on headers that look like old ones
def test_any_damage_to_a_header_gives_an_array_or_a_clear_error(scratch, place, byte, cut):
    content = bytearray(npy_bytes())
    content[place] = byte
    scratch.write_bytes(content[: max(cut, 1)])
    for read in (load, load_owners, map_array):
        with contextlib.suppress(SuffuseError, Damaged):
            read(scratch)
