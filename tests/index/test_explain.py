"""Why a picture was found: contributions against dense columns, chains against every simple path."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import curves, network, seeds_of_rng
from tests.support.indexes import OWNERS, D, N, build_and_open, count_far, stored_columns

import suffuse
from suffuse import Index, InvalidInput, Params
from suffuse.core import Damaged
from suffuse.core.graph import transition_of
from suffuse.core.neighbors import nearest_to_rows
from suffuse.index.explain import NO_GRAPH, NO_PATH, explain, strongest_chain
from suffuse.index.search import compose, find_seeds, search

ALPHA = 0.9


@pytest.fixture(scope="module", params=["local-uint8", "local-float16", "local-float32", "paper-uint8"])
def index(request, tmp_path_factory):
    features = curves(np.random.default_rng(2), N, D)
    graph, values = request.param.split("-")
    params = Params(graph=graph, k=8, truncation=60, keep=30, values=values)
    return build_and_open(features, tmp_path_factory.mktemp("explain"), params)


def graph_of(index):
    """S as the index would hold it."""
    indptr, indices, weights = transition_of(
        nearest_to_rows(index.features, 0, len(index.features), index.params.k), index.params
    )
    return SimpleNamespace(
        indptr=indptr.astype(np.int64), indices=indices.astype(np.int32), weights=weights.astype(np.float32)
    )


def dense(graph):
    return reference.dense((graph.indptr, graph.indices, graph.weights))


def y_of(index, positive, negative=(), seeds=5):
    return find_seeds(index.now, compose(index.now, positive, negative), seeds)


@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 8, 14], []), ([3, 8], [5])])
def test_contributions_are_the_parts_of_the_plain_score(index, positive, negative):
    y = y_of(index, positive, negative)
    found = search(index.now, compose(index.now, positive, negative), top=N, seeds=5, refine=0)
    columns, checked = stored_columns(index), 0
    named = [*positive, *negative]
    sims = reference.similarities(index.features[named].repeat(5, axis=0), index.features)[np.arange(len(y.ids)), y.ids]
    near = sum(f > 0 and id not in named for id, f in enumerate(columns[:, y.ids] @ y.weights))
    far = count_far(index, *found, near, y.ids, y.weights, named) if index.params.graph == "local" else 0
    assert np.count_nonzero(found.scores) == near + far
    for place, (item, score) in enumerate(zip(found.ids.tolist(), found.scores.tolist(), strict=True)):
        told = explain(index.now, y, item)
        if place >= near:  # by districts or by cosine: columns give nothing, or less than nothing
            assert told.score <= 0
            continue
        assert told.score == pytest.approx(score, rel=1e-5, abs=1e-9)
        checked += 1
        assert sum(one.share for one in told.contributions) == pytest.approx(1, rel=1e-9)
        amounts = [one.amount for one in told.contributions]
        assert amounts == sorted(amounts, reverse=True)
        for one in told.contributions:
            weight = y.weights[y.ids == one.seed].sum()
            assert one.weight == pytest.approx(weight)
            assert one.entry == pytest.approx(columns[item, one.seed], rel=1e-6)
            assert one.amount == pytest.approx(weight * columns[item, one.seed], rel=1e-6)
            assert np.sign(one.share) == np.sign(one.weight)
            assert one.similarity == pytest.approx(sims[y.ids == one.seed].max(), rel=1e-6)
        expected = [s for s in np.unique(y.ids).tolist() if columns[item, s] * y.weights[y.ids == s].sum()]
        assert sorted(one.seed for one in told.contributions) == expected
    assert checked > 5


def test_a_picture_that_diffusion_did_not_reach_has_no_contributions(index):
    columns, y = stored_columns(index), y_of(index, [3])
    far = int(np.flatnonzero(~columns[:, y.ids].any(axis=1))[0])
    told = explain(index.now, y, far)
    assert (told.score, told.contributions) == (0.0, [])


@pytest.mark.parametrize("pool", ["sum", "none"])
def test_seeds_of_a_regional_index_are_told_as_images(pool, gallery, tmp_path):
    suffuse.build(gallery, tmp_path / "x.index", Params(k=8, truncation=60, keep=15, pool=pool), owners=OWNERS)
    index = Index.open(tmp_path / "x.index")
    y = y_of(index, [4], seeds=6)
    found = search(index.now, compose(index.now, [4]), top=10, seeds=6, refine=0)
    columns = stored_columns(index, 25 if pool == "sum" else None)
    at = {image: columns[image] if pool == "sum" else columns[image == OWNERS].sum(axis=0) for image in range(25)}
    for item, score in zip(found.ids.tolist(), found.scores.tolist(), strict=True):
        told = explain(index.now, y, item)
        assert told.score == pytest.approx(score, rel=1e-5)
        for one in told.contributions:
            of = OWNERS[y.ids] == one.seed
            assert one.amount == pytest.approx(y.weights[of] @ at[item][y.ids[of]], rel=1e-5)
            assert one.weight * one.entry == pytest.approx(one.amount)
        assert len({one.seed for one in told.contributions}) == len(told.contributions)


def test_a_chain_needs_the_graph(index, monkeypatch):
    y = y_of(index, [3])
    monkeypatch.setitem(index.now.__dict__, "graph", None)
    told = explain(index.now, y, 6)
    assert told.chain is None
    assert told.chain_missing == NO_GRAPH
    monkeypatch.setitem(index.now.__dict__, "graph", graph_of(index))
    told = explain(index.now, y, 6)
    assert told.chain_missing is None
    assert told.chain.nodes[0] in y.ids
    assert told.chain.nodes[-1] == 6
    s = dense(graph_of(index))
    for (a, b), step in zip(itertools.pairwise(told.chain.nodes), told.chain.steps, strict=True):
        assert step == pytest.approx(index.params.alpha * s[a, b])


def test_a_chain_through_regions_is_told_as_images(gallery, tmp_path, monkeypatch):
    index = build_and_open(gallery, tmp_path, Params(k=8, truncation=60, keep=15), owners=OWNERS)
    monkeypatch.setitem(index.now.__dict__, "graph", graph_of(index))
    found = search(index.now, compose(index.now, [4]), top=5, seeds=3, refine=0)
    for item in found.ids.tolist():
        chain = explain(index.now, y_of(index, [4], seeds=3), item).chain
        assert chain.nodes[-1] == item
        assert len(chain.nodes) == len(chain.steps) + 1
        assert chain.strength == pytest.approx(chain.start * np.prod(chain.steps))


def best_by_all_paths(alpha_s, seeds, weights, targets):
    """The largest weight * product over every simple path from a seed to a target."""
    best = 0.0

    def walk(node, strength, seen):
        nonlocal best
        if node in targets:
            best = max(best, strength)
        for neighbor in np.flatnonzero(alpha_s[node]).tolist():
            if neighbor not in seen:
                walk(neighbor, strength * alpha_s[node, neighbor], seen | {neighbor})

    for seed, weight in zip(seeds, weights, strict=True):
        if weight > 0:
            walk(seed, weight, {seed})
    return best


def compressed(matrix):
    indptr, indices, weights = reference.compressed(matrix)
    return SimpleNamespace(
        indptr=indptr.astype(np.int64), indices=indices.astype(np.int32), weights=weights.astype(np.float32)
    )


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, n=st.integers(2, 8), degree=st.floats(1, 4))
def test_the_chain_is_the_strongest_of_all_simple_paths(seed, n, degree):
    rng = np.random.default_rng(seed)
    s = network(rng, n, degree)
    seeds = rng.choice(n, rng.integers(1, n + 1), replace=False)
    weights = rng.uniform(-0.3, 1, len(seeds))
    targets = rng.choice(n, rng.integers(1, 3), replace=False)
    chain = strongest_chain(compressed(s), ALPHA, seeds, weights, targets)
    best = best_by_all_paths(ALPHA * s, seeds.tolist(), weights, set(targets.tolist()))
    if chain is None:
        assert best == 0
        return
    assert chain.strength == pytest.approx(best)
    assert chain.nodes[-1] in targets
    assert chain.start == weights[seeds.tolist().index(chain.nodes[0])]
    product = chain.start
    for (a, b), step in zip(itertools.pairwise(chain.nodes), chain.steps, strict=True):
        assert step == pytest.approx(ALPHA * s[a, b])
        assert step > 0
        product *= step
    assert chain.strength == pytest.approx(product)
    assert len(set(chain.nodes)) == len(chain.nodes)


def test_the_chain_is_the_strongest_in_larger_graphs(index):
    """Against Bellman-Ford on the dense matrix."""
    graph, y = graph_of(index), y_of(index, [3, 10], seeds=4)
    alpha_s = index.params.alpha * dense(graph)
    strength = np.zeros(N)
    np.maximum.at(strength, y.ids, y.weights)
    for _ in range(N):
        strength = np.maximum(strength, (alpha_s * strength[None, :]).max(axis=1))
    ids, place = np.unique(y.ids, return_index=True)
    lengths = set()
    for item in range(N):
        chain = strongest_chain(graph, index.params.alpha, ids, y.weights[place], np.array([item]))
        assert (chain.strength if chain else 0.0) == pytest.approx(strength[item], rel=1e-6)
        lengths.add(len(chain.nodes) if chain else 0)
    assert max(lengths) > 3


def test_where_no_path_leads_there_is_no_chain(index, monkeypatch):
    empty = SimpleNamespace(
        indptr=np.zeros(N + 1, np.int64), indices=np.empty(0, np.int32), weights=np.empty(0, np.float32)
    )
    monkeypatch.setitem(index.now.__dict__, "graph", empty)
    y = y_of(index, [3], seeds=1)
    assert explain(index.now, y, 4)[2:] == (None, NO_PATH)
    chain = explain(index.now, y, 3).chain
    assert (chain.nodes, chain.steps, chain.strength) == ([3], [], pytest.approx(1.0))


def test_an_unknown_picture_is_refused(index):
    with pytest.raises(InvalidInput, match=f"there is no image {N}"):
        explain(index.now, y_of(index, [3]), N)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("indices", lambda array: array + 1000),
        ("indptr", lambda array: array * 5),
        ("indptr", lambda array: array[::-1]),
    ],
)
def test_a_damaged_graph_is_told_and_does_no_harm(index, name, change):
    graph = graph_of(index)
    setattr(graph, name, np.ascontiguousarray(change(getattr(graph, name))))
    seed, far = np.array([3]), np.array([N - 1])
    with pytest.raises(Damaged, match="ids or rows that do not exist"):
        strongest_chain(graph, ALPHA, seed, np.ones(1), far)
