"""Broken files: each is refused by a Suffuse error that names the file and says what to do, and none crashes."""

import contextlib
import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from data import clusters
from suffuse import (
    Index,
    IndexBroken,
    IndexExists,
    IndexMissing,
    IndexTooNew,
    InvalidInput,
    Params,
    SuffuseError,
    build,
    verify,
)
from suffuse.arrays import map_array, write_array
from suffuse.features import load, load_owners
from suffuse.store import ITEMS_FILE, MANIFEST, describe_files, read_manifest, write_manifest

REMEDY = re.compile(
    r"again|must have|save with|upgrade|remove|choose|give|use |ask for|do not trust|needed|known are|per row|build"
)

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
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n" + array.tobytes()


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
    "one dimension": ("a.npy", npy(GOOD[0]), r"a\.npy must have two dimensions .*found shape \(4,\); for one"),
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
        with contextlib.suppress(SuffuseError):
            read(scratch)


# ---- index directories ----


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A sound regional index with whitening and names."""
    rng = np.random.default_rng(30)
    path = tmp_path_factory.mktemp("good") / "good.index"
    params = Params(k=8, truncation=30, keep=12, whiten=6, pool="none")
    owners = np.arange(60) % 20
    build(clusters(rng, 60, 8), path, params, owners=owners, names=[f"image {id}" for id in range(20)])
    return path


QUERIES = clusters(np.random.default_rng(31), 5, 8)


def edit(change):
    """Change manifest.json by a function of its content."""

    def damage(directory):
        content = json.loads((directory / MANIFEST).read_text())
        changed = change(content)
        (directory / MANIFEST).write_text(json.dumps(content if changed is None else changed))

    return damage


def set_at(*keys, value):
    """Set content[keys[0]][keys[1]]... in the manifest."""

    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return edit(change)


def drop_at(*keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return edit(change)


def overwrite(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def change_bytes(name, change):
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes()))


def change_array(name, change, *, sign=False):
    """Replace an array; with `sign`, the manifest describes the new one, as a forger's would."""

    def damage(directory):
        array = np.load(directory / name)
        changed = change(array)
        write_array(directory / name, array if changed is None else changed)
        if sign:
            sign_again(directory)

    return damage


def sign_again(directory):
    """Make the manifest describe the files that are there, whatever they hold."""
    content = json.loads((directory / MANIFEST).read_text())
    content["files"] = describe_files(directory)
    (directory / MANIFEST).write_text(json.dumps(content))


def save_plainly(name, change):
    """Replace an array by numpy's own writer, and describe it in the manifest."""

    def damage(directory):
        np.save(directory / name, change(np.load(directory / name)), allow_pickle=True)

    return damage


def put(where, value):
    def change(array):
        array[where] = value

    return change


def remove(name):
    return lambda directory: (directory / name).unlink()


def both(*damages):
    def damage(directory):
        for one in damages:
            one(directory)

    return damage


