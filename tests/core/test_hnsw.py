"""HNSW: the kernel searches as the plain one does, finds nearly all, and survives any graph that it is given."""

import heapq
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import clusters, curves, duplicated, lattice, scattered, seeds_of_rng, unit

from suffuse.core import Damaged
from suffuse.core.ann import HnswGraph, build_hnsw, nearest_by_hnsw
from suffuse.core.blas import load_faiss, one_thread
from suffuse.core.kernels.hnsw import search_hnsw
from suffuse.core.neighbors import count_proposals, nearest
from suffuse.store.files import UNCHECKED


def manifold(rng, n, d):
    """Curves, and half as many vectors that lie on none."""
    return unit(np.concatenate([curves(rng, n - n // 3, d, count=12), scattered(rng, n // 3, d)]))


def recall(found, true):
    return np.mean([np.isin(right, ids).mean() for ids, right in zip(found.ids, true.ids, strict=True)])


def same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.sims.view(np.uint32), expected.sims.view(np.uint32))


def neighbors_of(row):
    ids = row.tolist()
    return ids[: ids.index(-1)] if -1 in ids else ids


def search(query, features, graph, ef):
    """The slow, obvious search: two heaps and a set, as Malkov and Yashunin write it; nearest first, ties by id."""

    def near(id):
        return float(features[id] @ query), -id

    current = int(graph.entry[0])
    for level in range(int(graph.upper_start[current + 1] - graph.upper_start[current]), 0, -1):
        while True:
            best = max(map(near, neighbors_of(graph.upper[graph.upper_start[current] + level - 1])), default=(-9.0, 0))
            if best[0] <= near(current)[0]:
                break
            current = -best[1]
    visited, kept, waiting = {current}, [near(current)], [tuple(-x for x in near(current))]
    while waiting:
        closest = tuple(-x for x in heapq.heappop(waiting))
        if len(kept) == ef and closest < kept[0]:
            break
        for id in neighbors_of(graph.links[-closest[1]]):
            if id not in visited:
                visited.add(id)
                heapq.heappush(kept, near(id))
                if len(kept) > ef and heapq.heappop(kept) == near(id):
                    continue
                heapq.heappush(waiting, tuple(-x for x in near(id)))
    found = []
    for _, minus_id in sorted(kept, reverse=True):
        found += [-minus_id, *(copy for first, copy in graph.copies.tolist() if first == -minus_id)]
    return found


def proposed(queries, features, graph, ef, room, fetch=False):
    """What the kernel proposes for each query; None where the graph is broken."""
    ids, counts = np.zeros((len(queries), room), np.uint32), np.empty(len(queries), np.int64)
    arrays = [array.view(np.uint32) for array in graph[:-1]]
    search_hnsw(queries, features, *arrays, int(graph.entry[0]), (UNCHECKED,) * 4, ef, fetch, ids, counts)
    return [None if count < 0 else row[:count] for row, count in zip(ids.tolist(), counts.tolist(), strict=True)]


def test_what_is_asked_for_beforehand_changes_no_answer(tmp_path):
    features, queries = (scattered(np.random.default_rng(n), n, 16) for n in (400, 20))
    graph = build_hnsw(features)
    np.save(tmp_path / "features.npy", features)
    for array in (features, np.asarray(np.load(tmp_path / "features.npy", mmap_mode="r"))):
        assert proposed(queries, array, graph, 40, 20, fetch=True) == proposed(queries, features, graph, 40, 20)


def random_graph(rng, n, m):
    """Lists of random length and members, on random levels; what is there on a level is linked on that level only."""
    levels = rng.geometric(0.6, n) - 1
    starts = np.concatenate([[0], np.cumsum(levels)]).astype(np.int32)
    links, upper = np.full((n, 2 * m), -1, np.int32), np.full((starts[-1], m), -1, np.int32)
    for i in range(n):
        for row, least in [(links[i], 0), *((upper[starts[i] + above], above + 1) for above in range(levels[i]))]:
            members = rng.permutation(np.flatnonzero(levels >= least))[: rng.integers(0, len(row) + 1)]
            row[: len(members)] = members
    return HnswGraph(links, starts, upper, np.empty((0, 2), np.int32), np.array([levels.argmax()], np.int32))


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(1)
    rows = manifold(rng, 3300, 32)
    features, queries = np.split(rows[rng.permutation(len(rows))], [3000])
    features, queries = np.ascontiguousarray(features), np.ascontiguousarray(queries)
    return features, queries, build_hnsw(features, m=16)


# The kernel


@settings(deadline=None, max_examples=100)
@given(
    seed=seeds_of_rng,
    n=st.integers(1, 80),
    m=st.integers(1, 6),
    ef=st.integers(1, 30),
    room=st.integers(1, 40),
)
def test_a_random_graph_is_searched_as_by_the_plain_search(seed, n, m, ef, room):
    # Products of these rows are exact, in any order, so ties are ties to both.
    rng = np.random.default_rng(seed)
    features, queries, graph = lattice(rng, n, 6), lattice(rng, 5, 6), random_graph(rng, n, m)
    expected = [search(query, features, graph, ef)[:room] for query in queries]
    assert proposed(queries, features, graph, ef, room) == expected


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, n=st.integers(1, 300), m=st.integers(2, 8), ef=st.integers(1, 40))
def test_a_built_graph_is_searched_as_by_the_plain_search(seed, n, m, ef):
    # Many rows are copies of others: there are 240 different ones.
    rng = np.random.default_rng(seed)
    features, queries = lattice(rng, n, 6), lattice(rng, 5, 6)
    graph = build_hnsw(features, m=m, ef_construction=20)
    expected = [search(query, features, graph, ef) for query in queries]
    assert proposed(queries, features, graph, ef, n) == expected


def test_a_wide_search_outgrows_its_table_of_visited_elements():
    # One candidate is kept, but each of 400 steps along the chain looks at 2 * 40 others.
    rng = np.random.default_rng(2)
    n, m = 4000, 40
    angles = np.linspace(0, np.pi / 2, 400)
    features = np.zeros((n, 4), np.float32)
    features[:400, :2] = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    features[400:, 2:] = scattered(rng, n - 400, 2)
    links = rng.integers(400, n, (n, 2 * m), dtype=np.int32)
    links[:399, 0] = np.arange(1, 400)
    none = np.empty((0, 2), np.int32)
    graph = HnswGraph(links, np.zeros(n + 1, np.int32), np.empty((0, m), np.int32), none, np.zeros(1, np.int32))
    query = np.array([[1, 0, 0, 0]], np.float32)
    assert proposed(query, features, graph, 1, 10) == [[399]] == [search(query[0], features, graph, 1)]


# What is found


def test_nearly_all_neighbors_of_new_points_are_found(world):
    features, queries, graph = world
    true = nearest(queries, features, 10)
    shares = [recall(nearest_by_hnsw(queries, features, graph, 10, ef), true) for ef in (18, 64, 256)]
    assert shares == sorted(shares)
    assert shares[1] >= 0.98
    assert shares[2] >= 0.995


def test_lists_are_sorted_as_in_exact_search_with_the_same_similarities(world):
    features, queries, graph = world
    found, true = nearest_by_hnsw(queries, features, graph, 10, 500), nearest(queries, features, 10)
    assert found.ids.dtype == np.int32
    assert found.sims.dtype == np.float32
    whole = (found.ids == true.ids).all(axis=1)
    assert whole.mean() > 0.97
    np.testing.assert_array_equal(found.sims[whole], true.sims[whole])
    np.testing.assert_array_equal(np.lexsort((found.ids, -found.sims), axis=1), np.tile(np.arange(10), (300, 1)))


@pytest.mark.parametrize("n", [1, 2, 3, 30])
@pytest.mark.parametrize("k", [1, 2, 25, 100])
def test_of_a_very_small_set_everything_is_found(n, k):
    rng = np.random.default_rng(n)
    features, queries = scattered(rng, n, 6), scattered(rng, 7, 6)
    found = nearest_by_hnsw(queries, features, build_hnsw(features, m=4), k, 1)
    assert found.ids.shape == (7, min(k, n))
    same(found, nearest(queries, features, k))


def test_never_fewer_candidates_are_kept_than_k_needs(world):
    features, queries, graph = world
    narrow, wide = (nearest_by_hnsw(queries, features, graph, 100, ef) for ef in (1, 114))
    same(narrow, wide)
    assert recall(narrow, nearest(queries, features, 100)) > 0.95


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(2, 300), distinct=st.integers(1, 300), k=st.integers(1, 40))
def test_elements_come_first_in_their_own_lists_and_the_rest_are_the_best_of_those_proposed(seed, n, distinct, k):
    features = duplicated(np.random.default_rng(seed), n, 8, distinct=min(n, distinct))
    own = np.random.default_rng(seed).permutation(n)[:20].astype(np.uint32)
    graph, k, room = build_hnsw(features, m=8), min(k, n), count_proposals(k, n)
    found = nearest_by_hnsw(features[own], features, graph, k, 300, own_ids=own)
    assert (found.ids[:, 0] == own).all()
    given_ids = proposed(features[own], features, graph, min(n, 300), room)
    for row, (element, ids) in enumerate(zip(own.tolist(), given_ids, strict=True)):
        assert len(set(found.ids[row].tolist())) == k
        # Not every element need be reachable by links, so that what is proposed need not be the nearest.
        among = range(n) if len(ids) < room else {element, *ids} if element in ids else {element, *ids[:-1]}
        sims = features[sorted(set(among) - {element})] @ features[element]
        np.testing.assert_allclose(found.sims[row, 1:], np.sort(sims)[::-1][: k - 1], atol=1e-6)


def test_no_queries_give_no_lists(world):
    features, _, graph = world
    assert nearest_by_hnsw(features[:0], features, graph, 5, 10).ids.shape == (0, 5)


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(10, 400), distinct=st.integers(1, 10), k=st.integers(1, 60))
def test_all_copies_of_a_row_are_found_the_smallest_ids_first(seed, n, distinct, k):
    rng = np.random.default_rng(seed)
    features, queries = duplicated(rng, n, 8, distinct), scattered(rng, 5, 8)
    # Room for every other row, so that nothing is out of reach, but not for hundreds of copies.
    same(nearest_by_hnsw(queries, features, build_hnsw(features, m=16), k, 10), nearest(queries, features, k))


