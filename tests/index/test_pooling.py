"""Columns of a regional index, summed over the regions of images before they are stored."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.damage import change_array, put
from tests.support.data import clusters
from tests.support.indexes import stored_columns

import suffuse
from suffuse import Index, IndexBroken, InvalidParams, Params
from suffuse.core.kernels.codes import pool_columns

WHOLE = Params(k=8, truncation=90, keep=90, values="float32")
OWNERS = np.random.default_rng(1).integers(0, 30, 90)


@pytest.fixture(scope="module")
def regions():
    return clusters(np.random.default_rng(0), 90, 12, count=5)


@pytest.fixture(scope="module", params=["float32", "uint8"])
def indexes(request, regions, tmp_path_factory):
    """The same regional index with columns over regions and over images."""
    folder = tmp_path_factory.mktemp("pooled")
    for pool in ("none", "sum"):
        suffuse.build(
            regions, folder / pool, dataclasses.replace(WHOLE, pool=pool, values=request.param), owners=OWNERS
        )
    return {pool: Index.open(folder / pool) for pool in ("none", "sum")}


def pooled_slowly(rows, values, length, owners, images, keep):
    """Sum by image, sort by falling sum and rising id, cut."""
    sums = np.zeros(images)
    np.add.at(sums, owners[rows[:length]], values[:length].astype(float))
    order = np.lexsort((np.arange(images), -sums.astype(np.float32)))
    order = order[sums[order] > 0][:keep]
    return order, sums[order]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 25))
def test_the_kernel_sums_by_image_and_keeps_the_largest(seed, images, keep):
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, images, 40).astype(np.uint32)
    rows = np.stack([rng.permutation(40)[:25] for _ in range(3)]).astype(np.uint32)
    values = rng.choice([0.25, 0.5, 1.0], (3, 25)).astype(np.float32)  # exact sums, many ties
    lengths = rng.integers(0, 26, 3)
    out = np.zeros((3, keep), np.uint32), np.zeros((3, keep), np.float32), np.zeros(3, np.int64)
    starts = np.arange(3) * 25
    pool_columns(starts, starts + lengths, rows.ravel(), values.ravel(), owners, images, False, *out)
    for column in range(3):
        ids, sums = pooled_slowly(rows[column], values[column], lengths[column], owners, images, keep)
        found = out[2][column]
        assert out[0][column, :found].tolist() == ids.tolist()
        np.testing.assert_allclose(out[1][column, :found], sums, rtol=1e-6)


def test_pooled_before_storing_or_when_searching_is_the_same(indexes, regions):
    rng = np.random.default_rng(5)
    queries, owners = regions[rng.integers(0, 90, 12)] + 0.05 * rng.standard_normal((12, 12)), np.arange(12) % 4
    late = indexes["none"].search(queries, top=30, seeds=5, owners=owners, refine=0)
    early = indexes["sum"].search(queries, top=30, seeds=5, owners=owners, refine=0)
    if indexes["sum"].params.values == "float32":
        np.testing.assert_array_equal(early.ids, late.ids)
        np.testing.assert_allclose(early.scores, late.scores, rtol=1e-5)
    else:  # a code rounds twice, and each time otherwise
        np.testing.assert_allclose(early.scores, late.scores, rtol=0.1)


def test_pooled_columns_hold_images_and_are_smaller(indexes):
    assert len(stored_columns(indexes["sum"], targets=30)) == 30  # a larger id would not fit
    sizes = {pool: index.manifest.files for pool, index in indexes.items()}
    name = "codes.npy" if "codes.npy" in sizes["sum"] else "rows.npy"
    assert sizes["sum"][name]["bytes"] < sizes["none"][name]["bytes"]


def test_keep_counts_images(regions, tmp_path):
    suffuse.build(regions, tmp_path / "few", dataclasses.replace(WHOLE, keep=3), owners=OWNERS)
    assert np.diff(Index.open(tmp_path / "few").now.columns().starts).max() == 3


def test_verify_knows_that_ids_are_images(indexes, regions, tmp_path):
    path = tmp_path / "damaged"
    suffuse.build(regions, path, WHOLE, owners=OWNERS)
    change_array("rows.npy", put(4, 30), sign=True)(path)  # an element, but no image
    with pytest.raises(IndexBroken, match=r"rows\.npy holds an id outside 0\.\.29"):
        suffuse.verify(path)
    with pytest.raises(IndexBroken, match=r"rows\.npy"):
        Index.open(path).search(regions, top=30, seeds=90)


def test_images_may_outnumber_regions(regions, tmp_path):
    """Images without regions are known by their names only."""
    names = [str(i) for i in range(200)]
    suffuse.build(regions, tmp_path / "sparse", WHOLE, owners=np.arange(90) + 50, names=names)
    index = Index.open(tmp_path / "sparse")
    hits = index.search(regions[:3], top=200)
    assert sorted(hits.ids[0].tolist()) == list(range(200))
    reached = hits.ids[hits.scores > 0]
    assert 50 <= reached.min() <= reached.max() < 140
    assert index.search(regions[:3], method="knn").ids[:, 0].tolist() == [50, 51, 52]


@pytest.mark.parametrize("pooling", ["max", "gmp"])
def test_other_poolings_join_the_scores_of_regions(indexes, regions, pooling):
    index = indexes["none"]
    queries, owners = regions[[3, 40, 7, 8]], np.array([0, 0, 1, 1])
    hits = index.search(queries, top=30, seeds=4, owners=owners, pooling=pooling)
    columns = stored_columns(index)
    for q in range(2):
        f = reference.diffuse(index.prepare(queries[owners == q]), index.features, columns, 4, index.params)
        scores = np.zeros(30)
        for image in range(30):
            members = np.flatnonzero(image == OWNERS)
            if pooling == "max":
                scores[image] = f[members].max(initial=0.0)
            else:
                own_regions = index.features[members].astype(float)
                weights = np.linalg.solve(own_regions @ own_regions.T + np.eye(len(members)), np.ones(len(members)))
                scores[image] = weights @ f[members]
        reached = hits.scores[q] > 0
        np.testing.assert_allclose(hits.scores[q, reached], scores[hits.ids[q, reached]], rtol=1e-4)
        assert (np.diff(hits.scores[q]) <= 0).all()
        assert reached.sum() == (scores > 0).sum()
        assert sorted(hits.ids[q].tolist()) == list(range(30))


def test_a_pooling_that_the_index_cannot_do_is_refused(indexes, regions):
    with pytest.raises(InvalidParams, match="pooling must be 'sum' unless"):
        indexes["sum"].search(regions[:1], pooling="max")
    with pytest.raises(InvalidParams, match="pooling must be one of sum, max, gmp, got 'mean'"):
        indexes["none"].search(regions[:1], pooling="mean")


def image_vectors_slowly(index):
    """Row j is sqrt(sum of the columns of the regions of image j)."""
    columns = stored_columns(index, targets=30).T
    sums = np.zeros((30, 30))
    np.add.at(sums, OWNERS, columns)
    return columns, np.sqrt(sums)


def test_image_vectors_are_roots_of_sums_over_regions(indexes):
    stored = indexes["sum"].now.candidates(np.arange(30))
    if stored.values.dtype == np.uint16:
        stored = stored._replace(values=stored.values.view(np.float16))
    _, expected = image_vectors_slowly(indexes["sum"])
    found = np.zeros((30, 30))
    for image in range(30):
        places = slice(stored.starts[image], stored.stops[image])
        found[image, stored.entries[places]] = stored.values[places]
        assert (np.diff(stored.values[places]) <= 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5 if stored.values.dtype == np.float32 else 1e-3)


def test_a_second_look_at_images_compares_the_roots(indexes, regions):
    index, (columns, roots) = indexes["sum"], image_vectors_slowly(indexes["sum"])
    queries, owners = regions[[3, 40, 7]], np.array([0, 0, 0])
    hits = index.search(queries, top=30, seeds=4, owners=owners, refine=30)
    f = np.sqrt(reference.diffuse(index.prepare(queries), index.features, columns.T, 4, index.params))
    cosines = roots @ f / np.linalg.norm(f) / np.maximum(np.linalg.norm(roots, axis=1), 1e-30)
    reached = hits.ids[0][hits.scores[0] > 0]
    np.testing.assert_allclose(hits.scores[0, : len(reached)], cosines[reached], rtol=1e-3)


def test_a_second_look_is_refused_where_columns_are_not_pooled(indexes, regions):
    with pytest.raises(InvalidParams, match="refine must be 0"):
        indexes["none"].search(regions[:1], refine=5)
