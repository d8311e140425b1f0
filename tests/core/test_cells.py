"""Neighbours within cells: a graph for sets that are too large for all pairs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import clusters, duplicated, seeds_of_rng

import suffuse
from suffuse import Index, Params
from suffuse.core.cells import make_cells, nearest_in_cells
from suffuse.core.neighbors import Neighbors, nearest_to_rows


def lists_by_element(features, cells, k):
    """The lists of all elements; they are found in the order of positions."""
    found, place = nearest_in_cells(features, cells, 0, len(features), k), np.argsort(cells.order)
    return Neighbors(found.ids[place], found.sims[place])


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(1, 80), probes=st.integers(1, 12), k=st.integers(1, 20), repeated=st.booleans())
def test_every_list_holds_the_nearest_of_the_cells_that_were_visited(seed, n, probes, k, repeated):
    rng = np.random.default_rng(seed)
    features = duplicated(rng, n, 5, max(1, n // 3)) if repeated else clusters(rng, n, 5)
    cells, k = make_cells(features, probes), min(k, n)
    assert sorted(cells.order.tolist()) == list(range(n))
    found = lists_by_element(features, cells, k)
    sims = features.astype(np.float64) @ features.T.astype(np.float64)
    for cell in range(len(cells.starts) - 1):
        visited = np.concatenate([cells.order[cells.starts[c] : cells.starts[c + 1]] for c in cells.near[cell]])
        for row in cells.order[cells.starts[cell] : cells.starts[cell + 1]]:
            rank_by = np.where(visited == row, np.inf, sims[row, visited].astype(np.float32))
            expected = visited[np.lexsort((visited, -rank_by))][:k].tolist()
            assert found.ids[row].tolist() == expected + [row] * (k - len(expected))
            assert (found.sims[row, len(expected) :] == 0).all()
            np.testing.assert_allclose(found.sims[row, : len(expected)], sims[row, expected], rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=seeds_of_rng, cut=st.integers(0, 60))
def test_lists_do_not_depend_on_the_block(seed, cut):
    features = clusters(np.random.default_rng(seed), 60, 5)
    cells = make_cells(features, 3)
    whole = nearest_in_cells(features, cells, 0, 60, 7)
    parts = [nearest_in_cells(features, cells, a, b, 7) for a, b in ((0, cut), (cut, 60))]
    np.testing.assert_array_equal(whole.ids, np.concatenate([part.ids for part in parts]))
    np.testing.assert_array_equal(whole.sims, np.concatenate([part.sims for part in parts]))


def test_all_cells_find_what_exact_search_finds():
    features = clusters(np.random.default_rng(2), 300, 8, spread=0.5)
    cells = make_cells(features, 10_000)
    found = lists_by_element(features, cells, 20)
    expected = nearest_to_rows(features, 0, 300, 20)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.sims, expected.sims)


@pytest.mark.parametrize("probes", [3, 10_000])
def test_an_index_can_be_built_by_cells(tmp_path, probes):
    features = clusters(np.random.default_rng(3), 500, 8, count=10)
    params = Params(k=10, truncation=50, keep=20, graph_search="cells", probes=probes)
    suffuse.build(features, tmp_path / "cells.index", params)
    suffuse.build(features, tmp_path / "exact.index", dataclasses.replace(params, graph_search="exact"))
    cells, exact = (Index.open(tmp_path / f"{name}.index").search(features[:50], top=5) for name in ("cells", "exact"))
    same = (cells.ids == exact.ids).mean()
    assert same == 1 if probes == 10_000 else same > 0.8
