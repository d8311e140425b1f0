"""Neighbours by pairs of shards: the same lists as a search of everything at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import clusters, duplicated, seeds_of_rng, unit

from suffuse.core import Damaged
from suffuse.core import neighbors as shards
from suffuse.core.kernels.nearest import keep_largest_of_columns, keep_largest_of_rows
from suffuse.core.neighbors import Lists, nearest_to_rows, unpack_keys


def by_pairs(features, starts, k):
    n = len(features)
    ranges = [range(start, min(start + starts.step, n)) for start in starts]
    lists = {(a, a): shards.search_shard(features, a.start, a.stop, k) for a in ranges}
    for a in ranges:
        for b in ranges:
            if a.start < b.start:
                lists[a, b], lists[b, a] = shards.search_pair(features, a, b, lists[a, a], lists[b, b])
    found = [shards.merge_shards(features, a.start, a.stop, [lists[a, b] for b in ranges], k) for a in ranges]
    return np.concatenate([part.ids for part in found]), np.concatenate([part.sims for part in found])


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds_of_rng,
    n=st.integers(1, 60),
    rows=st.integers(1, 60),
    k=st.integers(1, 70),
    tile=st.integers(1, 40),
    repeated=st.booleans(),
)
def test_shards_find_what_one_search_finds(seed, n, rows, k, tile, repeated):
    rng = np.random.default_rng(seed)
    features = duplicated(rng, n, 5, max(1, n // 4)) if repeated else clusters(rng, n, 5)
    expected = nearest_to_rows(features, 0, n, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "TILE", tile)
        ids, sims = by_pairs(features, range(0, n, rows), k)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_array_equal(sims, expected.sims)


def test_lists_are_right_where_tiles_are_wider_than_the_lanes_of_the_kernel():
    features = clusters(np.random.default_rng(1), 700, 8, spread=0.5)
    expected = nearest_to_rows(features, 0, 700, 30)
    ids, sims = by_pairs(features, range(0, 700, 300), 30)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_array_equal(sims, expected.sims)


@pytest.mark.parametrize(("n", "block"), [(1, 128), (5063, 158), (100_000, 2048), (1_000_000, 2048), (3000, 128)])
def test_shards_are_whole_blocks_that_cover_everything(n, block):
    starts = shards.shard_starts(n, block)
    assert starts.start == 0
    assert starts.step % block == 0
    assert starts[-1] < n <= starts[-1] + starts.step
    assert starts.step <= 32768


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, m=st.integers(1, 5), n=st.integers(1, 300), count=st.integers(1, 40), columns=st.booleans())
def test_lists_keep_the_largest_of_whatever_sign_ties_by_id(seed, m, n, count, columns):
    rng = np.random.default_rng(seed)
    sims = (rng.integers(-9, 10, (m, n)) / rng.choice([1, 7])).astype(np.float32)
    best = Lists(m, count)
    for start in range(0, n, 97):
        part = np.ascontiguousarray(sims[:, start : start + 97])
        if columns:
            best.enter_columns(0, np.ascontiguousarray(part.T), start)
        else:
            best.enter_rows(0, part, start)
    found_sims, found_ids = unpack_keys(best.largest())
    for row in range(m):
        order = np.lexsort((np.arange(n), -sims[row]))[:count]
        kept = found_ids[row] >= 0
        # Of entries that equal the smallest one kept, any may have come first: those are decided by `chosen`.
        assert kept.sum() == min(count, n)
        np.testing.assert_array_equal(found_sims[row][kept], sims[row][order])
        np.testing.assert_array_equal(sims[row][found_ids[row][kept]], found_sims[row][kept])
        assert len(set(found_ids[row][kept])) == kept.sum()


@pytest.mark.parametrize("kernel", [keep_largest_of_rows, keep_largest_of_columns])
def test_what_is_not_above_the_floor_or_not_a_number_is_not_kept(kernel):
    sims = np.full((70, 70), 0.5, np.float32)
    sims[3, 4], sims[5, 6] = np.nan, 0.75
    keys, counts = np.zeros((70, 10), np.uint64), np.zeros(70, np.int64)
    kernel(sims, 0, keys, counts, np.full(70, 0.5, np.float32))
    assert counts.sum() == 1


def test_features_that_are_not_finite_are_noticed():
    features = unit(np.random.default_rng(0).standard_normal((20, 4)))
    features[7] = np.nan
    with pytest.raises(Damaged, match="not finite"):
        by_pairs(features, range(0, 20, 10), 3)
