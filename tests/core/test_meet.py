"""Which columns a change concerns: the kernel beside its slow twin, over sound, damaged and misplaced columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import seeds_of_rng

from suffuse.core.columns import Columns, Solved
from suffuse.core.kernels.growth import meet_marked


def met_slowly(columns, marked):
    """1 for each column that cannot be read (None), or that holds a marked id or one that does not exist."""
    return [int(ids is None or any(id >= len(marked) or marked[id] for id in ids)) for ids in columns]


def met(starts, stops, entries, values, marked):
    out = np.full(len(starts), 7, np.uint8)
    meet_marked(starts, stops, entries, values, marked, out)
    return out.tolist()


def spans(data, count, length):
    """Where columns start and stop: mostly inside, in any order; some backwards, negative or behind the end."""
    places = st.integers(-2, length + 2)
    inside = st.tuples(st.integers(0, length), st.integers(0, length)).map(sorted)
    drawn = [data.draw(st.one_of(inside, inside, st.tuples(places, places))) for _ in range(count)]
    return (np.array([span[i] for span in drawn], np.int64) for i in (0, 1))


def is_inside(start, stop, length):
    return 0 <= start <= stop <= length


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.integers(0, 12), max_size=40),
    marked=st.lists(st.booleans(), min_size=1, max_size=10),
    values=st.sampled_from([np.float32, np.uint16]),
    data=st.data(),
)
def test_plain_columns_are_met_as_the_slow_twin_says(rows, marked, values, data):
    """Ids go up to 12, so some do not exist."""
    marked, entries = np.array(marked, np.uint8), np.array(rows, np.uint32)
    starts, stops = spans(data, 5, len(rows))
    columns = [
        rows[start:stop] if is_inside(start, stop, len(rows)) else None
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    assert met(starts, stops, entries, np.ones(len(rows), values), marked) == met_slowly(columns, marked)


@settings(deadline=None, max_examples=200)
@given(
    codes=st.lists(st.one_of(st.integers(0, 7), st.integers(0, 255)), max_size=90),
    fill=st.booleans(),
    marked=st.lists(st.booleans(), min_size=1, max_size=120),
    data=st.data(),
)
def test_any_bytes_are_met_as_the_slow_twin_says(codes, fill, marked, data):
    codes = [1, 5] * 20 + codes if fill else codes  # a sound head, so that the tail is met as well
    marked = np.array(marked, np.uint8)
    starts, stops = spans(data, 4, len(codes))
    columns = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        entries = reference.decode_column(codes[start:stop], 1.0) if is_inside(start, stop, len(codes)) else None
        columns.append(None if entries is None else [id for id, _ in entries])
    found = met(starts, stops, np.array(codes, np.uint8), np.ones(4, np.float32), marked)
    assert found == met_slowly(columns, marked)


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, share=st.sampled_from([0.0, 0.002, 0.02]))
def test_coded_columns_with_a_tail_are_met_where_they_hold_a_marked_id(seed, share):
    rng = np.random.default_rng(seed)
    lists = [rng.choice(500, size=rng.integers(0, 80), replace=False) for _ in range(6)]
    values = [np.sort(rng.uniform(0.01, 1.0, len(ids)).astype(np.float32))[::-1] for ids in lists]
    indptr = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
    plain = Columns.of(indptr, np.concatenate(lists).astype(np.int32), np.concatenate(values))
    coded = Solved(plain, np.diff(indptr), np.zeros(6)).encode().columns
    marked = (rng.random(500) < share).astype(np.uint8)
    found = met(*coded, marked)
    assert found == [int(marked[ids].any()) for ids in lists]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_where_nothing_is_marked_only_damaged_columns_are_met(dtype):
    entries = np.zeros(0, dtype)
    starts, stops = np.array([0, 0, -1]), np.array([0, 1, 0])
    values = np.ones(3 if dtype is np.uint8 else 0, np.float32)
    assert met(starts, stops, entries, values, np.zeros(4, np.uint8)) == [0, 1, 1]
