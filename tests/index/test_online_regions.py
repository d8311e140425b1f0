"""Search by regions: an image's score is the sum over its regions, whatever the order and company of the query's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, scattered, seeds_of_rng
from tests.support.indexes import (
    OWNERS,
    SHORT,
    WHOLE,
    D,
    N,
    build_and_open,
    count_far,
    exact_columns,
    same_hits,
    stored_columns,
)

import suffuse


def grouped(rng, sizes):
    """Query regions, and which query each belongs to."""
    return scattered(rng, sum(sizes), D), np.repeat(np.arange(len(sizes)), sizes)


def test_the_score_of_an_image_is_the_sum_over_its_regions(regional_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [1, 3, 2])
    hits = regional_index.search(regions, top=28, seeds=4, owners=owners)
    columns = stored_columns(regional_index)
    assert hits.ids.shape == (3, 28)
    for q in range(3):
        f = reference.diffuse(regions[owners == q], gallery, columns, 4, SHORT, OWNERS, 28)
        expected = reference.largest(f, 28)
        assert 5 < len(expected) < 25
        assert hits.ids[q, : len(expected)].tolist() == expected
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-6)
        match = reference.match(regions[owners == q], gallery, OWNERS, 28)
        rest = [image for image in np.argsort(-match, kind="stable") if image not in expected]
        assert hits.ids[q, len(expected) :].tolist() == rest
        assert not hits.scores[q, len(expected) :].any()


def test_there_may_be_more_seeds_than_images(regional_index, gallery):
    region = scattered(np.random.default_rng(8), 1, D)
    hits = regional_index.search(region, top=10, seeds=40)
    f = reference.diffuse(region, gallery, stored_columns(regional_index), 40, SHORT, OWNERS, 28)
    assert hits.ids[0].tolist() == reference.largest(f, 10)
    np.testing.assert_allclose(hits.scores[0], np.sort(f)[::-1][:10], rtol=1e-6)


def test_without_truncation_regions_diffuse_exactly(tmp_path):
    rng = np.random.default_rng(4)
    features, regions = clusters(rng, N, D, spread=0.8), clusters(rng, 5, D, spread=2.0)
    index = build_and_open(features, tmp_path, WHOLE, owners=OWNERS)
    f = reference.diffuse(regions, features, exact_columns(features, WHOLE), 10, WHOLE, OWNERS, 25)
    hits = index.search(regions, top=25, owners=np.zeros(5, int), refine=0)
    assert hits.ids[0].tolist() == np.argsort(-f).tolist()
    np.testing.assert_allclose(hits.scores[0], np.sort(f)[::-1], rtol=1e-4)


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_images_without_regions_come_last(regional_index, method):
    regions, owners = grouped(np.random.default_rng(8), [2, 2])
    hits = regional_index.search(regions, top=28, method=method, owners=owners)
    assert len(regional_index) == 28
    assert hits.ids[:, -3:].tolist() == [[25, 26, 27]] * 2


def test_the_ranking_of_regions_by_cosine_sums_the_best_match_of_each(regional_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [3, 1])
    hits = regional_index.search(regions, top=28, method="knn", owners=owners)
    for q in range(2):
        match = reference.match(regions[owners == q], gallery, OWNERS, 28)
        assert hits.ids[q].tolist() == np.argsort(-match, kind="stable").tolist()
        np.testing.assert_allclose(hits.scores[q], match[hits.ids[q]], rtol=1e-5, atol=1e-6)


def test_similarities_are_the_same_in_blocks(regional_index, monkeypatch):
    regions, owners = grouped(np.random.default_rng(8), [3, 1])
    expected = regional_index.search(regions, top=28, method="knn", owners=owners)
    monkeypatch.setattr("suffuse.core.regions._BLOCK_ROWS", 7)
    found = regional_index.search(regions, top=28, method="knn", owners=owners)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_a_query_of_several_vectors_searches_an_index_of_images(short_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [3, 2])
    diffused = short_index.search(regions, top=N, seeds=4, owners=owners, refine=0)
    plain = short_index.search(regions, top=N, method="knn", owners=owners, refine=0)
    for q in range(2):
        y = reference.seeds_of(regions[owners == q], gallery, 4, SHORT)
        expected = reference.largest(reference.combine(*y, stored_columns(short_index)), N)
        assert diffused.ids[q, : len(expected)].tolist() == expected
        reached = len(expected) + count_far(short_index, *diffused[q], len(expected), *y)
        assert len(expected) < reached < N
        assert not diffused.scores[q, reached:].any()
        sums = reference.similarities(regions[owners == q], gallery).sum(axis=0)
        assert plain.ids[q].tolist() == np.argsort(-sums, kind="stable").tolist()
        assert diffused.ids[q, reached:].tolist() == [i for i in plain.ids[q] if i not in diffused.ids[q, :reached]]


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_the_order_of_query_rows_does_not_matter(regional_index, method):
    rng = np.random.default_rng(8)
    regions, owners = grouped(rng, [2, 3, 1])
    expected = regional_index.search(regions, top=28, method=method, owners=owners)
    for _ in range(5):
        order = rng.permutation(6)
        found = regional_index.search(regions[order], top=28, method=method, owners=owners[order])
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6), top=st.integers(1, 28))
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_a_query_of_regions_finds_the_same_alone_and_in_a_batch(regional_index, method, seed, sizes, top):
    rng = np.random.default_rng(seed)
    regions, owners = grouped(rng, sizes)
    together = regional_index.search(regions, top, method=method, owners=owners)
    for q in range(len(sizes)):
        own = regions[owners == q]
        alone = regional_index.search(own, top, method=method, owners=np.zeros(len(own), int))
        same_hits(alone, suffuse.Hits(together.ids[q : q + 1], together.scores[q : q + 1]))