def test_a_search_leaves_a_crowd_of_copies(world):
    features, queries, _ = world
    rng = np.random.default_rng(5)
    crowded = features.copy()
    for copied, places in zip((7, 70, 700), rng.permutation(3000)[:1200].reshape(3, 400), strict=True):
        crowded[places] = features[copied]
    found = nearest_by_hnsw(queries, crowded, build_hnsw(crowded, m=8), 10, 64)
    assert recall(found, nearest(queries, crowded, 10)) > 0.98


def test_a_copy_is_listed_under_the_first_of_its_kind_and_has_no_links():
    features = scattered(np.random.default_rng(6), 5, 8)[[3, 1, 3, 0, 1, 3]]
    graph = build_hnsw(features, m=4)
    assert graph.copies.tolist() == [[0, 2], [0, 5], [1, 4]]
    assert (graph.links[[2, 4, 5]] == -1).all()
    assert set(np.unique(graph.links)) == {-1, 0, 1, 3}


def test_a_query_that_cannot_reach_k_elements_is_searched_exactly(world):
    features, queries, graph = world
    alone = graph._replace(links=np.full_like(graph.links, -1))
    same(nearest_by_hnsw(queries[:20], features, alone, 10, 64), nearest(queries[:20], features, 10))
    # Fifteen are reached: enough for 10, too few for 20. Nothing else is known of the others.
    part = graph._replace(links=np.full_like(graph.links, -1), upper_start=np.zeros_like(graph.upper_start))
    part.links[graph.entry[0], :14] = others = np.delete(np.arange(15, dtype=np.int32), graph.entry[0] % 15)
    reached = np.sort(np.append(others, graph.entry[0]))
    few = nearest_by_hnsw(queries[:20], features, part, 10, 64)
    expected = nearest(queries[:20], np.ascontiguousarray(features[reached]), 10)
    same(few, expected._replace(ids=reached[expected.ids]))
    same(nearest_by_hnsw(queries[:20], features, part, 20, 64), nearest(queries[:20], features, 20))


