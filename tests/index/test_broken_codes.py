"""Coded columns that are damaged: an error or an answer, never a crash."""

import contextlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.damage import both, change_array, drop_at, put, remove, set_at
from tests.support.data import clusters

from suffuse import Index, IndexBroken, Params, build, verify
from suffuse.store.files import write_array

QUERIES = clusters(np.random.default_rng(31), 5, 8)


@pytest.fixture(scope="module", params=["images", "regions", "pooled"])
def coded_index(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("coded") / "sound.index"
    pool = "sum" if request.param == "pooled" else "none"
    owners = None if request.param == "images" else np.arange(120) % 60
    build(
        clusters(np.random.default_rng(30), 120, 8), path, Params(k=8, truncation=60, keep=40, pool=pool), owners=owners
    )
    return path


@pytest.fixture
def copy(coded_index, tmp_path):
    return shutil.copytree(coded_index, tmp_path / "copy.index")


def longer(array):
    return np.append(array, array[-1:])


NOT_OPENING = {
    "no codes": (drop_at("files", "codes.npy"), r"does not name codes\.npy; copy or build the index again"),
    "no scales": (drop_at("files", "scales.npy"), r"does not name scales\.npy; copy or build the index again"),
    "codes missing": (remove("codes.npy"), r"codes\.npy is missing; copy or build the index again"),
    "other values": (
        set_at("params", "values", value="float16"),
        r"does not name rows\.npy; copy or build the index again",
    ),
    "signed codes": (change_array("codes.npy", lambda a: a.astype(np.int8), sign=True), r"codes\.npy holds int8, exp"),
    "codes longer": (change_array("codes.npy", longer, sign=True), r"indptr\.npy runs from 0 to \d+, expected 0 to"),
    "flat": (change_array("codes.npy", lambda a: a[None], sign=True), r"indptr\.npy runs from 0 to \d+, expected 0"),
    "scales longer": (change_array("scales.npy", longer, sign=True), r"scales\.npy has the shape .*, the counts say"),
}


@pytest.mark.parametrize("case", NOT_OPENING)
def test_a_broken_index_does_not_open(copy, case):
    damage, message = NOT_OPENING[case]
    damage(copy)
    with pytest.raises(IndexBroken, match=message):
        Index.open(copy)


NOT_VERIFYING = {
    "a flipped code": (change_array("codes.npy", put(3, 77)), r"codes\.npy has the hash"),
    "a flipped scale": (change_array("scales.npy", put(3, 77)), r"scales\.npy has the hash"),
    "no varint ends": (
        change_array("codes.npy", put(slice(None), 255), sign=True),
        r"codes\.npy is damaged in column 0; copy or build",
    ),
    "an id too large": (change_array("codes.npy", put(0, 126), sign=True), r"codes\.npy holds an id outside 0\.\."),
    "an entry too many": (
        set_at("counts", "entries", value=5),
        r"codes\.npy holds \d+ entries, .* counts 5; copy or build",
    ),
    "no number": (change_array("scales.npy", put(3, np.nan), sign=True), r"scales\.npy holds numbers that are no"),
    "below 0": (change_array("scales.npy", put(3, -1), sign=True), r"scales\.npy holds numbers that are no largest"),
    "indptr backwards": (
        change_array("indptr.npy", lambda a: np.concatenate([a[:1], a[-2:0:-1], a[-1:]]), sign=True),
        r"indptr\.npy goes backwards; copy or build",
    ),
    "indptr far away": (
        both(change_array("indptr.npy", put(3, 2**62), sign=True)),
        r"indptr\.npy goes backwards; copy or build",
    ),
}


@pytest.mark.parametrize("case", NOT_VERIFYING)
def test_damage_that_opening_cannot_see_is_found_by_verifying(copy, case):
    damage, message = NOT_VERIFYING[case]
    damage(copy)
    Index.open(copy)
    with pytest.raises(IndexBroken, match=message):
        verify(copy)


NOT_SEARCHING = {
    "no varint ends": (put(slice(None), 255), r"codes\.npy or owners\.npy holds ids that do not exist; copy or build"),
    "long gaps": (put(slice(None), 127), r"codes\.npy or owners\.npy holds ids that do not exist; copy or build"),
}


@pytest.mark.parametrize("case", NOT_SEARCHING)
def test_a_search_that_meets_damaged_codes_is_refused(copy, case):
    damage, message = NOT_SEARCHING[case]
    change_array("codes.npy", damage, sign=True)(copy)
    index = Index.open(copy)
    for seeds in (3, 60):
        with pytest.raises(IndexBroken, match=message):
            index.search(QUERIES, seeds=seeds)


def test_a_candidate_whose_column_is_damaged_is_noticed_by_the_second_look(tmp_path):
    path = tmp_path / "x.index"
    features = clusters(np.random.default_rng(30), 120, 8)
    build(features, path, Params(k=8, truncation=60, keep=40))
    index = Index.open(path)
    first, last = (int(id) for id in index.search(features[:1], top=2, seeds=1, refine=0).ids[0])
    indptr = np.load(path / "indptr.npy")
    change_array("codes.npy", put(slice(indptr[last], indptr[last + 1]), 255), sign=True)(path)
    index = Index.open(path)
    assert index.search(features[first : first + 1], top=2, seeds=1, refine=0).ids[0, 0] == first
    with pytest.raises(IndexBroken, match="the columns of candidates are damaged; copy or build"):
        index.search(features[first : first + 1], top=2, seeds=1, refine=2)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_the_columns_hold_a_search_gives_images_that_exist_or_a_clear_error(
    coded_index, tmp_path_factory, data
):
    path = shutil.copytree(coded_index, tmp_path_factory.mktemp("any") / "x.index")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for name in data.draw(st.sets(st.sampled_from(["codes.npy", "scales.npy", "indptr.npy"]), min_size=1)):
        array = np.load(path / name)
        noise = array.copy()
        flat = noise.view(np.uint8).reshape(len(array), -1)
        places = rng.integers(1, len(array) - 1, size=data.draw(st.sampled_from([1, 3, 30, 300])))
        if data.draw(st.booleans()):  # one bit each
            flat[places, 0] ^= (1 << rng.integers(0, 8, size=len(places))).astype(np.uint8)
        else:
            flat[places] = rng.integers(0, 256, size=(len(places), flat.shape[1]))
        write_array(path / name, noise)
    index = Index.open(path)
    for options in ({}, {"refine": 0}):
        with contextlib.suppress(IndexBroken):
            hits = index.search(QUERIES, top=len(index), seeds=30, **options)
            assert ((hits.ids >= 0) & (hits.ids < len(index))).all()
            assert not np.isnan(hits.scores).any()
    with contextlib.suppress(IndexBroken):
        verify(path)
