"""What new elements change: the lists that they enter, found by threads and tiles, and the kernel beside its twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import seeds_of_rng

import suffuse.core.blas
from suffuse.core.blas import on_every_core
from suffuse.core.columns import Columns
from suffuse.core.growth import _above, concerned, enter_lists
from suffuse.core.kernels.growth import find_above
from suffuse.core.neighbors import TILE, Neighbors, nearest_to_rows


@settings(deadline=None, max_examples=100)
@given(
    seed=seeds_of_rng, rows=st.integers(0, 4), width=st.integers(0, 200), more=st.integers(0, 3), share=st.floats(0, 1)
)
def test_places_above_the_floors_are_those_of_the_slow_twin(seed, rows, width, more, share):
    rng = np.random.default_rng(seed)
    sims = rng.integers(0, 5, (rows, width + more)).astype(np.float32)  # so that some are equal to the floor
    floors = np.where(rng.random(width) < share, 3, np.inf).astype(np.float32)
    expected = [(row, column) for row in range(rows) for column in range(width) if sims[row, column] >= floors[column]]
    found = np.full((2, 7), 9, np.uint32)
    assert find_above(sims, floors, *found) == len(expected)
    assert found.T.tolist() == [list(place) for place in expected[:7]] + [[9, 9]] * (7 - len(expected))
    assert list(zip(*(part.tolist() for part in _above(sims, floors)), strict=True)) == expected


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_every_core_has_its_part_and_results_are_in_order(monkeypatch, cores):
    monkeypatch.setattr(suffuse.core.blas, "cores", lambda: cores)
    for count in (0, 1, 7, 64):
        for step in (1, 3, 100):
            parts = on_every_core(lambda start, stop: (start, stop), count, step)
            assert len(parts) <= cores
            assert [number for part in parts for number in range(*part)] == list(range(count))
            assert all(start % step == 0 for start, _ in parts)


def test_what_fails_on_one_core_is_told(monkeypatch):
    monkeypatch.setattr(suffuse.core.blas, "cores", lambda: 3)
    with pytest.raises(ZeroDivisionError):
        on_every_core(lambda start, stop: stop // start, 9)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("new", [5, TILE + 76])
def test_lists_are_exact_however_many_tiles_and_threads_there_are(monkeypatch, cores, new):
    monkeypatch.setattr(suffuse.core.blas, "cores", lambda: cores)
    rng = np.random.default_rng(new)
    features = rng.normal(size=(2 * TILE + 300 + new, 8)).astype(np.float32)
    features[-3:] = features[:3]  # duplicates, whose ties are broken by id
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    old, n, k = len(features) - new, len(features), 6
    before = nearest_to_rows(features[:old], 0, old, k)
    grown = enter_lists(features, before, np.zeros(n, bool))
    for found, expected in zip(grown.lists, nearest_to_rows(features, 0, n, k), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(grown.changed, np.flatnonzero((grown.lists.ids[:old] != before.ids).any(axis=1)))
    assert isinstance(grown.lists, Neighbors)


def test_columns_that_are_known_to_be_concerned_are_not_read():
    columns = Columns.of(np.array([0, 2, 3, 4, 5]), np.array([0, 1, 2, 3, 1], np.int32), np.ones(5, np.float32))
    assert concerned(columns, np.array([1, 9]), 4, np.array([], np.int64)).tolist() == [0, 3]
    assert concerned(columns, np.array([1, 9]), 4, np.array([2, 3])).tolist() == [0, 2, 3]
    unreadable = columns._replace(stops=columns.stops * [1, 1, 99, 1])
    assert concerned(unreadable, np.array([2]), 4, np.array([0])).tolist() == [0, 1, 2]
