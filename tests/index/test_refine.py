"""The second look at the first hits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import curves
from tests.support.indexes import count_far, stored_column

import suffuse
import suffuse.index.search
from suffuse import Index, InvalidParams, Params
from suffuse.core.neighbors import nearest

N = 150


@pytest.fixture(scope="module", params=["uint8", "float16", "float32"])
def index(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("refine") / request.param
    features = curves(np.random.default_rng(2), N, 10)
    suffuse.build(features, path, Params(k=8, truncation=60, keep=40, values=request.param))
    return Index.open(path)


def columns(index, depth=N):
    """Row i is column i, cut to its first `depth` entries, which are the largest."""
    if index.params.values == "uint8" and depth < N:
        depth = 20  # a coded column has so many in front, in the order of their ids, and no others are looked at
    matrix = np.zeros((N, N))
    for i in range(N):
        ids, values = stored_column(index, i)
        matrix[i, ids[:depth]] = values[:depth]
    return matrix


def refined_slowly(index, query, refine, depth):
    """Rank by f, then the first `refine` by cos(f, their column cut to its `depth` largest entries)."""
    matrix = columns(index)
    seeds = nearest(index.prepare(query[None]), index.features, 10)
    weights = reference.seed_weights(seeds.ids[0], seeds.sims[0], index.features, index.params)
    f = weights @ matrix[seeds.ids[0]]
    order = np.lexsort((np.arange(N), -f.astype(np.float32)))
    candidates = order[f[order] > 0][:refine]
    own = columns(index, depth)[candidates]
    return candidates, own @ f / np.linalg.norm(f) / np.linalg.norm(own, axis=1)


@pytest.mark.parametrize("depth", [5, 100])
def test_scores_are_the_cosine_with_the_candidates_own_column(index, monkeypatch, depth):
    monkeypatch.setattr(suffuse.index.search, "REFINE_DEPTH", depth)
    lengths = []
    for query in np.random.default_rng(3).standard_normal((5, 10)):
        hits = index.search(query[None], top=20, refine=20)
        candidates, cosines = refined_slowly(index, query, 20, depth)
        lengths.append(reached := len(candidates))
        assert set(hits.ids[0, :reached]) == set(candidates)
        expected = dict(zip(candidates.tolist(), cosines, strict=True))
        scores = [expected[i] for i in hits.ids[0, :reached].tolist()]
        np.testing.assert_allclose(hits.scores[0, :reached], scores, rtol=1e-4)
        assert (np.diff(hits.scores[0]) <= 0).all()
        if reached < 20:  # then the columns of the seeds end, and the ranking goes on as every other
            whole = index.search(query[None], top=N, refine=20)
            np.testing.assert_array_equal(hits.ids[0], whole.ids[0, :20])
            np.testing.assert_array_equal(hits.scores[0], whole.scores[0, :20])
            y = reference.seeds_of(index.prepare(query[None]), index.features, 10, index.params)
            assert np.count_nonzero(whole.scores) == reached + count_far(index, *whole[0], reached, *y)
    assert lengths.count(20) >= 4


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, N), st.integers(1, N))
def test_a_full_ranking_stays_one_and_scores_never_rise(index, seed, refine, top):
    query = np.random.default_rng(seed).standard_normal((1, 10))
    hits = index.search(query, top=N, refine=refine)
    assert sorted(hits.ids[0].tolist()) == list(range(N))
    assert (np.diff(hits.scores[0]) <= 1e-7).all()
    assert hits.scores[0].min() >= 0
    np.testing.assert_array_equal(index.search(query, top=top, refine=refine).ids[0], hits.ids[0, :top])


def test_hits_behind_the_candidates_keep_their_order(index):
    query = curves(np.random.default_rng(7), 1, 10)
    plain, refined = index.search(query, top=N, refine=0), index.search(query, top=N, refine=8)
    assert set(plain.ids[0, :8]) == set(refined.ids[0, :8])
    np.testing.assert_array_equal(plain.ids[0, 8:], refined.ids[0, 8:])


def test_a_query_is_refined_alone_as_in_a_batch(index):
    queries = np.random.default_rng(4).standard_normal((6, 10))
    together = index.search(queries, top=15, refine=30)
    for q in range(6):
        alone = index.search(queries[q : q + 1], top=15, refine=30)
        np.testing.assert_array_equal(alone.ids[0], together.ids[q])
        np.testing.assert_array_equal(alone.scores[0], together.scores[q])


@pytest.mark.parametrize("refine", [-1, 2.5, True])
def test_a_bad_number_of_candidates_is_refused(index, refine):
    with pytest.raises(InvalidParams, match="refine must be"):
        index.search(np.ones((1, 10)), refine=refine)
