"""Bring your own k-NN: `Index.combine` makes hits of seeds that another search found."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import scattered, seeds_of_rng
from tests.support.indexes import SHORT, D, N, build_and_open, count_far, same_hits, stored_columns

from suffuse import Hits
from suffuse.core.neighbors import nearest
from suffuse.errors import InvalidInput, InvalidParams


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, m=st.integers(1, 5), seeds=st.integers(1, 12), refine=st.sampled_from([None, 0, 4]))
def test_own_seeds_give_what_search_gives(short_index, seed, m, seeds, refine):
    queries = scattered(np.random.default_rng(seed), m, D)
    found = nearest(short_index.prepare(queries), short_index.features, seeds)
    expected = short_index.search(queries, top=5, seeds=seeds, refine=refine)
    hits = short_index.combine(found.ids, found.sims, top=5, refine=refine)
    reached = hits.ids >= 0
    np.testing.assert_array_equal(hits.ids[reached], expected.ids[reached])
    np.testing.assert_array_equal(hits.scores, np.where(reached, expected.scores, 0))


@pytest.mark.parametrize("graph", ["local", "paper"])
def test_seeds_from_anywhere_are_weighed_by_their_similarity(gallery, tmp_path, graph):
    index = build_and_open(gallery, tmp_path, dataclasses.replace(SHORT, graph=graph))
    ids, sims = np.array([[40, 3, 71], [5, 5, 6]], np.uint16), np.array([[0.9, 0.4, -0.3], [1, 2, 3]], np.float16)
    hits = index.combine(ids, sims, top=6, refine=0)
    columns = stored_columns(index)
    for q in range(2):
        nearest_first = np.argsort(-sims[q], kind="stable")  # whatever the order in which they were given
        seeds, similar = ids[q, nearest_first], sims[q, nearest_first]
        f = reference.combine(seeds, reference.seed_weights(seeds, similar, gallery, index.params), columns)
        expected = reference.largest(f, 6)
        assert hits.ids[q, : len(expected)].tolist() == expected
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-6)


def test_what_diffusion_does_not_reach_is_not_ranked(short_index):
    hits = short_index.combine(np.array([[7]]), np.array([[1.0]]), top=N, refine=0)
    column = np.flatnonzero(stored_columns(short_index)[:, 7])
    assert 1 < len(column) < N
    assert sorted(hits.ids[0, : len(column)]) == column.tolist()
    reached = len(column) + count_far(short_index, *hits[0], len(column), [7], [1.0])
    assert len(column) < reached < N
    assert (hits.ids[0, reached:] == -1).all()
    assert (hits.scores[0, reached:] == 0).all()


def test_a_place_where_nothing_was_found_counts_for_nothing(short_index):
    padded = short_index.combine(np.array([[3, 9, -1], [-1, -1, -1]]), np.array([[0.8, 0.5, np.nan], [1.0, 1.0, 1.0]]))
    same_hits(Hits(padded.ids[:1], padded.scores[:1]),
              short_index.combine(np.array([[3, 9]]), np.array([[0.8, 0.5]])))  # fmt: skip
    assert (padded.ids[1] == -1).all()


def test_seeds_of_a_regional_index_are_regions_and_hits_are_images(regional_index):
    hits = regional_index.combine(np.array([[79]]), np.array([[1.0]]), top=3)
    assert 0 <= hits.ids.max() < len(regional_index)
    with pytest.raises(InvalidParams, match="refine must be 0 for an index of regions"):
        regional_index.combine(np.array([[79]]), np.array([[1.0]]), refine=5)


@pytest.mark.parametrize(
    ("ids", "sims", "message"),
    [
        ([1, 2], [0.5, 0.5], r"of one shape, \(queries, seeds\), got \(2,\) and \(2,\)"),
        ([[1, 2]], [[0.5]], r"got \(1, 2\) and \(1, 1\)"),
        (np.zeros((0, 3), int), np.zeros((0, 3)), r"got \(0, 3\) and \(0, 3\)"),
        ([[1.0, 2.0]], [[0.5, 0.5]], "ids must be whole numbers, got float64"),
        ([[1, 2]], [["a", "b"]], "sims must be numbers, got <U1"),
        ([[1, 2], [3, N]], [[0.5, 0.5]] * 2, f"seed 1 of query 1 is element {N}, but there are {N}, numbered from 0"),
        ([[1, 2]], [[0.5, np.nan]], "the similarity of seed 1 of query 0 is nan; similarities must be finite"),
    ],
)
def test_seeds_that_cannot_be_used_are_named(short_index, ids, sims, message):
    with pytest.raises(InvalidInput, match=message):
        short_index.combine(ids, sims)


@pytest.mark.parametrize("top", [0, -1, 2.5, True])
def test_top_must_be_a_whole_number_from_one(short_index, top):
    with pytest.raises(InvalidParams, match="top must be a whole number of at least 1"):
        short_index.combine([[1]], [[0.5]], top)