def test_one_by_one_in_a_batch_and_from_many_threads_the_lists_are_the_same(world):
    features, queries, graph = world
    whole = nearest_by_hnsw(queries, features, graph, 10, 30)
    for row in range(0, 300, 10):
        alone = nearest_by_hnsw(queries[row : row + 1], features, graph, 10, 30)
        same(alone, type(whole)(whole.ids[row : row + 1], whole.sims[row : row + 1]))
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: nearest_by_hnsw(queries, features, graph, 10, 30), range(16)):
            same(found, whole)


# The graph


@pytest.mark.parametrize("make", [scattered, clusters, manifold])
def test_a_graph_holds_what_faiss_searches(make):
    rng = np.random.default_rng(7)
    features, queries = make(rng, 1500, 16), make(rng, 40, 16)
    graph = build_hnsw(features, m=6, ef_construction=40)
    faiss = load_faiss()
    index = faiss.IndexHNSWFlat(16, 6, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 40
    with one_thread():
        index.add(features)
    # With as many candidates as faiss keeps, the same lists, but for what its other order of ties changes.
    theirs = index.search(queries, 10, params=faiss.SearchParametersHNSW(efSearch=40))[1]
    assert (nearest_by_hnsw(queries, features, graph, 10, 40).ids == theirs).mean() > 0.99


def test_the_arrays_are_what_the_docstring_says(world):
    features, _, graph = world
    n, m = len(features), 16
    assert [array.dtype for array in graph] == [np.int32] * 5
    assert all(array.flags.c_contiguous for array in graph)
    assert (graph.links.shape, graph.upper_start.shape, graph.copies.shape) == ((n, 2 * m), (n + 1,), (0, 2))
    levels = np.diff(graph.upper_start)
    assert levels[graph.entry[0]] == levels.max() > 0
    assert graph.upper.shape == (levels.sum(), m)
    assert n / m < len(graph.upper) * 1.5 < 2 * n / m
    for i in range(n):
        assert i not in neighbors_of(graph.links[i])
        for level in range(1, levels[i] + 1):
            assert (levels[neighbors_of(graph.upper[graph.upper_start[i] + level - 1])] >= level).all()
    assert ((graph.links[:, :-1] >= 0) | (graph.links[:, 1:] < 0)).all()


def test_the_same_rows_give_the_same_graph_whatever_faiss_may_use(world):
    features, _, graph = world
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    again = build_hnsw(features, m=16)
    assert faiss.omp_get_max_threads() == 3
    faiss.omp_set_num_threads(threads)
    for name in HnswGraph._fields:
        assert getattr(again, name).tobytes() == getattr(graph, name).tobytes()


def test_a_graph_linked_by_several_threads_is_as_good(world):
    features, queries, _ = world
    graph = build_hnsw(features, m=16, threads=3)
    assert recall(nearest_by_hnsw(queries, features, graph, 10, 64), nearest(queries, features, 10)) >= 0.98


def test_a_read_only_memory_map_is_searched_like_an_array(world, tmp_path):
    features, queries, graph = world
    for name, array in graph._asdict().items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = HnswGraph(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in HnswGraph._fields))
    same(nearest_by_hnsw(queries, features, mapped, 10, 30), nearest_by_hnsw(queries, features, graph, 10, 30))


