"""Each baseline equals its slow, obvious twin in reference_baselines.py, and ranks by the common rule."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import reference_baselines as twin
from data import clusters, curves, duplicated, lattice, network, scattered, unit
from suffuse import baselines, matching
from suffuse.baselines import expansion, spectral
from suffuse.baselines.ranking import Scored, positive_first
from suffuse.graph import Graph, affinity, transition
from suffuse.kernels.match import raise_to_best
from suffuse.kernels.per_query import diffuse_early, diffuse_late, diffuse_whole, rank_positive
from suffuse.matching import Regions, match_regions, pool_seeds, pooling_weights
from suffuse.neighbors import Neighbors, nearest, nearest_to_rows
from suffuse.params import Params

seeds_of_rng = st.integers(0, 2**32 - 1)

N, D, IMAGES = 90, 10, 31
EXACT = 1000  # iterations, far more than conjugate gradient needs
PARAMS = Params(k=8, truncation=30, alpha=0.95, tolerance=1e-10)
# Image 30 has no regions; the others about three each, in no order.
OWNERS = np.random.default_rng(5).permutation(np.arange(N) % 30).astype(np.int32)


@dataclasses.dataclass
class World:
    """A small gallery with its graph, sparse for the methods and dense for their twins."""

    features: np.ndarray
    neighbors: Neighbors
    a: Graph
    s: Graph
    alpha_s: Graph
    dense_a: np.ndarray
    dense_s: np.ndarray

    def method(self, name, **changes):
        """A method by name, made from this gallery."""
        params = dataclasses.replace(PARAMS, **changes)
        return {
            "knn": lambda: baselines.Cosine(self.features),
            "aqe": lambda: baselines.QueryExpansion(self.features),
            "alpha-qe": lambda: baselines.QueryExpansion(self.features, alpha=3.0),
            "dba": lambda: baselines.Cosine(baselines.augment_database(self.features, self.neighbors, 5)),
            "online": lambda: baselines.Online(self.features, self.alpha_s, params, 5, EXACT),
            "online-early": lambda: baselines.OnlineEarly(self.features, self.a, params, 5, EXACT),
            "online-late": lambda: baselines.OnlineLate(self.features, self.alpha_s, params, 5, EXACT),
            "spectral": lambda: baselines.Spectral.build(self.features, self.s, params, 20, 5),
        }[name]()


GLOBAL = ["knn", "aqe", "alpha-qe", "dba", "online", "online-early", "online-late", "spectral"]
DIFFUSED = ["online", "online-early", "online-late", "spectral"]


def world_of(features):
    neighbors = nearest_to_rows(features, 0, len(features), PARAMS.k)
    a = affinity(neighbors, PARAMS.gamma)
    s = transition(a)
    alpha_s = s._replace(weights=PARAMS.alpha * s.weights)
    return World(features, neighbors, a, s, alpha_s, reference.dense(a), reference.dense(s))


@pytest.fixture(scope="module")
def world():
    """Half a gallery of curves, half of scattered points: several components, nodes without neighbours among them."""
    rng = np.random.default_rng(1)
    made = world_of(np.concatenate([curves(rng, 60, D), scattered(rng, N - 60, D)]))
    assert len({tuple(row) for row in twin.reachable(made.dense_s)}) > 3
    return made


@pytest.fixture(scope="module")
def queries():
    rng = np.random.default_rng(2)
    return np.concatenate([curves(np.random.default_rng(1), 6, D), scattered(rng, 6, D)])


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


def scores_by_id(ranking, n):
    """The scores of full rankings, (m, n), by id."""
    scores = np.empty(ranking.scores.shape)
    np.put_along_axis(scores, ranking.ids, ranking.scores, axis=1)
    assert scores.shape[1] == n
    return scores


def assert_ranks(ranking, expected, similarities):
    """Full rankings agree with expected scores (m, n) up to rounding, and follow the common rule to the letter."""
    found = scores_by_id(ranking, expected.shape[1])
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-4, atol=1e-6 * expected.max())
    for ids, scores, sims in zip(ranking.ids, found, similarities, strict=True):
        assert ids.tolist() == twin.ranked(scores, sims)


# --- the kernels


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, n=st.integers(1, 40), degree=st.integers(1, 8), share=st.floats(0, 1))
def test_a_query_solved_on_a_slice_or_the_whole_graph_equals_a_dense_solution(seed, n, degree, share):
    rng = np.random.default_rng(seed)
    s = network(rng, n, degree)
    support = rng.permutation(n)[: max(1, int(share * n))]
    y = np.zeros(n)
    y[support[:5]] = rng.uniform(0, 3, min(5, len(support)))
    f = np.empty(len(support))
    diffuse_late(support.astype(np.uint32), *reference.compressed(0.95 * s), EXACT, 1e-12, y[support], f)
    np.testing.assert_allclose(f, twin.solved(0.95 * s, support, y)[support], rtol=1e-7, atol=1e-10)
    # S in the place of A: any symmetric matrix without negative entries will do.
    diffuse_early(support.astype(np.uint32), *reference.compressed(s), 0.95, EXACT, 1e-12, y[support], f)
    np.testing.assert_allclose(f, twin.solved_early(s, 0.95, support, y)[support], rtol=1e-7, atol=1e-10)
    whole = np.empty(n)
    diffuse_whole(*reference.compressed(0.95 * s), EXACT, 1e-12, y, whole)
    np.testing.assert_allclose(whole, twin.solved(0.95 * s, np.arange(n), y), rtol=1e-7, atol=1e-10)


def test_a_query_without_weight_on_any_seed_reaches_nothing():
    f = np.full(30, 7.0)
    diffuse_whole(*reference.compressed(0.9 * network(np.random.default_rng(0), 30, 4)), 20, 1e-6, np.zeros(30), f)
    np.testing.assert_array_equal(f, np.zeros(30))


def test_the_tolerance_is_relative_to_the_query():
    graph = reference.compressed(0.9 * network(np.random.default_rng(0), 30, 4))
    y, f, tiny = np.random.default_rng(1).random(30), np.empty(30), np.empty(30)
    diffuse_whole(*graph, EXACT, 1e-3, y, f)
    diffuse_whole(*graph, EXACT, 1e-3, 2.0**-60 * y, tiny)
    np.testing.assert_array_equal(2.0**60 * tiny, f)


@settings(deadline=None, max_examples=60)
@given(
    scores=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 1e-60, 0.25, 0.25 + 1e-12, 0.5, 3.0]), min_size=1, max_size=30),
    seed=seeds_of_rng,
    data=st.data(),
)
def test_the_largest_positive_scores_are_ranked_with_ties_by_id(scores, seed, data):
    ids = np.random.default_rng(seed).permutation(100)[: len(scores)].astype(np.uint32)
    top = data.draw(st.integers(1, len(scores) + 3))
    found, out = np.full(top, -7, np.int64), np.full(top, -7, np.float32)
    count = rank_positive(ids, np.array(scores), found, out)
    rounded = dict(zip(ids.tolist(), np.array(scores, np.float32).tolist(), strict=True))
    expected = sorted((i for i in rounded if rounded[i] > 0), key=lambda i: (-rounded[i], i))[:top]
    assert found.tolist() == expected + [-7] * (top - count)
    assert out[:count].tolist() == [rounded[i] for i in expected]


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(1, 40), width=st.integers(1, 20))
def test_the_best_of_an_image_is_the_largest_of_its_regions(seed, n, width):
    rng = np.random.default_rng(seed)
    sims, owners = rng.normal(size=(n, width)).astype(np.float32), rng.integers(9, size=n).astype(np.uint32)
    best = np.full((9, width), -np.inf, np.float32)
    raise_to_best(sims, owners, best)
    expected = [sims[owners == image].max(axis=0, initial=-np.inf) for image in range(9)]
    np.testing.assert_array_equal(best, expected)


# --- the common rule


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, top=st.integers(1, 50))
def test_positive_scores_come_first_and_the_rest_follows_by_cosine(seed, top):
    rng = np.random.default_rng(seed)
    features, query = duplicated(rng, 40, 6, distinct=15), scattered(rng, 1, 6)
    ids = rng.permutation(40)[: rng.integers(0, 41)].astype(np.uint32)
    scores = rng.integers(-2, 4, size=len(ids)) / 4
    found = positive_first([Scored(ids, scores)], query, features, top)
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
        method = baselines.RMatch if name == "r-match" else baselines.RMatchExpansion
        return method(Regions(features, owners, IMAGES)).rank(queries, np.array([0, 5, len(queries)]), 20)

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
    np.testing.assert_allclose(expansion.expand_queries(queries, features, expand, alpha), expected, atol=2e-6)


def test_a_ranking_by_expanded_queries_is_their_plain_ranking(world, queries):
    expected = twin.expanded(queries, world.features, *reference.nearest(queries, world.features, 10), 0.0)
    found = baselines.average_query_expansion(queries, world.features, N)
    assert found.ids.tolist() == reference.nearest(expected.astype(np.float32), world.features, N)[0].tolist()


def test_with_alpha_zero_weighted_expansion_is_the_average(world, queries):
    average = baselines.average_query_expansion(queries, world.features, N, 7)
    weighted = baselines.alpha_query_expansion(queries, world.features, N, 7, alpha=0.0)
    np.testing.assert_array_equal(average.ids, weighted.ids)
    np.testing.assert_array_equal(average.sims, weighted.sims)
    ranking = baselines.QueryExpansion(world.features, 7).rank(queries, N)
    np.testing.assert_array_equal(ranking.ids, average.ids)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_augmented_elements_are_the_sum_of_themselves_and_their_neighbours_whatever_the_block(
    world, alpha, monkeypatch
):
    ids, sims = reference.nearest(world.features, world.features, 6, own=range(N))
    expected = twin.expanded(world.features, world.features, ids[:, 1:], sims[:, 1:], alpha)
    found = baselines.augment_database(world.features, world.neighbors, 5, alpha)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert found.dtype == np.float32
    monkeypatch.setattr(expansion, "_BLOCK_ROWS", 7)
    np.testing.assert_array_equal(baselines.augment_database(world.features, world.neighbors, 5, alpha), found)


def test_a_vector_that_its_neighbour_cancels_out_stays_what_it_was():
    features = np.array([[1, 0], [1, 0]], np.float32)
    found = expansion.expand_queries(-features[:1], features, 1, alpha=0.0)
    np.testing.assert_array_equal(found, -features[:1])


# --- per query


def test_online_diffusion_is_the_exact_inverse_times_the_seeds(world, queries):
    y = np.stack([twin.seeded(query, world.features, 5, PARAMS.gamma) for query in queries])
    expected = y @ reference.inverse(PARAMS.alpha * world.dense_s)
    found = baselines.online_diffusion(
        world.alpha_s, nearest(queries, world.features, 5), PARAMS.gamma, EXACT, PARAMS.tolerance
    )
    np.testing.assert_allclose(np.stack([f.scores for f in found]), expected, rtol=1e-6, atol=1e-9)
    ranking = world.method("online").rank(queries, N)
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
    for row, (ids, scores) in zip(found, method.filter(nearest(queries, world.features, 5)), strict=True):
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
        for row, (ids, values) in zip(found, method.filter(seeds), strict=True):
            row[ids] = values
        return found

    dense = scores()
    monkeypatch.setattr(spectral, "_DENSE_UP_TO", 1)
    sparse = scores()
    np.testing.assert_allclose(sparse, dense, atol=2e-6)
    np.testing.assert_array_equal(scores(), sparse)


# --- regions


def test_r_match_by_hand():
    gallery = Regions(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32), np.array([0, 2, 0], np.int32), 3)
    query = np.array([[1, 0], [0, 1]], np.float32)
    # Image 0: best 1 for the first region, 0.8 for the second; image 2: 0 and 1; image 1 has no regions.
    ranking = baselines.r_match(query, np.array([0, 2]), gallery, 3)
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
    ranking = baselines.RMatchExpansion(regions).rank(query, ptr, IMAGES)
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


@pytest.mark.parametrize("slicing", ["early", "late"])
@pytest.mark.parametrize("pooling", [np.add, np.maximum])
@pytest.mark.parametrize("weighted", [False, True])
def test_regional_diffusion_equals_a_dense_solution_on_the_regions_of_the_nearest_images(
    world, regions, images, slicing, pooling, weighted
):
    params = dataclasses.replace(PARAMS, truncation=12)
    weights = pooling_weights(regions) if weighted else None
    graph = world.a if slicing == "early" else world.alpha_s
    method = baselines.OnlineRegional(
        images, regions, graph, params, 9, EXACT, slicing=slicing, pooling=pooling, weights=weights
    )
    rng = np.random.default_rng(9)
    query, ptr = grouped(rng, [3, 1, 4])
    queries = scattered(rng, 3, 7)
    expected = np.zeros((3, IMAGES))
    for q, bound in enumerate(reference.nearest(queries, images, 12)[0]):
        rows = np.flatnonzero(np.isin(OWNERS, bound))
        y = twin.regional_seeds(query[ptr[q] : ptr[q + 1]], world.features, rows, 9, PARAMS.gamma)
        if slicing == "early":
            f = twin.solved_early(world.dense_a, PARAMS.alpha, rows, y)
        else:
            f = twin.solved(PARAMS.alpha * world.dense_s, rows, y)
        f = f * weights if weighted else f
        for image in bound:
            if image in OWNERS:
                expected[q, image] = pooling.reduce(f[image == OWNERS])
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


def test_every_baseline_can_be_imported_from_the_package():
    for name in baselines.__all__:
        assert getattr(baselines, name).__doc__, name
