"""The mutual k-NN graph: A symmetric without loops, S symmetric to the bit with eigenvalues within 1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, curves, duplicated, lattice, scattered, unit

from suffuse.core.graph import Graph, affinity, summarize, transition
from suffuse.core.neighbors import Neighbors, nearest_to_rows

kinds = {
    "scattered": scattered,
    "clusters": clusters,
    "curves": curves,
    "lattice": lattice,
    "duplicated": lambda rng, n, d: duplicated(rng, n, d, distinct=max(1, n // 5)),
}


cases = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(kinds)),
    st.integers(2, 50),
    st.integers(4, 12),
    st.integers(2, 20),
)


def lists(case):
    """Neighbours of made-up vectors; not drawn by hypothesis, which would count the search as slow drawing."""
    seed, kind, n, d, k = case
    return nearest_to_rows(kinds[kind](np.random.default_rng(seed), n, d), 0, n, k)


gammas = st.floats(0.1, 100.0)


@settings(deadline=None, max_examples=50)
@given(cases, gammas)
def test_affinity_is_symmetric_to_the_bit_positive_and_without_loops(case, gamma):
    neighbors = lists(case)
    a = affinity(neighbors, gamma)
    matrix = reference.dense(a)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (a.weights > 0).all()
    assert not matrix.diagonal().any()


@settings(deadline=None, max_examples=50)
@given(cases, st.floats(0.1, 10.0))
def test_affinity_and_transition_equal_their_definitions(case, gamma):
    neighbors = lists(case)
    a = affinity(neighbors, gamma)
    expected = reference.affinity(*neighbors, gamma)
    np.testing.assert_allclose(reference.dense(a), expected, rtol=1e-14)
    np.testing.assert_allclose(reference.dense(transition(a)), reference.transition(expected), rtol=1e-13)


@settings(deadline=None, max_examples=50)
@given(cases, gammas)
def test_transition_is_symmetric_to_the_bit_with_eigenvalues_within_one(case, gamma):
    neighbors = lists(case)
    s = reference.dense(transition(affinity(neighbors, gamma)))
    np.testing.assert_array_equal(s, s.T)
    assert (s >= 0).all()
    assert np.abs(np.linalg.eigvalsh(s)).max() <= 1 + 1e-9


def everyone_lists_everyone(sims):
    """Neighbours from a symmetric matrix of similarities, each node first in its own list."""
    ids = np.argsort(~np.eye(len(sims), dtype=bool), axis=1, kind="stable").astype(np.int32)
    return Neighbors(ids, np.take_along_axis(sims, ids, axis=1).astype(np.float32))


def test_eigenvalues_stay_within_one_where_powers_of_similarities_nearly_underflow():
    rng = np.random.default_rng(1)
    for highest in np.repeat([6e-4, 6.5e-4, 7e-4, 9e-4], 10):
        sims = np.triu(rng.uniform(5.6e-4, highest, (6, 6)))
        a = affinity(everyone_lists_everyone(sims + sims.T - np.diag(sims.diagonal())), 100.0)
        assert np.abs(np.linalg.eigvalsh(reference.dense(transition(a)))).max() <= 1 + 1e-9


def test_edges_that_are_small_but_not_too_small_for_float64_are_kept():
    sims = np.array([[1.0, 1e-3], [1e-3, 1.0]])
    a = affinity(everyone_lists_everyone(sims), 100.0)
    np.testing.assert_allclose(a.weights, float(np.float32(1e-3)) ** 100.0, rtol=1e-12)
    assert transition(a).weights.tolist() == pytest.approx([1.0, 1.0])


def test_the_largest_eigenvalue_is_one_where_there_are_edges():
    features = clusters(np.random.default_rng(4), 40, 8)
    s = reference.dense(transition(affinity(nearest_to_rows(features, 0, 40, 6), 3.0)))
    assert np.linalg.eigvalsh(s).max() == pytest.approx(1.0, abs=1e-12)


def test_only_neighbors_on_both_sides_are_joined():
    # 0 and 1 are nearest to each other; 2 lists 1, which does not list it.
    angles = np.array([0.0, 0.1, 0.3])
    features = unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    a = affinity(nearest_to_rows(features, 0, 3, 2), 3.0)
    assert a.indptr.tolist() == [0, 1, 2, 2]
    assert a.indices.tolist() == [1, 0]
    np.testing.assert_allclose(a.weights, np.cos(0.1) ** 3, rtol=1e-6)


def test_a_node_without_neighbors_keeps_an_empty_row():
    features = unit([[1, 0, 0], [1, 0.1, 0], [-1, -1, 0.1], [1, 0.05, 0]])
    a = affinity(nearest_to_rows(features, 0, 4, 4), 3.0)
    s = transition(a)
    assert a.indptr[3] - a.indptr[2] == s.indptr[3] - s.indptr[2] == 0
    assert not reference.dense(s)[2].any()
    assert not reference.dense(s)[:, 2].any()
    assert np.isfinite(s.weights).all()


@pytest.mark.parametrize("gamma", [1.5, 2.0, 3.0])
def test_similarities_of_zero_or_less_give_no_edges(gamma):
    features = unit([[1, 0], [0, 1], [-1, 0], [0, -1]])
    s = transition(affinity(nearest_to_rows(features, 0, 4, 4), gamma))
    assert s.indptr.tolist() == [0, 0, 0, 0, 0]
    assert len(s.indices) == len(s.weights) == 0


@pytest.mark.parametrize("k", [5, 6, 100])
def test_a_list_longer_than_the_database_joins_everyone(k):
    features = unit(np.eye(5) + 0.5)
    s = reference.dense(transition(affinity(nearest_to_rows(features, 0, 5, k), 3.0)))
    np.testing.assert_allclose(s, (1 - np.eye(5)) / 4, rtol=1e-6)


def test_duplicates_join_the_first_of_them_by_id():
    features = np.tile(scattered(np.random.default_rng(0), 1, 8), (30, 1))
    matrix = reference.dense(affinity(nearest_to_rows(features, 0, 30, 5), 3.0))
    expected = np.zeros((30, 30))
    expected[:5, :5] = 1 - np.eye(5)
    # Each later one lists itself and 0 to 3, who do not list it.
    np.testing.assert_allclose(matrix, expected, rtol=1e-5)


def components_by_hand(matrix):
    """The sizes of the connected components, by painting from each unpainted node."""
    unpainted, sizes = set(range(len(matrix))), []
    while unpainted:
        frontier = {min(unpainted)}
        painted = set()
        while frontier:
            painted |= frontier
            frontier = {j for i in frontier for j in np.flatnonzero(matrix[i]).tolist()} - painted
        unpainted -= painted
        sizes.append(len(painted))
    return sizes


@settings(deadline=None, max_examples=40)
@given(cases)
def test_the_summary_counts_what_is_there(case):
    s = transition(affinity(lists(case), 3.0))
    matrix = reference.dense(s)
    degrees = [np.count_nonzero(row) for row in matrix]
    sizes = components_by_hand(matrix)
    summary = summarize(s)
    assert summary.edges == np.count_nonzero(np.triu(matrix))
    assert summary.degree_mean == pytest.approx(np.mean(degrees), abs=5.1e-4)  # three decimals
    assert summary.degree_median == np.median(degrees)
    assert summary.degree_largest == max(degrees)
    assert summary.isolated == degrees.count(0)
    assert summary.components == len(sizes)
    assert summary.largest_component == max(sizes)
    assert all(type(value) in (int, float) for value in summary)


def test_a_graph_without_edges_is_summarized():
    empty = Graph(np.zeros(4, np.uint64), np.empty(0, np.uint32), np.empty(0))
    summary = summarize(empty)
    assert (summary.edges, summary.isolated, summary.components, summary.largest_component) == (0, 3, 3, 1)


def test_neighbors_are_left_as_they_were():
    features = clusters(np.random.default_rng(2), 20, 6)
    neighbors = nearest_to_rows(features, 0, 20, 5)
    before = neighbors.ids.copy(), neighbors.sims.copy()
    a = affinity(neighbors, 3.0)
    weights = a.weights.copy()
    transition(a)
    np.testing.assert_array_equal(neighbors.ids, before[0])
    np.testing.assert_array_equal(neighbors.sims, before[1])
    np.testing.assert_array_equal(a.weights, weights)
