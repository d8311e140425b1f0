"""Our graph, against a slow twin: edges by what is near them, dense places, seeds by ranks from both sides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, curves, unit

from suffuse import Params
from suffuse.core.graph import balance, degrees_of, local_affinity, sums_of_balanced, transition_of, weigh_edges
from suffuse.core.neighbors import Neighbors, known_ranks, nearest_to_rows, take_marks, weigh_by_rank


def lists(features, k):
    return nearest_to_rows(unit(features), 0, len(features), k)


SETS = {
    "curves": curves(np.random.default_rng(0), 70, 6),
    "clusters": clusters(np.random.default_rng(1), 60, 8, count=5),
    "duplicates": np.repeat(clusters(np.random.default_rng(2), 12, 5, count=3), 5, axis=0),
    "all the same": np.ones((20, 3)),
    "opposite": np.concatenate([np.eye(6), -np.eye(6)]),
    "two": np.array([[1.0, 0.0], [0.8, 0.6]]),
}


@pytest.mark.parametrize("k", [2, 7, 50])
@pytest.mark.parametrize("name", SETS)
def test_affinity_equals_its_definition_and_is_symmetric_to_the_bit(name, k):
    found = lists(SETS[name], k)
    a = reference.dense(local_affinity(found))
    np.testing.assert_array_equal(a, a.T)
    np.testing.assert_allclose(a, reference.local_affinity(*found), rtol=1e-6, atol=1e-12)


def test_lists_that_end_early_give_the_edges_that_they_have():
    found = lists(SETS["clusters"], 12)
    ids, sims = found.ids.copy(), found.sims.copy()
    short = np.arange(0, len(ids), 3)
    ids[short, 5:], sims[short, 5:] = short[:, None], 0
    cut = Neighbors(ids, sims)
    a = reference.dense(local_affinity(cut))
    np.testing.assert_array_equal(a, a.T)
    np.testing.assert_allclose(a, reference.local_affinity(*cut), rtol=1e-6, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 12))
def test_blocks_of_rows_are_the_same_as_all_at_once(seed, n, k):
    found = lists(np.random.default_rng(seed).normal(size=(n, 4)), k)
    whole, params = local_affinity(found), Params(k=k)
    cut = n // 2
    parts = [weigh_edges(found, params, range(cut)), weigh_edges(found, params, range(cut, n))]
    np.testing.assert_array_equal(np.concatenate([part.weights for part in parts]), whole.weights)
    np.testing.assert_array_equal(np.concatenate([part.indices for part in parts]), whole.indices)
    degrees = np.concatenate([degrees_of(part) for part in parts])
    starts = (0, cut)
    balanced = np.concatenate([balance(part, start, degrees) for start, part in zip(starts, parts, strict=True)])
    np.testing.assert_array_equal(balanced, balance(whole, 0, degrees_of(whole)))


@pytest.mark.parametrize("name", SETS)
def test_balanced_degrees_make_dense_places_count_less(name):
    found = lists(SETS[name], 9)
    a = local_affinity(found)
    expected = reference.balanced(reference.dense(a))
    s = reference.dense(transition_of(found, Params(k=9)))
    np.testing.assert_allclose(s, reference.transition(expected), rtol=1e-10, atol=1e-15)
    degrees = degrees_of(a)
    np.testing.assert_allclose(sums_of_balanced(degrees, balance(a, 0, degrees)), expected.sum(axis=1), rtol=1e-10)
    assert np.abs(np.linalg.eigvalsh(s)).max(initial=0) <= 1 + 1e-9


def test_many_copies_of_one_picture_stay_tied_to_what_is_like_them():
    rng = np.random.default_rng(3)
    centre = rng.normal(size=16)
    features = np.concatenate([np.repeat(centre[None], 12, axis=0), centre + 0.4 * rng.normal(size=(40, 16))])
    a = reference.dense(local_affinity(lists(features, 50)))
    assert (a[:12, 12:] > 0).any(axis=1).all()


def test_known_ranks_are_powers_of_two_and_the_last():
    assert known_ranks(50).tolist() == [1, 2, 4, 8, 16, 32, 49]
    assert known_ranks(200).tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 199]
    assert [known_ranks(k).tolist() for k in (2, 3, 4, 5, 6)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 5]]


def test_marks_are_distances_and_what_a_list_lacks_is_as_far_as_can_be():
    found = lists(SETS["curves"], 10)
    marks = take_marks(found, 20, np.arange(70))
    np.testing.assert_allclose(marks[:, :4], 1 - found.sims[:, [1, 2, 4, 8]], rtol=1e-3, atol=1e-6)
    assert (marks[:, 4:] == 2).all()
    found.ids[5, 3:] = 5
    assert take_marks(found, 10, np.arange(70))[5].tolist()[2:] == [2, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 12))
def test_weights_of_seeds_equal_their_definition(seed, k, seeds):
    rng = np.random.default_rng(seed)
    features = unit(curves(rng, 40, 5))
    found = lists(features, min(k, 40))
    query = unit(features[[3]] + 0.3 * rng.normal(size=(1, 5)))
    ids, sims = reference.nearest(query, features, seeds)
    marks = take_marks(found, k, np.arange(40))[ids[0]]
    weights = weigh_by_rank(sims.astype(np.float32), np.ascontiguousarray(marks), k)
    expected = reference.seed_weights(ids[0], sims[0].astype(np.float32), features, Params(k=k))
    np.testing.assert_allclose(weights[0], expected, rtol=2e-3)  # marks next to the distance may round either way


def test_a_seed_that_is_not_alike_weighs_nothing_and_one_that_is_the_query_weighs_one():
    marks = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]], np.float16)
    weights = weigh_by_rank(np.array([[1.0, 0.0, -0.5]], np.float32), marks, 5)
    assert weights.tolist() == [[1.0, 0.0, 0.0]]
