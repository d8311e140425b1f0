"""Baselines of regions equal their slow, obvious twins: matching, pooling of seeds and images, regional diffusion."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support import reference_baselines as twin
from tests.support.data import clusters, lattice, scattered, seeds_of_rng, unit
from tests.support.worlds import EXACT, IMAGES, OWNERS, PARAMS, D, N, assert_ranks

from suffuse.core import regions as matching
from suffuse.core.neighbors import Neighbors
from suffuse.core.regions import Regions, match_regions, pool_seeds, pooling_weights
from suffuse.research import baselines


@pytest.fixture(scope="module")
def regions(world):
    return Regions(world.features, OWNERS, IMAGES)


@pytest.fixture(scope="module")
def images():
    """Global features of the images."""
    return clusters(np.random.default_rng(6), IMAGES, 7, spread=1.0)


def grouped(rng, sizes):
    """Query regions, and where those of each query begin."""
    return scattered(rng, sum(sizes), D), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def test_r_match_by_hand():
    gallery = Regions(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32), np.array([0, 2, 0], np.int32), 3)
    query = np.array([[1, 0], [0, 1]], np.float32)
    # Image 0: best 1 for the first region, 0.8 for the second; image 2: 0 and 1; image 1 has no regions.
    ranking = baselines.RMatch(gallery).rank(query, np.array([0, 2]), 3)
    assert ranking.ids.tolist() == [[0, 2, 1]]
    np.testing.assert_allclose(ranking.scores, [[1.8, 1.0, -np.inf]])


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, top=st.integers(1, 12))
def test_r_match_equals_its_definition_with_ties_by_id(seed, top):
    rng = np.random.default_rng(seed)
    features, query = lattice(rng, 30, 8), lattice(rng, 5, 8)
    gallery = Regions(features, rng.integers(9, size=30).astype(np.int32), 9)
    match = np.stack([reference.match(part, features, gallery.owners, 9) for part in (query[:2], query[2:])])
    ranking = baselines.RMatch(gallery).rank(query, np.array([0, 2, 5]), top)
    np.testing.assert_array_equal(ranking.ids, np.argsort(-match, axis=1, kind="stable")[:, :top])
    np.testing.assert_array_equal(ranking.scores, np.take_along_axis(match, ranking.ids, axis=1))


def test_matches_are_the_same_in_blocks_and_without_owners(world, monkeypatch):
    query = scattered(np.random.default_rng(7), 3, D)
    regional = match_regions(query, world.features, OWNERS, IMAGES)
    plain = match_regions(query, world.features, None, N)
    np.testing.assert_allclose(plain, reference.similarities(query, world.features).sum(axis=0), atol=1e-6)
    monkeypatch.setattr(matching, "_BLOCK_ROWS", 7)
    np.testing.assert_allclose(match_regions(query, world.features, OWNERS, IMAGES), regional, atol=1e-6)
    np.testing.assert_allclose(match_regions(query, world.features, None, N), plain, atol=1e-6)


def test_r_match_with_expansion_is_r_match_of_the_expanded_regions(world, regions):
    query, ptr = grouped(np.random.default_rng(8), [3, 1])
    ids, sims = reference.nearest(query, world.features, 10)
    better = twin.expanded(query, world.features, ids, sims, 0.0).astype(np.float32)
    expected = np.stack([reference.match(better[a:b], world.features, OWNERS, IMAGES) for a, b in [(0, 3), (3, 4)]])
    ranking = baselines.RMatch(regions, expand=10).rank(query, ptr, IMAGES)
    np.testing.assert_array_equal(ranking.ids, np.argsort(-expected, axis=1, kind="stable"))
    np.testing.assert_allclose(ranking.scores[:, :-1], -np.sort(-expected, axis=1)[:, :-1], atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, chosen=st.sets(st.integers(0, 8), max_size=9))
def test_the_members_of_images_are_their_regions_image_after_image(seed, chosen):
    rng = np.random.default_rng(seed)
    gallery = Regions(np.empty((20, 2), np.float32), rng.integers(9, size=20).astype(np.int32), 9)
    images, starts, rows = gallery.members(rng.permutation(np.array(sorted(chosen), np.int32)))
    assert images.tolist() == [i for i in sorted(chosen) if i in gallery.owners]
    for image, members in zip(images, np.split(rows, starts[1:]), strict=False):
        assert members.tolist() == np.flatnonzero(gallery.owners == image).tolist()
    assert len(rows) == np.isin(gallery.owners, list(chosen)).sum()


def test_seeds_of_several_regions_are_summed_before_the_best_are_kept():
    found = Neighbors(np.array([[4, 7, 2], [7, 9, 4]], np.int32), np.array([[0.5, 0.5, 0.25], [0.25, 0.5, 0.25]], "f4"))
    pooled = pool_seeds(found, 3)
    assert pooled.ids.tolist() == [[4, 7, 9]]
    assert pooled.sims.tolist() == [[0.75, 0.75, 0.5]]


def test_weights_of_generalised_max_pooling_count_equal_regions_once():
    equal = np.tile(unit([[3.0, 4.0]]), (5, 1))
    gallery = Regions(np.concatenate([equal, [[0, 1]]]).astype(np.float32), np.array([0] * 5 + [2], np.int32), 3)
    weights = pooling_weights(gallery, ridge=1e-3)
    np.testing.assert_allclose(weights[:5].sum(), 1.0, rtol=1e-3)
    np.testing.assert_allclose(pooling_weights(gallery), [1 / 6] * 5 + [1 / 2], rtol=1e-6)


def test_regional_diffusion_equals_a_dense_solution_on_the_regions_of_the_nearest_images(world, regions, images):
    params = dataclasses.replace(PARAMS, truncation=12)
    method = baselines.OnlineRegional(images, regions, world.a, params, 9, EXACT)
    rng = np.random.default_rng(9)
    query, ptr = grouped(rng, [3, 1, 4])
    queries = scattered(rng, 3, 7)
    expected = np.zeros((3, IMAGES))
    for q, bound in enumerate(reference.nearest(queries, images, 12)[0]):
        rows = np.flatnonzero(np.isin(OWNERS, bound))
        y = twin.regional_seeds(query[ptr[q] : ptr[q + 1]], world.features, rows, 9, PARAMS.gamma)
        f = twin.solved_early(world.dense_a, PARAMS.alpha, rows, y)
        for image in bound:
            if image in OWNERS:
                expected[q, image] = f[image == OWNERS].sum()
    ranking = method.rank(query, ptr, IMAGES, queries)
    assert_ranks(ranking, expected, reference.similarities(queries, images))
    for q in range(3):
        part = query[ptr[q] : ptr[q + 1]]
        alone = method.rank(part, np.array([0, len(part)]), IMAGES, queries[q : q + 1])
        np.testing.assert_array_equal(alone.ids[0], ranking.ids[q])
        np.testing.assert_array_equal(alone.scores[0], ranking.scores[q])


def test_regional_diffusion_over_images_without_regions_is_the_ranking_by_global_features(world, regions, images):
    params = dataclasses.replace(PARAMS, truncation=1)
    query, ptr = grouped(np.random.default_rng(9), [2])
    ranking = baselines.OnlineRegional(images, regions, world.a, params).rank(query, ptr, IMAGES, images[30:])
    np.testing.assert_array_equal(ranking.ids, reference.nearest(images[30:], images, IMAGES)[0])
    assert not ranking.scores.any()