def forged_header(name, descr, shape):
    """A .npy file whose header lies, without data."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return overwrite(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n")


def swapped(array):
    return array.astype(array.dtype.newbyteorder(">"))


def shorter(array):
    return array[:-1]


def make_directory(name):
    return lambda directory: (directory / name).mkdir()


def backwards(indptr):
    indptr[1:-1] = indptr[1:-1][::-1].copy()


MEAN, PROJECTION, OFFSETS = "whitening_mean.npy", "whitening_projection.npy", "item_offsets.npy"
HASH = (
    r"has the hash [0-9a-f]{12}\.\.\., the manifest says [0-9a-f]{12}\.\.\.: it was changed or damaged; copy or build"
)

NOT_AN_INDEX = {
    "no manifest": (
        remove(MANIFEST),
        r"has no manifest\.json: it is not an index, or its build was not finished; build",
    ),
    "manifest a directory": (both(remove(MANIFEST), make_directory(MANIFEST)), r"has no manifest\.json: it is not an"),
    "manifest a list": (overwrite(MANIFEST, b"[]"), r"manifest\.json was not written by Suffuse .*; is it another pro"),
    "foreign format": (set_at("format", value="annoy"), r"manifest\.json was not written by Suffuse"),
}

TOO_NEW = {
    "newer version": (
        set_at("version", value=99),
        r"has format version 99, .* upgrade Suffuse .*written by suffuse 0\.",
    )
}

BROKEN_MANIFEST = {
    "not JSON": (overwrite(MANIFEST, b"{"), r"cannot be read: .*; copy or build the index again"),
    "empty": (overwrite(MANIFEST, b""), r"cannot be read: .*; copy or build the index again"),
    "binary": (overwrite(MANIFEST, b"\x80\xff"), r"cannot be read: .*; copy or build the index again"),
    "nested": (overwrite(MANIFEST, b"[" * 200_000), r"cannot be read: .*; copy or build the index again"),
    "truncated": (change_bytes(MANIFEST, lambda text: text[:-20]), r"cannot be read: .*; copy or build the index"),
    "of 2 MB": (change_bytes(MANIFEST, lambda text: text + b" " * 2**21), r"has 2\d{6} bytes, far too many; build"),
    "version 0": (set_at("version", value=0), "has version 0, expected a whole number from 1; build the index again"),
    "version x": (set_at("version", value="x"), "has version 'x', expected a whole number from 1; build"),
    "version true": (set_at("version", value=True), "has version True, expected a whole number from 1; build"),
    "version missing": (drop_at("version"), "has version None, expected a whole number from 1; build"),
    "no params": (drop_at("params"), r"has no proper 'params' \(found None\); build the index again"),
    "params a list": (set_at("params", value=[]), r"has no proper 'params' \(found \[\]\); build the index again"),
    "a parameter missing": (drop_at("params", "gamma"), "has bad params: parameter 'gamma' is missing; build"),
    "unknown parameter": (set_at("params", "beta", value=1), "has bad params: unknown parameter 'beta'; known are"),
    "alpha 1": (set_at("params", "alpha", value=1), r"has bad params: alpha must be .*, got 1; build the index again"),
    "gamma huge": (set_at("params", "gamma", value=10**400), r"has bad params: gamma must be a number above 0"),
    "counts a number": (set_at("counts", value=3), r"has no proper 'counts' \(found 3\); build the index again"),
    "a count missing": (drop_at("counts", "entries"), r"has no proper count of entries \(found None\); build"),
    "a count of text": (set_at("counts", "images", value="20"), r"has no proper count of images \(found '20'\); build"),
    "a count below 0": (set_at("counts", "entries", value=-1), r"has no proper count of entries \(found -1\); build"),
    "no elements": (set_at("counts", "elements", value=0), r"has no proper count of elements \(found 0\); build"),
    "huge count": (set_at("counts", "images", value=10**30), r"has no proper count of images \(found 1000"),
    "path upwards": (set_at("files", "../x.npy", value={}), r"names a file '\.\./x\.npy' that no index has; do not"),
    "absolute path": (set_at("files", "/etc/passwd", value={}), "names a file '/etc/passwd' that no index has; do not"),
    "foreign file": (set_at("files", "x.npy", value={}), r"names a file 'x\.npy' that no index has; do not trust"),
    "files a list": (set_at("files", value=[]), r"has no proper 'files' \(found \[\]\); build the index again"),
    "file not described": (set_at("files", "rows.npy", value=3), r"does not describe rows\.npy; build the index again"),
    "no hash": (drop_at("files", "rows.npy", "sha256"), r"has no sha256 of rows\.npy; build the index again"),
    "file not named": (drop_at("files", "rows.npy"), r"does not name rows\.npy; build the index again"),
    "owners not named": (drop_at("files", "owners.npy"), r"counts 20 images and 60 elements, but names no owners\.npy"),
}

BROKEN_ARRAYS = {
    "other counts": (
        set_at("counts", "elements", value=59),
        r"features\.npy has the shape .*, the counts say \(59, 6\)",
    ),
    "no dtype": (drop_at("files", "rows.npy", "dtype"), r"rows\.npy holds int32 .*, the manifest says None"),
    "a file missing": (remove("values.npy"), r"values\.npy is missing; copy or build the index again"),
    "owners missing": (remove("owners.npy"), r"owners\.npy is missing; copy or build the index again"),
    "a directory": (both(remove("rows.npy"), make_directory("rows.npy")), r"rows\.npy cannot be read: .*directory"),
    "empty": (overwrite("rows.npy", b""), r"rows\.npy cannot be read: .*; copy or build the index again"),
    "text": (overwrite("rows.npy", b"1 2 3 4 5 6 7"), r"rows\.npy cannot be read: .*; copy or build the index again"),
    "a pickle": (overwrite("rows.npy", b"\x80\x04N." * 9), r"rows\.npy cannot be read: .*; copy or build the index"),
    "truncated": (
        change_bytes("rows.npy", lambda data: data[:-1]),
        r"rows\.npy has \d+ bytes, its header promises \d+;",
    ),
    "extended": (
        change_bytes("values.npy", lambda data: data + b"\0"),
        r"values\.npy has \d+ bytes, its header promises",
    ),
    "header cut": (change_bytes("rows.npy", lambda data: data[:30]), r"rows\.npy cannot be read: .*; copy or build"),
    "header open": (
        change_bytes("rows.npy", lambda data: data.replace(b"}", b" ")),
        r"rows\.npy cannot be read: .*; copy",
    ),
    "npy version 2": (
        change_bytes("rows.npy", lambda data: data[:6] + b"\2" + data[7:]),
        r"rows\.npy has \.npy version",
    ),
    "wrong dtype": (change_array("rows.npy", np.int64), r"rows\.npy holds int64, expected int32; copy or build"),
    "wrong dtype signed": (
        change_array("rows.npy", np.int64, sign=True),
        r"rows\.npy holds int64, expected int32; copy",
    ),
    "other dtype": (change_array("values.npy", np.float32), r"values\.npy holds float32 .*, the manifest says float16"),
    "wrong shape": (
        change_array("rows.npy", shorter),
        r"rows\.npy holds int32 of shape .*, the manifest says int32 of",
    ),
    "wrong shape signed": (change_array("rows.npy", shorter, sign=True), r"rows\.npy has the shape .*, the counts say"),
    "two dimensions": (
        change_array("rows.npy", lambda a: a[None], sign=True),
        r"rows\.npy has the shape \(1, \d+\), the",
    ),
    "fortran order": (
        save_plainly("features.npy", np.asfortranarray),
        r"features\.npy holds float32 .* in an order that",
    ),
    "other byte order": (save_plainly("features.npy", swapped), r"features\.npy holds >f4 .* never writes; build"),
    "objects": (save_plainly("rows.npy", lambda array: array.astype(object)), r"rows\.npy holds object .*; build"),
    "negative shape": (
        forged_header("rows.npy", "<i4", (-2, 0)),
        r"rows\.npy holds int32 of shape \(-2, 0\) .*; build",
    ),
    "shape that overflows": (forged_header("rows.npy", "<i4", (2**32, 2**32)), r"rows\.npy has 128 bytes, its header"),
    "values of no size": (forged_header("rows.npy", "|V0", (5,)), r"rows\.npy cannot be read: .*; copy or build"),
    "indptr ends early": (
        change_array("indptr.npy", put(-1, 3)),
        r"indptr\.npy runs from 0 to 3, expected 0 to \d+; copy",
    ),
    "indptr starts late": (
        change_array("indptr.npy", put(0, 3)),
        r"indptr\.npy runs from 3 to \d+, expected 0 to \d+; copy",
    ),
    "no mean": (
        both(remove(MEAN), sign_again),
        r"only one of whitening_mean\.npy and whitening_projection\.npy is there",
    ),
    "no whitening": (
        both(remove(MEAN), remove(PROJECTION), sign_again),
        r"manifest\.json has whiten=6, but names no whitening_mean\.npy; build the index again",
    ),
    "no projection": (
        both(remove(PROJECTION), sign_again),
        r"only one of whitening_mean\.npy and whitening_projection",
    ),
    "projection missing": (remove(PROJECTION), r"whitening_projection\.npy is missing; copy or build the index again"),
    "projection turned": (change_array(PROJECTION, np.transpose, sign=True), r"projection\.npy has the shape \(6, 8\)"),
    "mean a matrix": (
        change_array(MEAN, lambda a: a[:, None], sign=True),
        r"not fit whitening_mean\.npy of shape \(8, 1\)",
    ),
    "names truncated": (
        change_bytes(ITEMS_FILE, lambda text: text[:-3]),
        r"items\.jsonl has \d+ bytes, the manifest says",
    ),
    "names cut and signed": (both(overwrite(ITEMS_FILE, b"{}"), sign_again), r"items\.jsonl has 2 bytes, the manifest"),
    "names missing": (remove(ITEMS_FILE), r"items\.jsonl cannot be read: .*; copy or build the index again"),
    "names empty": (
        both(overwrite(ITEMS_FILE, b""), change_array(OFFSETS, np.zeros_like, sign=True)),
        r"items\.jsonl cannot be read: .*; copy or build the index again",
    ),
    "offsets missing": (
        both(remove(OFFSETS), sign_again),
        r"only one of items\.jsonl and item_offsets\.npy is there; co",
    ),
    "offsets short": (
        change_array(OFFSETS, shorter, sign=True),
        r"item_offsets\.npy has the shape \(20,\), the counts",
    ),
}

BROKEN_ON_OPENING = [
    *((IndexMissing, *case) for case in NOT_AN_INDEX.items()),
    *((IndexTooNew, *case) for case in TOO_NEW.items()),
    *(
        (IndexBroken, f"manifest {name}", (damage, rf"manifest\.json {message}"))
        for name, (damage, message) in BROKEN_MANIFEST.items()
    ),
    *((IndexBroken, f"array {name}", case) for name, case in BROKEN_ARRAYS.items()),
]


@pytest.fixture
def copy(good, tmp_path):
    """A copy of the sound index, to be damaged."""
    return shutil.copytree(good, tmp_path / "copy.index")


@pytest.mark.parametrize(("kind", "name", "case"), BROKEN_ON_OPENING, ids=[name for _, name, _ in BROKEN_ON_OPENING])
def test_a_broken_index_does_not_open(copy, kind, name, case):
    damage, message = case
    damage(copy)
    for use in (Index.open, verify):
        with pytest.raises(kind, match=message) as refusal:
            use(copy)
        assert type(refusal.value) is kind
        assert REMEDY.search(str(refusal.value))


BROKEN_ON_VERIFYING = {
    "a flipped value": (
        change_bytes("values.npy", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        f"values.npy {HASH}",
    ),
    "another feature": (change_array("features.npy", put((3, 3), 0.5)), f"features.npy {HASH}"),
    "another owner": (change_array("owners.npy", put(3, 7)), f"owners.npy {HASH}"),
    "another name": (change_bytes(ITEMS_FILE, lambda text: text.replace(b"image", b"imago")), f"items.jsonl {HASH}"),
    "another hash": (set_at("files", "rows.npy", "sha256", value="0" * 64), f"rows.npy {HASH}"),
    "indptr backwards": (change_array("indptr.npy", backwards, sign=True), r"indptr\.npy goes backwards; build the"),
    "rows too large": (
        change_array("rows.npy", put(5, 60), sign=True),
        r"rows\.npy holds an id outside 0\.\.59; build",
    ),
    "rows below 0": (change_array("rows.npy", put(5, -1), sign=True), r"rows\.npy holds an id outside 0\.\.59; build"),
    "owners too large": (
        change_array("owners.npy", put(5, 20), sign=True),
        r"owners\.npy holds an id outside 0\.\.19;",
    ),
    "owners below 0": (change_array("owners.npy", put(5, -1), sign=True), r"owners\.npy holds an id outside 0\.\.19;"),
}


@pytest.mark.parametrize("case", BROKEN_ON_VERIFYING)
def test_damage_that_opening_cannot_see_is_found_by_verifying(copy, case):
    damage, message = BROKEN_ON_VERIFYING[case]
    damage(copy)
    Index.open(copy)
    with pytest.raises(IndexBroken, match=message):
        verify(copy)


ALL = slice(None)
NO_SUCH_ID = r"rows\.npy or owners\.npy holds ids that do not exist; run suffuse verify, then copy the index again"
OUTSIDE = r"indptr\.npy points outside the columns; run suffuse verify, then copy the index again"

BROKEN_ON_SEARCHING = {
    "rows too large": (change_array("rows.npy", put(ALL, 60)), NO_SUCH_ID),
    "rows below 0": (change_array("rows.npy", put(ALL, -1)), NO_SUCH_ID),
    "rows far away": (change_array("rows.npy", put(ALL, 2**31 - 1)), NO_SUCH_ID),
    "owners too large": (change_array("owners.npy", put(ALL, 20)), NO_SUCH_ID),
    "owners below 0": (change_array("owners.npy", put(ALL, -1)), NO_SUCH_ID),
    "owners all different": (change_array("owners.npy", put(ALL, np.arange(60) * 10**7)), NO_SUCH_ID),
    "indptr backwards": (change_array("indptr.npy", backwards), OUTSIDE),
    "indptr below 0": (change_array("indptr.npy", put(slice(1, -1), -5)), OUTSIDE),
    "indptr far away": (change_array("indptr.npy", put(slice(1, -1), 2**62)), OUTSIDE),
}


@pytest.mark.parametrize("case", BROKEN_ON_SEARCHING)
def test_a_search_that_meets_an_id_that_cannot_be_is_refused(copy, case):
    damage, message = BROKEN_ON_SEARCHING[case]
    damage(copy)
    index = Index.open(copy)
    for seeds in (3, 60):
        with pytest.raises(IndexBroken, match=message):
            index.search(QUERIES, seeds=seeds)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_whatever_the_columns_hold_a_search_gives_images_that_exist_or_a_clear_error(good, tmp_path_factory, data):
    path = shutil.copytree(good, tmp_path_factory.mktemp("any") / "x.index")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for name in data.draw(st.sets(st.sampled_from(["rows.npy", "values.npy", "owners.npy", "indptr.npy"]), min_size=1)):
        array = np.load(path / name)
        places = rng.integers(1, len(array) - 1, size=data.draw(st.sampled_from([1, 3, 30])))
        size = data.draw(st.sampled_from([1, array.itemsize]))  # small steps, or anything at all
        noise = array.copy()
        noise.view(np.uint8).reshape(len(array), -1)[places, :size] = rng.integers(0, 256, size=(len(places), size))
        write_array(path / name, noise)
    index = Index.open(path)
    with contextlib.suppress(IndexBroken):
        hits = index.search(QUERIES, top=20, seeds=20)
        assert ((hits.ids >= 0) & (hits.ids < 20)).all()


def test_damaged_names_are_found_when_they_are_asked_for(copy):
    change_bytes("items.jsonl", lambda text: text.replace(b'{"name": "image 7"}', b'{"name": "image 7" '))(copy)
    index = Index.open(copy)
    assert index.items.name(6) == "image 6"
    with pytest.raises(IndexBroken, match=r"items\.jsonl is damaged at the line of image 7; copy the index again"):
        index.items.name(7)


def test_there_is_no_index_where_nothing_or_something_else_is(tmp_path):
    with pytest.raises(
        IndexMissing, match=r"there is no index at .*nothing; build one with: suffuse build FEATURES -o"
    ):
        Index.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexMissing, match=r"file is a file; an index is a directory with a manifest\.json"):
        Index.open(tmp_path / "file")
    with pytest.raises(IndexMissing, match=r"has no manifest\.json: it is not an index, or its build was not finished"):
        Index.open(str(tmp_path))


def test_an_unfinished_build_does_not_open(tmp_path):
    def stop(stage, done, total):
        if stage == "columns":
            raise KeyboardInterrupt

    path = tmp_path / "x.index"
    with pytest.raises(KeyboardInterrupt):
        build(clusters(np.random.default_rng(32), 40, 8), path, Params(k=8), progress=stop)
    left = tmp_path / "x.index.building"
    assert (left / "index" / "features.npy").exists()
    for unfinished in (left, left / "index"):
        with pytest.raises(IndexMissing, match=r"has no manifest\.json: .* or its build was not finished; build it"):
            Index.open(unfinished)
    with pytest.raises(IndexMissing, match="there is no index at"):
        Index.open(path)


def test_a_build_does_not_replace_what_is_not_an_index(tmp_path, copy):
    features = clusters(np.random.default_rng(33), 40, 8)
    (copy / MANIFEST).unlink()
    with pytest.raises(IndexExists, match="is not a sound index, so it is not replaced"):
        build(features, copy, force=True)
    assert (copy / "features.npy").exists()


def test_the_sound_index_is_sound(good):
    """Else every test above could pass for a reason of its own."""
    assert verify(good) > 0
    hits = Index.open(good).search(QUERIES, top=20)
    assert sorted(hits.ids[0]) == list(range(20))
    manifest = read_manifest(good)
    write_manifest(good, manifest)
    assert read_manifest(good) == manifest


SEARCH = """
import sys, numpy as np, suffuse
index = suffuse.Index.open(sys.argv[1])
queries = np.random.default_rng(31).normal(size=(5, 8))
for method in suffuse.online.METHODS:
    for top in (3, len(index)):
        try:
            hits = index.search(queries, top, seeds=60, method=method)
            assert hits.ids.shape == (5, top) and hits.ids.min() >= 0 and hits.ids.max() < len(index)
        except suffuse.SuffuseError as error:
            assert "features.npy" in str(error), error
print("survived")
"""


@pytest.mark.parametrize(("value", "where"), [(np.inf, ALL), (np.nan, 7)], ids=["inf in all rows", "nan in one row"])
def test_features_that_are_no_numbers_do_not_crash_a_search(copy, value, where):
    change_array("features.npy", put(where, value))(copy)
    # In another process: a crash here would take all the other tests along.
    done = subprocess.run([sys.executable, "-c", SEARCH, copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.parametrize("owner", [20, -1, 2**31 - 1])
def test_owners_that_cannot_be_are_refused_by_the_plain_ranking_too(copy, owner):
    change_array("owners.npy", put(7, owner))(copy)
    with pytest.raises(IndexBroken, match=r"owners\.npy"):
        Index.open(copy).search(QUERIES, method="knn")
