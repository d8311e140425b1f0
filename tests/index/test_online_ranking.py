"""Search: the sum of the seeds' columns, the same alone, in a batch and from many threads; by cosine where it ends."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, duplicated, scattered, seeds_of_rng, unit
from tests.support.indexes import (
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

# --- diffusion


@pytest.mark.parametrize("support", ["graph", "features"])
@pytest.mark.parametrize("seeds", [1, 5, 3 * N])
def test_without_truncation_search_is_exact_diffusion(tmp_path, support, seeds):
    rng = np.random.default_rng(4)
    features, queries = clusters(rng, N, D, spread=0.8), clusters(rng, 6, D, spread=2.0)
    index = build_and_open(features, tmp_path, dataclasses.replace(WHOLE, support=support))
    columns = exact_columns(features, WHOLE)
    hits = index.search(queries, top=N, seeds=seeds, refine=0)
    for q in range(6):
        f = reference.diffuse(queries[q : q + 1], features, columns, min(seeds, N), WHOLE)
        reached = np.flatnonzero(f > 1e-6)
        expected = reached[np.argsort(-f[reached], kind="stable")]
        assert len(expected) > 10
        assert hits.ids[q, : len(expected)].tolist() == expected.tolist()
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-4)


@pytest.mark.parametrize("values", ["uint8", "float16", "float32"])
def test_search_is_the_weighted_sum_of_the_stored_columns(tmp_path, gallery, values):
    index = build_and_open(gallery, tmp_path, dataclasses.replace(SHORT, values=values))
    queries = scattered(np.random.default_rng(1), 8, D)
    columns = stored_columns(index)
    hits = index.search(queries, top=7, seeds=4, refine=0)
    for q in range(8):
        f = reference.diffuse(queries[q : q + 1], gallery, columns, 4, SHORT)
        expected = reference.largest(f, 7)
        assert hits.ids[q, : len(expected)].tolist() == expected
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-6)


def test_gamma_weighs_the_seeds(tmp_path, gallery):
    query = scattered(np.random.default_rng(1), 1, D)
    for gamma in (1.0, 6.0):
        (tmp_path / str(gamma)).mkdir()
        index = build_and_open(gallery, tmp_path / str(gamma), dataclasses.replace(SHORT, graph="paper", gamma=gamma))
        f = reference.diffuse(query, gallery, stored_columns(index), 10, index.params)
        assert index.search(query, top=1, refine=0).scores[0, 0] == pytest.approx(f.max(), rel=1e-6)


def test_seeds_with_negative_similarity_have_no_weight(tmp_path):
    features = unit([[1, 0, 0], [1, 0.1, 0], [-1, 0, 0.1], [-1, 0.1, 0.1]])
    index = build_and_open(features, tmp_path, WHOLE)
    hits = index.search(features[:1], top=4, seeds=4)
    assert hits.ids[0].tolist() == [0, 1, 3, 2]
    assert (hits.scores[0, :2] > 0).all()
    assert hits.scores[0, 2:].tolist() == [0, 0]


def test_diffusion_follows_a_curve_that_cosine_leaves(tmp_path):
    # A half circle, and nearer to its first point than its middle is, a cluster that no edge joins with it.
    angles = np.linspace(0, np.pi, 60)
    curve = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    features = unit(np.concatenate([curve, np.tile([0.8, 0, 0.6], (5, 1)) + 0.01 * np.eye(5, 3)]))
    index = build_and_open(features, tmp_path, dataclasses.replace(WHOLE, k=5))
    plain = index.search(features[:1], top=18, method="knn").ids[0]
    diffused = index.search(features[:1], top=18, seeds=3).ids[0]
    assert (plain >= 60).any()
    assert (diffused < 60).all()


# --- the same whatever the company


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, m=st.integers(2, 20), top=st.integers(1, N), seeds=st.integers(1, 20))
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_a_query_finds_the_same_alone_and_in_a_batch(short_index, method, seed, m, top, seeds):
    queries = scattered(np.random.default_rng(seed), m, D)
    together = short_index.search(queries, top, seeds, method=method)
    assert together.ids.shape == together.scores.shape == (m, top)
    for q in range(m):
        alone = short_index.search(queries[q : q + 1], top, seeds, method=method)
        same_hits(alone, suffuse.Hits(together.ids[q : q + 1], together.scores[q : q + 1]))


def test_many_threads_find_what_one_finds(short_index):
    queries = scattered(np.random.default_rng(5), 40, D)
    expected = {method: short_index.search(queries, N, method=method) for method in ("diffusion", "knn")}
    together = threading.Barrier(8)

    def search(number):
        together.wait()
        return [
            (method, short_index.search(queries, N, method=method))
            for _ in range(10)
            for method in (("diffusion", "knn") if number % 2 else ("knn", "diffusion"))
        ]

    with ThreadPoolExecutor(8) as threads:
        for results in threads.map(search, range(8)):
            for method, hits in results:
                same_hits(hits, expected[method])


def test_the_length_and_type_of_a_query_do_not_matter(short_index):
    queries = np.random.default_rng(9).integers(1, 200, size=(5, D)).astype(np.uint8)
    expected = short_index.search(queries, N)
    same_hits(short_index.search(queries.astype(np.float64) * 1e200, N), expected)
    same_hits(short_index.search(np.asfortranarray(queries.astype(np.float32)), N), expected)


def test_queries_are_left_as_they_were(short_index):
    queries = 3 * scattered(np.random.default_rng(9), 5, D)
    before = queries.copy()
    short_index.search(queries)
    np.testing.assert_array_equal(queries, before)


# --- the whole ranking


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, seeds=st.integers(1, 10))
def test_a_full_ranking_has_everyone_once_reached_first_then_the_rest_by_cosine(short_index, gallery, seed, seeds):
    query = scattered(np.random.default_rng(seed), 1, D)
    hits = short_index.search(query, top=len(short_index), seeds=seeds)
    ids, scores = hits.ids[0], hits.scores[0]
    y = reference.seeds_of(query, gallery, seeds, SHORT)
    by_columns = np.flatnonzero(reference.combine(*y, stored_columns(short_index)))
    near = len(by_columns)
    reached = near + count_far(short_index, ids, scores, near, *y)
    assert sorted(ids.tolist()) == list(range(N))
    assert near < N
    assert sorted(ids[:near].tolist()) == by_columns.tolist()
    assert (np.diff(scores) <= 0).all()
    assert (scores[:reached] > 0).all()
    assert not scores[reached:].any()
    by_cosine = reference.nearest(query, gallery, N)[0][0]
    assert ids[reached:].tolist() == [i for i in by_cosine if i not in set(ids[:reached].tolist())]


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, top=st.integers(1, N), method=st.sampled_from(["diffusion", "knn"]))
def test_a_shorter_ranking_is_the_begin_of_a_longer_one(short_index, seed, top, method):
    query = scattered(np.random.default_rng(seed), 1, D)
    whole = short_index.search(query, N, 3, method=method)
    same_hits(short_index.search(query, top, 3, method=method), suffuse.Hits(whole.ids[:, :top], whole.scores[:, :top]))


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_more_hits_than_images_are_all_images(short_index, method):
    queries = scattered(np.random.default_rng(2), 3, D)
    same_hits(short_index.search(queries, 10 * N, method=method), short_index.search(queries, N, method=method))


def test_more_seeds_than_elements_are_all_elements(short_index):
    queries = scattered(np.random.default_rng(2), 3, D)
    same_hits(short_index.search(queries, N, 10 * N), short_index.search(queries, N, N))


def test_the_ranking_by_cosine_equals_brute_force(short_index, gallery):
    queries = scattered(np.random.default_rng(2), 10, D)
    hits = short_index.search(queries, 30, method="knn")
    ids, sims = reference.nearest(queries, gallery, 30)
    np.testing.assert_array_equal(hits.ids, ids)
    np.testing.assert_allclose(hits.scores, sims, rtol=1e-6, atol=1e-7)


def test_duplicates_are_ranked_by_id(tmp_path):
    features = duplicated(np.random.default_rng(7), N, D, distinct=4)
    hits = build_and_open(features, tmp_path, SHORT).search(features[:1], N, method="knn")
    twins = [i for i in range(N) if np.array_equal(features[i], features[0])]
    assert hits.ids[0, : len(twins)].tolist() == twins
