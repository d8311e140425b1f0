"""Each baseline of whole images equals its slow, obvious twin in reference_baselines.py, and ranks by one rule."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support import reference_baselines as twin
from tests.support.data import clusters, curves, duplicated, scattered, seeds_of_rng, unit
from tests.support.worlds import IMAGES, OWNERS, PARAMS, D, N, assert_ranks, scores_by_id, world_of

from suffuse.core.neighbors import nearest
from suffuse.core.regions import Regions
from suffuse.errors import MissingExtra
from suffuse.research import baselines
from suffuse.research.baselines import Solution, fill_by_cosine

GLOBAL = ["knn", "aqe", "alpha-qe", "dba", "online", "online-early", "online-late", "spectral"]
DIFFUSED = ["online", "online-early", "online-late", "spectral"]


@pytest.fixture(scope="module")
def queries():
    rng = np.random.default_rng(2)
    return np.concatenate([curves(np.random.default_rng(1), 6, D), scattered(rng, 6, D)])


# --- the common rule


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, top=st.integers(1, 50))
def test_positive_scores_come_first_and_the_rest_follows_by_cosine(seed, top):
    rng = np.random.default_rng(seed)
    features, query = duplicated(rng, 40, 6, distinct=15), scattered(rng, 1, 6)
    ids = rng.permutation(40)[: rng.integers(0, 41)].astype(np.uint32)
    scores = rng.integers(-2, 4, size=len(ids)) / 4
    found = fill_by_cosine([Solution(ids, scores)], query, features, top)
    everyone = np.zeros(40)
    everyone[ids] = scores
    expected = twin.ranked(everyone, reference.similarities(query, features)[0])[:top]
    assert found.ids[0].tolist() == expected
    np.testing.assert_array_equal(found.scores[0], np.maximum(everyone, 0)[expected])


@pytest.mark.parametrize("name", GLOBAL)
def test_a_query_equals_its_batch(world, queries, name):
    method = world.method(name)
    together = method.rank(queries, N)
    for q in range(len(queries)):
        alone = method.rank(queries[q : q + 1], N)
        np.testing.assert_array_equal(alone.ids[0], together.ids[q])
        np.testing.assert_array_equal(alone.scores[0], together.scores[q])


@pytest.mark.parametrize("name", GLOBAL)
def test_a_shorter_ranking_is_the_begin_of_a_full_one_which_holds_everyone_once(world, queries, name):
    method = world.method(name)
    whole = method.rank(queries, 10 * N)
    assert (whole.ids.dtype, whole.scores.dtype, whole.ids.shape) == (np.int64, np.float32, (len(queries), N))
    np.testing.assert_array_equal(np.sort(whole.ids, axis=1), np.tile(np.arange(N), (len(queries), 1)))
    for top in (1, 7, N - 1):
        short = method.rank(queries, top)
        np.testing.assert_array_equal(short.ids, whole.ids[:, :top])
        np.testing.assert_array_equal(short.scores, whole.scores[:, :top])


@pytest.mark.parametrize("name", [*GLOBAL, "r-match", "r-match-aqe"])
def test_features_may_be_mapped_read_only(world, queries, name, tmp_path):
    for file, array in (("features", world.features), ("owners", OWNERS)):
        np.save(tmp_path / f"{file}.npy", array)
    features, owners = (np.load(tmp_path / f"{file}.npy", mmap_mode="r") for file in ("features", "owners"))

    def ranking(features, owners):
        if name in GLOBAL:
            return dataclasses.replace(world, features=features).method(name).rank(queries, 20)
        method = baselines.RMatch(Regions(features, owners, IMAGES), expand=10 if name == "r-match-aqe" else 0)
        return method.rank(queries, np.array([0, 5, len(queries)]), 20)

    mapped, plain = ranking(features, owners), ranking(world.features, OWNERS)
    np.testing.assert_array_equal(mapped.ids, plain.ids)
    np.testing.assert_array_equal(mapped.scores, plain.scores)


@pytest.mark.parametrize("name", ["knn", "aqe", "alpha-qe", "dba"])
def test_duplicates_are_ranked_by_id(name):
    features = duplicated(np.random.default_rng(3), N, D, distinct=12)
    made = world_of(features)
    ranking = made.method(name).rank(features[:5], N)
    for ids, scores in zip(ranking.ids, ranking.scores, strict=True):
        assert len(np.unique(scores)) <= 12
        assert np.lexsort((ids, -scores)).tolist() == list(range(N))


@pytest.mark.parametrize("name", DIFFUSED)
def test_a_query_that_resembles_nothing_is_ranked_by_cosine(name):
    features = unit(np.abs(clusters(np.random.default_rng(3), N, D)))
    ranking = world_of(features).method(name).rank(-features[:2], N)
    assert not ranking.scores.any()
    np.testing.assert_array_equal(ranking.ids, reference.nearest(-features[:2], features, N)[0])


# --- expansion


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, expand=st.integers(1, 50), alpha=st.floats(0, 6))
def test_expanded_queries_equal_their_definition(seed, expand, alpha):
    rng = np.random.default_rng(seed)
    features, queries = clusters(rng, 40, 6), scattered(rng, 5, 6)
    expected = twin.expanded(queries, features, *reference.nearest(queries, features, expand), alpha)
    np.testing.assert_allclose(baselines.expand_queries(queries, features, expand, alpha), expected, atol=2e-6)


def test_a_ranking_by_expanded_queries_is_their_plain_ranking(world, queries):
    expected = twin.expanded(queries, world.features, *reference.nearest(queries, world.features, 10), 0.0)
    found = baselines.QueryExpansion(world.features).rank(queries, N)
    assert found.ids.tolist() == reference.nearest(expected.astype(np.float32), world.features, N)[0].tolist()


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_augmented_elements_are_the_sum_of_themselves_and_their_neighbours_whatever_the_block(
    world, alpha, monkeypatch
):
    ids, sims = reference.nearest(world.features, world.features, 6, own=range(N))
    expected = twin.expanded(world.features, world.features, ids[:, 1:], sims[:, 1:], alpha)
    found = baselines.augment_database(world.features, world.neighbors, 5, alpha)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert found.dtype == np.float32
    monkeypatch.setattr(baselines, "_BLOCK_ROWS", 7)
    np.testing.assert_array_equal(baselines.augment_database(world.features, world.neighbors, 5, alpha), found)


def test_a_vector_that_its_neighbour_cancels_out_stays_what_it_was():
    features = np.array([[1, 0], [1, 0]], np.float32)
    found = baselines.expand_queries(-features[:1], features, 1, alpha=0.0)
    np.testing.assert_array_equal(found, -features[:1])


# --- per query


def test_online_diffusion_is_the_exact_inverse_times_the_seeds(world, queries):
    y = np.stack([twin.seeded(query, world.features, 5, PARAMS.gamma) for query in queries])
    expected = y @ reference.inverse(PARAMS.alpha * world.dense_s)
    method = world.method("online")
    found = method.solve(nearest(queries, world.features, 5))
    np.testing.assert_allclose(np.stack([solution.f for solution in found]), expected, rtol=1e-6, atol=1e-9)
    ranking = method.rank(queries, N)
    assert_ranks(ranking, expected, reference.similarities(queries, world.features))
    assert 0 < (ranking.scores == 0).sum() < ranking.scores.size


@pytest.mark.parametrize("truncation", [1, 12, 60])
def test_truncated_diffusion_equals_a_dense_solution_on_the_nearest_elements(world, queries, truncation):
    seeds = min(5, truncation)
    supports = reference.nearest(queries, world.features, truncation)[0]
    late, early = [], []
    for query, support in zip(queries, supports, strict=True):
        y = twin.seeded(query, world.features, seeds, PARAMS.gamma)
        late.append(twin.solved(PARAMS.alpha * world.dense_s, support, y))
        early.append(twin.solved_early(world.dense_a, PARAMS.alpha, support, y))
    similarities = reference.similarities(queries, world.features)
    for name, expected in (("online-late", late), ("online-early", early)):
        method = dataclasses.replace(world.method(name, truncation=truncation), seeds=seeds)
        assert_ranks(method.rank(queries, N), np.array(expected), similarities)


@pytest.mark.parametrize("name", ["online-late", "online-early"])
@pytest.mark.parametrize("truncation", [N, 10 * N])
def test_without_truncation_early_and_late_are_the_whole_graph(world, queries, name, truncation):
    whole = scores_by_id(world.method("online").rank(queries, N), N)
    found = scores_by_id(world.method(name, truncation=truncation).rank(queries, N), N)
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-9)


def test_early_truncation_is_not_late_truncation(world, queries):
    early, late = (world.method(name).rank(queries, N) for name in ("online-early", "online-late"))
    assert not np.allclose(scores_by_id(early, N), scores_by_id(late, N), rtol=1e-2)


def test_a_support_is_never_smaller_than_the_seeds(world, queries):
    short = dataclasses.replace(world.method("online-late", truncation=2), seeds=5).rank(queries, N)
    expected = dataclasses.replace(world.method("online-late", truncation=5), seeds=5).rank(queries, N)
    np.testing.assert_array_equal(short.ids, expected.ids)


# --- spectral


@pytest.mark.parametrize("rank", [1, 4, 20])
def test_spectral_ranking_filters_the_first_eigenvectors_of_each_component(world, queries, rank):
    method = baselines.Spectral.build(world.features, world.s, PARAMS, rank, 5)
    y = [twin.seeded(query, world.features, 5, PARAMS.gamma) for query in queries]
    expected = np.stack([twin.filtered(world.dense_s, PARAMS.alpha, row, rank) for row in y])
    found = np.zeros((len(queries), N))
    for row, (ids, scores) in zip(found, method.solve(nearest(queries, world.features, 5)), strict=True):
        row[ids] = scores
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_spectral_ranking_of_full_rank_is_the_exact_filter(world, queries):
    y = np.stack([twin.seeded(query, world.features, 5, PARAMS.gamma) for query in queries])
    expected = (1 - PARAMS.alpha) * y @ reference.inverse(PARAMS.alpha * world.dense_s)
    method = baselines.Spectral.build(world.features, world.s, PARAMS, N, 5)
    found = scores_by_id(method.rank(queries, N), N)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found[expected == 0] == 0).all()
    assert method.bytes > 0


def test_lanczos_and_the_dense_algorithm_agree_and_repeat(monkeypatch):
    made = world_of(curves(np.random.default_rng(4), N, D, count=1))
    seeds = nearest(made.features[:4], made.features, 5)

    def scores():
        found = np.zeros((4, N))
        method = baselines.Spectral.build(made.features, made.s, PARAMS, 6, 5)
        for row, (ids, values) in zip(found, method.solve(seeds), strict=True):
            row[ids] = values
        return found

    dense = scores()
    monkeypatch.setattr(baselines, "_DENSE_UP_TO", 1)
    sparse = scores()
    np.testing.assert_allclose(sparse, dense, atol=2e-6)
    np.testing.assert_array_equal(scores(), sparse)


def test_spectral_ranking_without_scipy_names_the_extra(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", None)
    with pytest.raises(MissingExtra, match=r"scipy is not installed; .*pip install 'suffuse\[research\]'"):
        world.method("spectral")
