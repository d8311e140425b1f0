"""Index directories that do not open: missing, unfinished, foreign, too new, or with a broken manifest or array."""

import numpy as np
import pytest
from tests.support.damage import (
    REMEDY,
    both,
    change_array,
    change_bytes,
    drop_at,
    forged_header,
    make_directory,
    overwrite,
    put,
    remove,
    save_plainly,
    set_at,
    sign_again,
)
from tests.support.data import clusters

from suffuse import Index, IndexBroken, IndexExists, IndexMissing, IndexTooNew, Params, build, verify
from suffuse.store.manifest import ITEMS_FILE, MANIFEST

MEAN, PROJECTION, OFFSETS = "whitening_mean.npy", "whitening_projection.npy", "item_offsets.npy"


def swapped(array):
    return array.astype(array.dtype.newbyteorder(">"))


def shorter(array):
    return array[:-1]


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
    "of 2 MB": (
        change_bytes(MANIFEST, lambda text: text + b" " * 2**21),
        r"has 2\d{6} bytes, far too many; copy or build",
    ),
    "version 0": (
        set_at("version", value=0),
        "has version 0, expected a whole number from 1; copy or build the index again",
    ),
    "version x": (set_at("version", value="x"), "has version 'x', expected a whole number from 1; copy or build"),
    "version true": (set_at("version", value=True), "has version True, expected a whole number from 1; copy or build"),
    "version missing": (drop_at("version"), "has version None, expected a whole number from 1; copy or build"),
    "no params": (drop_at("params"), r"has no proper 'params' \(found None\); copy or build the index again"),
    "params a list": (
        set_at("params", value=[]),
        r"has no proper 'params' \(found \[\]\); copy or build the index again",
    ),
    "a parameter missing": (drop_at("params", "gamma"), "has bad params: parameter 'gamma' is missing; copy or build"),
    "unknown parameter": (set_at("params", "beta", value=1), "has bad params: unknown parameter 'beta'; known are"),
    "alpha 1": (
        set_at("params", "alpha", value=1),
        r"has bad params: alpha must be .*, got 1; copy or build the index again",
    ),
    "gamma huge": (set_at("params", "gamma", value=10**400), r"has bad params: gamma must be a number above 0"),
    "counts a number": (
        set_at("counts", value=3),
        r"has no proper 'counts' \(found 3\); copy or build the index again",
    ),
    "a count missing": (drop_at("counts", "entries"), r"has no proper count of entries \(found None\); copy or build"),
    "a count of text": (
        set_at("counts", "images", value="20"),
        r"has no proper count of images \(found '20'\); copy or build",
    ),
    "a count below 0": (
        set_at("counts", "entries", value=-1),
        r"has no proper count of entries \(found -1\); copy or build",
    ),
    "no elements": (
        set_at("counts", "elements", value=0),
        r"has no proper count of elements \(found 0\); copy or build",
    ),
    "huge count": (set_at("counts", "images", value=10**30), r"has no proper count of images \(found 1000"),
    "path upwards": (set_at("files", "../x.npy", value={}), r"names a file '\.\./x\.npy' that no index has; do not"),
    "absolute path": (set_at("files", "/etc/passwd", value={}), "names a file '/etc/passwd' that no index has; do not"),
    "foreign file": (set_at("files", "x.npy", value={}), r"names a file 'x\.npy' that no index has; do not trust"),
    "files a list": (set_at("files", value=[]), r"has no proper 'files' \(found \[\]\); copy or build the index again"),
    "file not described": (
        set_at("files", "rows.npy", value=3),
        r"does not describe rows\.npy; copy or build the index again",
    ),
    "no hash": (drop_at("files", "rows.npy", "sha256"), r"has no sha256 of rows\.npy; copy or build the index again"),
    "file not named": (drop_at("files", "rows.npy"), r"does not name rows\.npy; copy or build the index again"),
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
    "other byte order": (
        save_plainly("features.npy", swapped),
        r"features\.npy holds >f4 .* never writes; copy or build",
    ),
    "objects": (
        save_plainly("rows.npy", lambda array: array.astype(object)),
        r"rows\.npy holds object .*; copy or build",
    ),
    "negative shape": (
        forged_header("rows.npy", "<i4", (-2, 0)),
        r"rows\.npy holds int32 of shape \(-2, 0\) .*; copy or build",
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
        r"manifest\.json has whiten=6, but names no whitening_mean\.npy; copy or build the index again",
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


@pytest.mark.parametrize(("kind", "name", "case"), BROKEN_ON_OPENING, ids=[name for _, name, _ in BROKEN_ON_OPENING])
def test_a_broken_index_does_not_open(index_copy, kind, name, case):
    damage, message = case
    damage(index_copy)
    for use in (Index.open, verify):
        with pytest.raises(kind, match=message) as refusal:
            use(index_copy)
        assert type(refusal.value) is kind
        assert REMEDY.search(str(refusal.value))


def test_there_is_no_index_where_nothing_or_something_else_is(tmp_path):
    with pytest.raises(IndexMissing, match=r"there is no index at .*nothing; build one first, or give another path"):
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


def test_a_build_does_not_replace_what_is_not_an_index(tmp_path, index_copy):
    features = clusters(np.random.default_rng(33), 40, 8)
    (index_copy / MANIFEST).unlink()
    with pytest.raises(IndexExists, match="is not a sound index, so it is not replaced"):
        build(features, index_copy, force=True)
    assert (index_copy / "features.npy").exists()
