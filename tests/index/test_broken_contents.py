"""Indexes that open but hold what cannot be: verifying finds it, and a search refuses it and does not crash."""

import contextlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.damage import change_array, change_bytes, put, set_at, sign_again
from tests.support.data import clusters

from suffuse import Index, IndexBroken, verify
from suffuse.store.files import write_array
from suffuse.store.manifest import ITEMS_FILE, read_manifest, write_manifest

QUERIES = clusters(np.random.default_rng(31), 5, 8)
HASH = (
    r"has the hash [0-9a-f]{12}\.\.\., the manifest says [0-9a-f]{12}\.\.\.: it was changed or damaged; copy or build"
)


def backwards(indptr):
    indptr[1:-1] = indptr[1:-1][::-1].copy()


BROKEN_ON_VERIFYING = {
    "a flipped value": (
        change_bytes("values.npy", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        f"values.npy {HASH}",
    ),
    "another feature": (change_array("features.npy", put((3, 3), 0.5)), f"features.npy {HASH}"),
    "another owner": (change_array("owners.npy", put(3, 7)), f"owners.npy {HASH}"),
    "another name": (change_bytes(ITEMS_FILE, lambda text: text.replace(b"image", b"imago")), f"items.jsonl {HASH}"),
    "another hash": (set_at("files", "rows.npy", "sha256", value="0" * 64), f"rows.npy {HASH}"),
    "indptr backwards": (
        change_array("indptr.npy", backwards, sign=True),
        r"indptr\.npy goes backwards; copy or build the",
    ),
    "rows too large": (
        change_array("rows.npy", put(5, 60), sign=True),
        r"rows\.npy holds an id outside 0\.\.59; copy or build",
    ),
    "rows below 0": (
        change_array("rows.npy", put(5, -1), sign=True),
        r"rows\.npy holds an id outside 0\.\.59; copy or build",
    ),
    "owners too large": (
        change_array("owners.npy", put(5, 20), sign=True),
        r"owners\.npy holds an id outside 0\.\.19;",
    ),
    "owners below 0": (change_array("owners.npy", put(5, -1), sign=True), r"owners\.npy holds an id outside 0\.\.19;"),
}


@pytest.mark.parametrize("case", BROKEN_ON_VERIFYING)
def test_damage_that_opening_cannot_see_is_found_by_verifying(index_copy, case):
    damage, message = BROKEN_ON_VERIFYING[case]
    damage(index_copy)
    Index.open(index_copy)
    with pytest.raises(IndexBroken, match=message):
        verify(index_copy)


ALL = slice(None)
NO_SUCH_ID = (
    r"(rows\.npy or owners\.npy holds ids that do not exist|owners\.npy holds an id outside 0\.\.19); copy or build the"
)
OUTSIDE = r"indptr\.npy points outside the columns; copy or build the index again"

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
def test_a_search_that_meets_an_id_that_cannot_be_is_refused(index_copy, case):
    damage, message = BROKEN_ON_SEARCHING[case]
    damage(index_copy)
    sign_again(index_copy)  # else the sums of its pages would tell first
    index = Index.open(index_copy)
    for seeds in (3, 60):
        with pytest.raises(IndexBroken, match=message):
            index.search(QUERIES, seeds=seeds)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_whatever_the_columns_hold_a_search_gives_images_that_exist_or_a_clear_error(
    sound_index, tmp_path_factory, data
):
    path = shutil.copytree(sound_index, tmp_path_factory.mktemp("any") / "x.index")
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


def test_damaged_names_are_found_when_they_are_asked_for(index_copy):
    change_bytes("items.jsonl", lambda text: text.replace(b'{"name": "image 7"}', b'{"name": "image 7" '))(index_copy)
    sign_again(index_copy)
    index = Index.open(index_copy)
    assert index.items.name(6) == "image 6"
    with pytest.raises(
        IndexBroken, match=r"items\.jsonl is damaged at the line of image 7; copy or build the index again"
    ):
        index.items.name(7)


def test_the_sound_index_is_sound(sound_index):
    """Else every test of a damaged copy could pass for a reason of its own."""
    assert verify(sound_index) > 0
    hits = Index.open(sound_index).search(QUERIES, top=20)
    assert sorted(hits.ids[0]) == list(range(20))
    manifest = read_manifest(sound_index)
    write_manifest(sound_index, manifest)
    assert read_manifest(sound_index) == manifest


SEARCH = """
import sys, numpy as np, suffuse
index = suffuse.Index.open(sys.argv[1])
queries = np.random.default_rng(31).normal(size=(5, 8))
for method in suffuse.index.search.METHODS:
    for top in (3, len(index)):
        try:
            hits = index.search(queries, top, seeds=60, method=method)
            assert hits.ids.shape == (5, top) and hits.ids.min() >= 0 and hits.ids.max() < len(index)
        except suffuse.SuffuseError as error:
            assert "features.npy" in str(error), error
print("survived")
"""


@pytest.mark.parametrize(("value", "where"), [(np.inf, ALL), (np.nan, 7)], ids=["inf in all rows", "nan in one row"])
def test_features_that_are_no_numbers_do_not_crash_a_search(index_copy, value, where):
    change_array("features.npy", put(where, value))(index_copy)
    # In another process: a crash here would take all the other tests along.
    done = subprocess.run([sys.executable, "-c", SEARCH, index_copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.parametrize("owner", [20, -1, 2**31 - 1])
def test_owners_that_cannot_be_are_refused_by_the_plain_ranking_too(index_copy, owner):
    change_array("owners.npy", put(7, owner))(index_copy)
    with pytest.raises(IndexBroken, match=r"owners\.npy"):
        Index.open(index_copy).search(QUERIES, method="knn")
