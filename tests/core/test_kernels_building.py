"""Each compiled kernel of a build equals its slow, obvious twin: similarities, the mutual graph, walks, columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, duplicated, lattice, network, scattered, seeds_of_rng

from suffuse.core.graph import Graph, order_along, reorder
from suffuse.core.kernels.graph import fill_affinity, fill_affinity_of_listed, normalize_affinity, sum_rows, turn_lists
from suffuse.core.kernels.nearest import rank_pairs, scan
from suffuse.core.kernels.solve import solve_on_supports
from suffuse.core.kernels.supports import walk_supports

# --- similarity


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, n=st.integers(1, 30), d=st.integers(4, 40))
def test_a_scan_is_the_product_with_every_row(seed, n, d):
    rng = np.random.default_rng(seed)
    queries, features = lattice(rng, 3, d), lattice(rng, n, d)
    out = np.empty((3, n), np.float32)
    scan(queries, features, out)
    np.testing.assert_array_equal(out, reference.similarities(queries, features))


def test_a_scan_gives_the_same_to_the_bit_in_every_batch():
    rng = np.random.default_rng(0)
    for n, d in ((501, 37), (130, 512)):
        queries, features = scattered(rng, 9, d), scattered(rng, n, d)
        together, alone = np.empty((9, n), np.float32), np.empty((9, n), np.float32)
        scan(queries, features, together)
        for q in range(9):
            scan(queries[q : q + 1], features, alone[q : q + 1])
        np.testing.assert_array_equal(together, alone)


def ranked_pairs(queries, features, ids, k, own=()):
    best, sims = np.empty((len(ids), k), np.int32), np.empty((len(ids), k), np.float32)
    rank_pairs(queries, features, ids.astype(np.uint32), np.array(own, np.uint32), best, sims)
    return best, sims


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, d=st.integers(4, 40), k=st.integers(1, 6), with_own=st.booleans())
def test_pairs_are_ranked_by_the_sum_of_products_and_then_by_id(seed, d, k, with_own):
    rng = np.random.default_rng(seed)
    features = lattice(rng, 11, d)
    queries = features[:7] if with_own else lattice(rng, 7, d)
    ids = np.stack([rng.permutation(11)[:6] for _ in range(7)])
    if with_own:
        ids[:, 3] = np.arange(7)
        ids = np.stack([np.r_[np.unique(row), [own] * 6][:6] for own, row in enumerate(ids)])  # own may be repeated
        ids[:, -1] = np.arange(7)
    best, sims = ranked_pairs(queries, features, ids, k, range(7) if with_own else ())
    products = reference.similarities(queries, features)
    for q in range(7):
        expected = sorted(ids[q].tolist(), key=lambda i, q=q: (not (with_own and i == q), -products[q, i], i))[:k]
        assert best[q].tolist() == expected
        np.testing.assert_array_equal(sims[q], products[q, expected])


@pytest.mark.parametrize(
    ("query", "feature", "expected"),
    [
        ([2.0**24, 1, -(2.0**24)], [1, 1, 1], 1.0),
        ([1 + 2.0**-12, 1], [1 + 2.0**-12, -(1 + 2.0**-11)], 2.0**-24),
    ],
)
def test_products_of_pairs_are_multiplied_and_summed_in_float64(query, feature, expected):
    pair = np.array([query], np.float32), np.array([feature], np.float32)
    assert ranked_pairs(*pair, np.zeros((1, 1)), 1)[1] == expected


def test_zeros_of_both_signs_are_a_tie():
    features = np.array([[-0.0, 1], [0.0, 1], [-1, 1]], np.float32)
    best, sims = ranked_pairs(np.array([[1.0, 0.0]], np.float32), features, np.array([[2, 1, 0]]), 3)
    assert best.tolist() == [[0, 1, 2]]
    assert sims.tolist() == [[0, 0, -1]]


def test_a_product_is_the_same_to_the_bit_from_both_sides_and_in_every_batch():
    features = scattered(np.random.default_rng(0), 30, 37)
    everyone = np.tile(np.arange(30, dtype=np.uint32), (30, 1))

    def by_id(queries):
        best, sims = ranked_pairs(queries, features, everyone[: len(queries)], 30)
        return np.take_along_axis(sims, np.argsort(best, axis=1), axis=1)

    together = by_id(features)
    alone = np.concatenate([by_id(features[i : i + 1]) for i in range(30)])
    np.testing.assert_array_equal(together, together.T)
    np.testing.assert_array_equal(together, alone)


# --- mutual


def random_lists(rng, n, k):
    """Lists of k distinct ids in any order, not all of them with the node itself, and one similarity per pair."""
    ids = np.stack([rng.permutation(n)[:k] for _ in range(n)]).astype(np.uint32)
    pairs = rng.uniform(-0.3, 1.0, (n, n)).astype(np.float32)
    return ids, np.take_along_axis(np.maximum(pairs, pairs.T), ids, axis=1)


def rows_of_affinity(ids, sims, gamma, start, stop):
    """Rows of A in compressed form, by the kernel."""
    indptr, most = np.empty(stop - start + 1, np.uint64), (stop - start) * ids.shape[1]
    indices, weights = np.empty(most, np.uint32), np.empty(most)
    fill_affinity(ids, sims, gamma, start, indptr, indices, weights)
    return indptr, indices[: int(indptr[-1])], weights[: int(indptr[-1])]


@settings(deadline=None, max_examples=50)
@given(seed=seeds_of_rng, n=st.integers(2, 30), share=st.floats(0.1, 1.0), gamma=st.floats(0.5, 10.0), data=st.data())
def test_rows_of_affinity_and_transition_equal_their_definitions(seed, n, share, gamma, data):
    ids, sims = random_lists(np.random.default_rng(seed), n, max(1, int(share * n)))
    start, stop = sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
    indptr, indices, weights = rows_of_affinity(ids, sims, gamma, start, stop)
    a = reference.affinity(ids, sims, gamma)
    expected = reference.compressed(a[start:stop])
    np.testing.assert_array_equal(indptr, expected[0])
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_allclose(weights, expected[2], rtol=1e-14)
    degrees, s = np.empty(stop - start), np.empty_like(weights)
    sum_rows(indptr, weights, degrees)
    np.testing.assert_allclose(degrees, a[start:stop].sum(axis=1), rtol=1e-14)
    normalize_affinity(indptr, indices, weights, start, a.sum(axis=1), s)
    np.testing.assert_allclose(s, reference.compressed(reference.transition(a)[start:stop])[2], rtol=1e-13)


@settings(deadline=None, max_examples=100)
@given(seed=seeds_of_rng, n=st.integers(1, 30), share=st.floats(0.1, 1.0), gamma=st.floats(0.5, 100.0), data=st.data())
def test_rows_by_listers_equal_those_without_to_the_bit_with_short_lists_too(seed, n, share, gamma, data):
    rng, k = np.random.default_rng(seed), max(1, int(share * n))
    ids, sims = random_lists(rng, n, k)
    for node in np.flatnonzero(rng.random(n) < 0.3):
        end = rng.integers(0, k)  # a list that is not full ends with the element itself
        ids[node, end:], sims[node, end:] = node, 0.0
    start, stop = sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))
    list_ptr, listers = np.empty(n + 1, np.uint64), np.empty(n * k, np.uint32)
    turn_lists(ids, list_ptr, listers)
    for i in range(n):
        found = listers[int(list_ptr[i]) : int(list_ptr[i + 1])].tolist()
        assert found == [lister for lister in range(n) for id in ids[lister] if id == i]
    rows = stop - start
    indptr, indices, weights = np.empty(rows + 1, np.uint64), np.empty(rows * k, np.uint32), np.empty(rows * k)
    fill_affinity_of_listed(ids, sims, gamma, start, list_ptr, listers, indptr, indices, weights)
    expected, count = rows_of_affinity(ids, sims, gamma, start, stop), int(indptr[-1])
    for found, part in zip((indptr, indices[:count], weights[:count].view(np.uint64)), expected, strict=True):
        np.testing.assert_array_equal(found, part.view(found.dtype))


# --- walk


def supports_of(nodes, indptr, indices, weights, truncation, steps, group=1):
    """The supports of nodes in turn, from one scratch, one for each group of them; rows end with the number `n`."""
    groups = -(-len(nodes) // group)
    supports, sizes = np.zeros((groups, truncation), np.uint32), np.empty(groups, np.int64)
    walk_supports(nodes[0], nodes[-1] + 1, group, indptr, indices, weights, steps, supports, sizes)
    return np.where(np.arange(truncation) < sizes[:, None], supports, np.uint32(len(indptr) - 1))


@settings(deadline=None, max_examples=50)
@given(
    seed=seeds_of_rng, n=st.integers(1, 40), degree=st.integers(1, 8), share=st.floats(0, 1), steps=st.integers(0, 8)
)
def test_the_support_of_a_walk_equals_its_definition(seed, n, degree, share, steps):
    alpha_s = 0.9 * network(np.random.default_rng(seed), n, degree)
    truncation = max(1, int(share * n))
    found = supports_of(np.arange(n), *reference.compressed(alpha_s), truncation, steps)
    for node in range(n):
        expected = sorted(reference.walk_support(alpha_s, node, truncation, steps))
        assert sorted(found[node].tolist()) == expected + [n] * (truncation - len(expected))


@settings(deadline=None, max_examples=50)
@given(
    seed=seeds_of_rng, n=st.integers(1, 40), degree=st.integers(1, 8), share=st.floats(0, 1), steps=st.integers(0, 8),
    group=st.integers(2, 8),
)  # fmt: skip
def test_the_support_of_a_group_equals_its_definition(seed, n, degree, share, steps, group):
    alpha_s = 0.9 * network(np.random.default_rng(seed), n, degree)
    truncation = max(min(group, n), int(share * n))
    found = supports_of(np.arange(n), *reference.compressed(alpha_s), truncation, steps, group)
    groups = np.split(np.arange(n), np.arange(group, n, group))
    for support, members in zip(found, groups, strict=True):
        expected = sorted(reference.walk_support(alpha_s, members, truncation, steps))
        assert sorted(support.tolist()) == expected + [n] * (truncation - len(expected))
        assert set(members.tolist()) <= set(support.tolist())


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, kind=st.sampled_from(["clusters", "duplicates"]), truncation=st.integers(1, 30))
def test_no_node_outside_a_support_has_more_mass_than_one_inside(seed, kind, truncation):
    rng = np.random.default_rng(seed)
    features = clusters(rng, 40, 8, count=3) if kind == "clusters" else duplicated(rng, 40, 8, distinct=9)
    ids, sims = reference.nearest(features, features, 8, own=range(40))
    alpha_s = 0.99 * reference.transition(reference.affinity(ids, sims, 3.0))
    found = supports_of(np.arange(40), *reference.compressed(alpha_s), truncation, 8)
    for node in range(40):
        mass = reference.walk_mass(alpha_s, node, truncation, 8)
        support = found[node][found[node] < 40]
        others = np.setdiff1d(support, [node])
        outside = np.setdiff1d(np.arange(40), support)
        assert node in support
        assert len(np.unique(support)) == len(support) == min(truncation, np.count_nonzero(mass))
        assert mass[others].min(initial=np.inf) >= mass[outside].max(initial=0) * (1 - 1e-6)


def test_a_node_is_in_its_support_even_where_another_has_more_mass():
    # A weak edge leads to two nodes between which the walk goes back and forth.
    alpha_s = 0.99 * reference.transition(np.array([[0, 1, 0.001], [1, 0, 0], [0.001, 0, 0]]))
    mass = reference.walk_mass(alpha_s, 2, 1, 200)
    assert mass[0] > mass[2]
    assert supports_of(np.array([2]), *reference.compressed(alpha_s), 1, 200).tolist() == [[2]]


def test_a_walk_whose_mass_underflows_does_not_reach_the_node():
    weight = 1e-200
    path = np.array([[0, weight, 0], [weight, 0, weight], [0, weight, 0]])
    found = supports_of(np.array([0, 1]), *reference.compressed(path), 3, 3)
    assert sorted(found[0].tolist()) == [0, 1, 3]
    assert sorted(found[1].tolist()) == [0, 1, 2]


def test_mass_that_underflows_lists_no_node_twice():
    bridge = 1e-200
    matrix = np.kron(bridge * (np.eye(3, k=1) + np.eye(3, k=-1)), np.ones((8, 8)))
    matrix += np.kron(np.eye(3), (np.ones((8, 8)) - np.eye(8)) / 8)
    found = supports_of(np.arange(24), *reference.compressed(matrix), 24, 8)
    for support in found:
        inside = support[support < 24]
        assert len(np.unique(inside)) == len(inside)


# --- solve


class Solved:
    """Room for columns, and the columns as dense rows."""

    def __init__(self, count, keep):
        self.rows, self.values = np.empty((count, keep), np.uint32), np.empty((count, keep), np.float32)
        self.lengths, self.residuals = np.empty(count, np.int64), np.empty(count)

    @property
    def out(self):
        return self.rows, self.values, self.lengths, self.residuals

    def dense(self, n):
        columns = np.zeros((len(self.rows), n))
        for column, rows, values, length in zip(columns, self.rows, self.values, self.lengths, strict=True):
            column[rows[:length]] = values[:length]
        return columns


FLOOR = np.float32(1e-7)


def solve(alpha_s, supports, group=1, single=False, names=None, iterations=1000, tolerance=1e-12, floor=FLOOR):
    """Columns of the first nodes on these supports, lists of any length, one for each group."""
    widest = max(map(len, supports))
    rows = np.array([[*support, *[0] * (widest - len(support))] for support in supports], np.uint32)
    count = min(group * len(supports), len(alpha_s))
    names = np.arange(len(alpha_s), dtype=np.uint32) if names is None else names
    solved = Solved(count, widest)
    solve_on_supports(
        0, count, group, single, rows, np.array([len(support) for support in supports]), names,
        *reference.compressed(alpha_s), iterations, tolerance, floor, *solved.out,
    )  # fmt: skip
    return solved


def random_supports(rng, n, group):
    """For each group of the first nodes, those nodes and any others, in any order."""
    found = []
    for first in range(0, n, group):
        members = np.arange(first, min(first + group, n))
        others = rng.permutation(np.setdiff1d(np.arange(n), members))
        found.append(rng.permutation([*members, *others[: rng.integers(len(others) + 1)]]))
    return found


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, n=st.integers(1, 40), degree=st.integers(1, 8), group=st.integers(1, 8), single=st.booleans())
def test_columns_equal_a_dense_solution_on_their_supports(seed, n, degree, group, single):
    rng = np.random.default_rng(seed)
    alpha_s = 0.95 * network(rng, n, degree)
    supports = random_supports(rng, n, group)
    solved = solve(alpha_s, supports, group, single, tolerance=1e-6 if single else 1e-12)
    expected = np.stack([reference.column(alpha_s, supports[i // group], i) for i in range(n)])
    np.testing.assert_allclose(solved.dense(n), expected, rtol=0 if single else 1e-6, atol=1e-5 if single else 2e-7)
    assert (solved.residuals <= (1e-6 if single else 1e-12)).all()


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(9, 60), group=st.integers(2, 8))
def test_a_column_does_not_depend_on_those_solved_with_it(seed, n, group):
    alpha_s = 0.99 * network(np.random.default_rng(seed), n, 6)
    everything = np.arange(n)
    together = solve(alpha_s, [everything] * -(-n // group), group, single=True, tolerance=1e-6)
    alone = solve(alpha_s, [everything] * n, 1, single=True, tolerance=1e-6)
    np.testing.assert_array_equal(together.dense(n), alone.dense(n))
    np.testing.assert_array_equal(together.residuals, alone.residuals)


def test_rows_are_named_and_equal_entries_ordered_by_name():
    alpha_s = 0.9 * (np.ones((6, 6)) - np.eye(6)) / 5
    names = np.array([30, 20, 50, 10, 60, 40], np.uint32)
    solved = solve(alpha_s, [np.arange(6)], 6, single=True, names=names, tolerance=1e-6)
    for own, row in zip(names.tolist(), solved.rows.tolist(), strict=True):
        assert row == [own, *sorted(set(names.tolist()) - {own})]


@pytest.mark.parametrize("single", [False, True])
def test_entries_up_to_the_floor_are_not_stored(single):
    alpha_s = 0.9 * network(np.random.default_rng(3), 30, 4)
    expected = reference.column(alpha_s, np.arange(30), 0)
    floor = np.float32((np.sort(expected)[14] + np.sort(expected)[15]) / 2)
    solved = solve(alpha_s, [np.arange(30)], single=single, tolerance=1e-6, floor=floor)
    assert solved.lengths[0] == 15
    assert (solved.values[0, :15] > floor).all()


@pytest.mark.parametrize("single", [False, True])
def test_a_singular_system_is_reported_as_not_solved(single):
    pair = np.array([[0.0, 1.0], [1.0, 0.0]])
    solved = solve(pair, [np.arange(2)], 2, single, iterations=100, tolerance=1e-6)
    assert np.isfinite(solved.dense(2)).all()
    assert (solved.residuals > 1e-6).all()


@pytest.mark.parametrize("single", [False, True])
def test_a_column_that_cannot_be_solved_does_not_stop_the_others(single):
    # Two nodes that only have each other, without loss; and an isolated one.
    graph = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    solved = solve(graph, [np.arange(3)], 3, single, iterations=100, tolerance=1e-6)
    assert (solved.residuals > 1e-6).tolist() == [True, True, False]
    assert solved.dense(3)[2].tolist() == [0, 0, 1]


# --- order


@settings(deadline=None, max_examples=50)
@given(seed=seeds_of_rng, n=st.integers(1, 80), degree=st.integers(1, 8), group=st.integers(1, 8))
def test_an_order_lists_every_node_once_and_its_groups_are_near(seed, n, degree, group):
    alpha_s = 0.9 * network(np.random.default_rng(seed), n, degree)
    graph = Graph(*reference.compressed(alpha_s))
    order = order_along(graph, group)
    assert sorted(order.tolist()) == list(range(n))
    near = np.linalg.matrix_power(np.eye(n) + (alpha_s > 0), 2) > 0
    full = [members for members in np.split(order, np.arange(group, n, group)) if near[members[0], members].all()]
    # All but those that were left over: from none of them a whole group could be reached.
    left = np.setdiff1d(np.arange(n), np.concatenate([[], *full]))
    for node in left.astype(int):
        assert near[node, left.astype(int)].sum() < group


def test_groups_are_the_nodes_that_belong_together():
    blobs = np.kron(np.eye(5), np.ones((8, 8)) - np.eye(8))
    shuffled = np.random.default_rng(0).permutation(40)
    graph = Graph(*reference.compressed(blobs[np.ix_(shuffled, shuffled)] / 8))
    groups = shuffled[order_along(graph, 8)].reshape(5, 8) // 8
    assert (groups == groups[:, :1]).all()


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(1, 60), degree=st.integers(1, 8))
def test_a_reordered_graph_has_the_same_edges(seed, n, degree):
    rng = np.random.default_rng(seed)
    alpha_s = 0.9 * network(rng, n, degree)
    order = rng.permutation(n).astype(np.uint32)
    found = reorder(Graph(*reference.compressed(alpha_s)), order)
    for a, b in zip(found, reference.compressed(alpha_s[np.ix_(order, order)]), strict=True):
        np.testing.assert_array_equal(a, b)
