"""Exact nearest neighbours: self first, ties by id, whatever the batch or block."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, curves, duplicated, lattice, scattered, seeds_of_rng

from suffuse.core.neighbors import (
    Neighbors,
    merge_lists,
    nearest,
    nearest_to_elements,
    nearest_to_rows,
    nearest_visible,
)


def same_bytes(found, expected):
    assert found.ids.dtype == np.int32
    assert found.sims.dtype == np.float32
    assert found.ids.shape == expected[0].shape
    np.testing.assert_array_equal(found.ids, expected[0])
    np.testing.assert_array_equal(found.sims.view(np.uint32), expected[1].view(np.uint32))


# --- the lists


@settings(deadline=None, max_examples=50)
@given(seed=seeds_of_rng, n=st.integers(2, 60), d=st.integers(4, 8), k=st.integers(1, 70))
def test_neighbors_of_rows_equal_a_full_sort_with_self_first_and_ties_by_id(seed, n, d, k):
    features = lattice(np.random.default_rng(seed), n, d)
    same_bytes(nearest_to_rows(features, 0, n, k), reference.nearest(features, features, min(k, n), own=range(n)))


@settings(deadline=None, max_examples=50)
@given(seed=seeds_of_rng, n=st.integers(2, 60), m=st.integers(1, 30), d=st.integers(4, 8), k=st.integers(1, 70))
def test_neighbors_of_queries_equal_a_full_sort_with_ties_by_id(seed, n, m, d, k):
    rng = np.random.default_rng(seed)
    queries, features = lattice(rng, m, d), lattice(rng, n, d)
    same_bytes(nearest(queries, features, k), reference.nearest(queries, features, min(k, n)))


@settings(deadline=None, max_examples=50)
@given(seed=seeds_of_rng, n=st.integers(2, 60), k=st.integers(1, 70), data=st.data())
def test_neighbors_of_any_elements_are_those_of_their_rows(seed, n, k, data):
    features = lattice(np.random.default_rng(seed), n, 6)
    elements = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40)))
    found = nearest_to_elements(features, elements, k)
    same_bytes(found, reference.nearest(features[elements], features, min(k, n), own=elements))


@settings(deadline=None, max_examples=80)
@given(seed=seeds_of_rng, n=st.integers(2, 60), k=st.integers(1, 70), share=st.sampled_from([0.0, 0.2, 0.9, 1.0]))
def test_the_nearest_of_those_shown_are_found_however_many_are_hidden(seed, n, k, share):
    rng, asked = np.random.default_rng(seed), []
    queries, features, hidden = lattice(rng, 5, 6), lattice(rng, n, 6), rng.random(n) < share

    def find(count):
        asked.append(count)
        return nearest(queries, features, count)

    found = nearest_visible(find, hidden, k)
    shown = np.flatnonzero(~hidden)
    ids, sims = np.empty((5, 0), int), np.empty((5, 0), np.float32)
    if len(shown):
        ids, sims = reference.nearest(queries, features[shown], min(k, len(shown)))
        ids = shown[ids]
    same_bytes(found, (ids, sims))
    assert max(asked) <= n
    if not hidden.any():
        assert len(asked) == 1


@settings(deadline=None, max_examples=80)
@given(seed=seeds_of_rng, n=st.integers(2, 60), k=st.integers(1, 70), at=st.floats(0, 1))
def test_the_nearest_of_two_parts_joined_are_the_nearest_of_all(seed, n, k, at):
    rng = np.random.default_rng(seed)
    queries, features, split = lattice(rng, 7, 6), lattice(rng, n, 6), max(1, min(n - 1, int(at * n)))
    first, second = nearest(queries, features[:split], k), nearest(queries, features[split:], k)
    behind = Neighbors(second.ids + np.int32(split), second.sims)
    for a, b in ((first, behind), (behind, first)):
        same_bytes(merge_lists(a, b, k), reference.nearest(queries, features, min(k, n)))


@pytest.mark.parametrize("make", [scattered, clusters, curves])
def test_neighbors_in_general_position_equal_a_full_sort(make):
    features = make(np.random.default_rng(5), 300, 24)
    found = nearest_to_rows(features, 0, 300, 20)
    ids, sims = reference.nearest(features, features, 20, own=range(300))
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.sims, sims, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, distinct=st.integers(1, 10), k=st.integers(1, 30))
def test_self_comes_first_by_id_even_among_duplicates(seed, distinct, k):
    features = duplicated(np.random.default_rng(seed), 50, 6, distinct)
    found = nearest_to_rows(features, 0, 50, k)
    np.testing.assert_array_equal(found.ids[:, 0], np.arange(50))
    for i, ids in enumerate(found.ids):
        twins = [j for j in range(50) if j != i and np.array_equal(features[i], features[j])]
        assert len(set(ids.tolist())) == k
        assert ids[1:].tolist()[: len(twins)] == twins[: k - 1]


def test_self_comes_first_where_faiss_never_proposes_it():
    features = np.tile(scattered(np.random.default_rng(1), 1, 16), (500, 1))
    found = nearest_to_rows(features, 490, 500, 3)
    assert found.ids.tolist() == [[i, 0, 1] for i in range(490, 500)]


def test_queries_have_no_self():
    features = np.tile(scattered(np.random.default_rng(1), 1, 16), (500, 1))
    assert nearest(features[490:], features, 3).ids.tolist() == [[0, 1, 2]] * 10


@settings(deadline=None, max_examples=25)
@given(
    seed=seeds_of_rng,
    cuts=st.sets(st.integers(1, 119), max_size=8),
    distinct=st.integers(3, 120),
    k=st.integers(1, 20),
)
def test_blocks_do_not_change_the_neighbors(seed, cuts, distinct, k):
    features = duplicated(np.random.default_rng(seed), 120, 33, distinct)
    whole = nearest_to_rows(features, 0, 120, k)
    bounds = [0, *sorted(cuts), 120]
    blocks = [nearest_to_rows(features, a, b, k) for a, b in itertools.pairwise(bounds)]
    same_bytes(whole, tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, m=st.integers(2, 60), distinct=st.integers(3, 150))
def test_a_query_finds_the_same_alone_and_in_a_batch(seed, m, distinct):
    rng = np.random.default_rng(seed)
    features, queries = duplicated(rng, 150, 40, distinct), scattered(rng, m, 40)
    together = nearest(queries, features, 10)
    for q in range(m):
        same_bytes(nearest(queries[q : q + 1], features, 10), (together.ids[q : q + 1], together.sims[q : q + 1]))


def test_a_tie_at_the_last_place_goes_to_the_smaller_ids_among_very_many():
    rng = np.random.default_rng(8)
    features, query = scattered(rng, 3000, 64), scattered(rng, 1, 64)
    ranking = reference.nearest(query, features, 3000)[0][0]
    twins = np.sort(rng.permutation(ranking[30:])[:2000])
    features[twins] = features[ranking[30]]
    found = nearest(query, features, 60)
    assert found.ids[0, :30].tolist() == ranking[:30].tolist()
    assert found.ids[0, 30:].tolist() == np.union1d(twins, ranking[30])[:30].tolist()


def test_rows_in_fortran_order_and_read_only_rows_are_searched_like_others():
    rng = np.random.default_rng(2)
    features, queries = scattered(rng, 80, 12), scattered(rng, 5, 12)
    expected = nearest(queries, features, 7)
    features.setflags(write=False)
    same_bytes(nearest(np.asfortranarray(queries), np.asfortranarray(features), 7), expected)
    same_bytes(nearest(queries, features, 7), expected)