# Damage


@settings(deadline=None, max_examples=300)
@given(
    seed=seeds_of_rng,
    name=st.sampled_from(["links", "upper_start", "upper", "copies", "entry"]),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    wild=st.booleans(),
)
def test_damage_is_refused_or_answered_with_elements_that_exist(seed, name, share, wild):
    rng = np.random.default_rng(seed)
    features = np.concatenate([clusters(rng, 250, 8), duplicated(rng, 50, 8, 5)])
    graph = build_hnsw(features, m=4, ef_construction=20)
    array = getattr(graph, name).copy()
    places = rng.permutation(array.size)[: max(1, int(share * array.size))]
    # Flipped bits, or numbers close to those that are allowed.
    array.flat[places] = (
        array.flat[places] ^ (np.int32(1) << rng.integers(0, 32, len(places), dtype=np.int32))
        if wild
        else rng.integers(-3, 303, len(places))
    )
    try:
        found = nearest_by_hnsw(features[:20], features, graph._replace(**{name: array}), 10, 20)
    except Damaged as error:
        assert str(error)  # noqa: PT017
        return
    assert found.ids.shape == (20, 10)
    assert found.ids.min() >= 0
    assert found.ids.max() < 300


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("links", lambda a: np.full_like(a, len(a))),
        ("links", lambda a: np.full_like(a, -2)),
        ("links", lambda a: a[:-1]),
        ("links", lambda a: a.astype(np.int64)),
        ("links", lambda a: a.ravel()),
        ("links", lambda a: a[:, ::2]),
        ("upper", lambda a: np.full_like(a, np.iinfo(np.int32).max)),
        ("upper", lambda a: a[:0]),
        ("upper", lambda a: a.ravel()),
        ("upper_start", lambda a: a[:-1]),
        ("upper_start", lambda a: np.full_like(a, -1) + np.arange(len(a), dtype=np.int32) * 3),
        ("upper_start", lambda a: np.arange(len(a), dtype=np.int32)[::-1].copy()),
        ("entry", lambda a: a + 100_000),
        ("entry", lambda a: -a - 1),
        ("entry", lambda a: a[:0]),
        ("copies", lambda a: np.zeros((4, a.shape[1] + 1), np.int32)),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(world, name, change):
    features, queries, graph = world
    with pytest.raises(Damaged, match=r"search graph "):
        nearest_by_hnsw(queries, features, graph._replace(**{name: change(getattr(graph, name))}), 10, 30)


def test_a_copy_that_does_not_exist_is_refused():
    features = np.repeat(scattered(np.random.default_rng(8), 4, 8), 3, axis=0)
    graph = build_hnsw(features, m=4)
    graph.copies[:, 1] += 100
    with pytest.raises(Damaged, match="ids that do not exist"):
        nearest_by_hnsw(features[:1], features, graph, 3, 10)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(world, value):
    features, queries, graph = world
    damaged = features.copy()
    damaged[nearest(queries, features, 1).ids[:, 0]] = value
    with pytest.raises(Damaged, match="not finite"):
        nearest_by_hnsw(queries, damaged, graph, 10, 30)
