"""Columns of the inverse of L_alpha: equal to dense solutions, for both supports, whatever the block."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, curves, duplicated, scattered, unit

from suffuse.core.columns import WALK_STEPS, group_size, solve_columns
from suffuse.core.graph import affinity, order_along, reorder, transition
from suffuse.core.neighbors import nearest_to_rows
from suffuse.core.params import Params

N = 90
PRECISE = Params(k=8, truncation=30, keep=30, iterations=500, tolerance=1e-10, values="float32")

kinds = {
    "scattered": scattered,
    "clusters": clusters,
    "curves": curves,
    "duplicated": lambda rng, n, d: duplicated(rng, n, d, distinct=n // 3),
}


def alpha_s_of(features, params):
    s = transition(affinity(nearest_to_rows(features, 0, len(features), params.k), params.gamma))
    return s._replace(weights=params.alpha * s.weights)


def solved(features, params, start=0, stop=None):
    return solve_columns(alpha_s_of(features, params), start, len(features) if stop is None else stop, params, features)


def dense_rows(found, n):
    """Row i is column i of the block."""
    matrix = np.zeros((len(found.columns.indptr) - 1, n))
    for i, row in enumerate(matrix):
        places = slice(found.columns.indptr[i], found.columns.indptr[i + 1])
        row[found.columns.entries[places]] = found.columns.values[places]
    return matrix


def same_bytes(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def support_of(features, alpha_s, params, i):
    """The support of column i by its definition."""
    if params.support == "features":
        return reference.nearest(features[i : i + 1], features, params.truncation, own=[i])[0][0]
    return reference.walk_support(alpha_s, i, params.truncation, WALK_STEPS)


@pytest.mark.parametrize("support", ["graph", "features"])
@pytest.mark.parametrize("kind", sorted(kinds))
def test_columns_equal_a_dense_solution_on_their_supports(kind, support):
    params = dataclasses.replace(PRECISE, support=support)
    features = kinds[kind](np.random.default_rng(7), N, 10)
    found = solved(features, params)
    alpha_s = reference.dense(alpha_s_of(features, params))
    expected = [reference.column(alpha_s, support_of(features, alpha_s, params, i), i) for i in range(N)]
    np.testing.assert_allclose(dense_rows(found, N), np.stack(expected), rtol=1e-5, atol=1e-7)
    assert (found.residuals <= 1e-10).all()


@pytest.mark.parametrize("truncation", [N, 10 * N])
@pytest.mark.parametrize("support", ["graph", "features"])
def test_without_truncation_columns_are_those_of_the_exact_inverse(support, truncation):
    params = dataclasses.replace(PRECISE, support=support, truncation=truncation, keep=truncation)
    features = clusters(np.random.default_rng(3), N, 10)
    alpha_s = reference.dense(alpha_s_of(features, params))
    reached = np.linalg.matrix_power((alpha_s > 0) + np.eye(N), WALK_STEPS) > 0
    inverse = reference.inverse(alpha_s)
    assert reached[inverse > 1e-9].all(), "the walk must be able to reach everything for this to hold"
    np.testing.assert_allclose(dense_rows(solved(features, params), N), inverse, rtol=1e-5, atol=1e-7)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(sorted(kinds)),
    support=st.sampled_from(["graph", "features"]),
    keep=st.integers(1, 40),
    values=st.sampled_from(["float16", "float32"]),
)
def test_the_largest_entries_are_kept_largest_first(seed, kind, support, keep, values):
    features = kinds[kind](np.random.default_rng(seed), N, 10)
    params = dataclasses.replace(PRECISE, support=support, values=values)
    full = solved(features, params)
    found = solved(features, dataclasses.replace(params, keep=keep))
    assert found.columns.values.dtype == values
    for i in range(N):
        everything = slice(full.columns.indptr[i], full.columns.indptr[i + 1])
        kept = slice(found.columns.indptr[i], found.columns.indptr[i + 1])
        assert (np.diff(full.columns.values[everything]) <= 0).all()
        assert kept.stop - kept.start == min(keep, everything.stop - everything.start)
        np.testing.assert_array_equal(found.columns.entries[kept], full.columns.entries[everything][:keep])
        np.testing.assert_array_equal(found.columns.values[kept], full.columns.values[everything][:keep])


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(sorted(kinds)),
    support=st.sampled_from(["graph", "features"]),
    truncation=st.integers(1, 40),
)
def test_an_element_is_in_its_own_support_and_no_entry_is_listed_twice(seed, kind, support, truncation):
    features = kinds[kind](np.random.default_rng(seed), N, 10)
    found = solved(features, dataclasses.replace(PRECISE, support=support, truncation=truncation, keep=truncation))
    for i in range(N):
        rows = found.columns.entries[found.columns.indptr[i] : found.columns.indptr[i + 1]].tolist()
        assert i in rows
        assert len(set(rows)) == len(rows) <= truncation
        assert all(0 <= row < N for row in rows)


def test_equal_entries_are_ordered_by_id():
    features = unit(np.eye(6) + 0.5)
    params = dataclasses.replace(PRECISE, k=6)
    found = solved(features, params)
    for i in range(6):
        assert found.columns.entries[6 * i : 6 * i + 6].tolist() == [i, *(j for j in range(6) if j != i)]


@pytest.mark.parametrize("support", ["graph", "features"])
def test_an_isolated_element_has_a_column_of_its_own_alone(support):
    features = unit([[1, 0, 0], [1, 0.1, 0], [-1, -1, 0.1], [1, 0.05, 0]])
    found = solved(features, dataclasses.replace(PRECISE, support=support))
    places = slice(found.columns.indptr[2], found.columns.indptr[3])
    assert found.columns.entries[places].tolist() == [2]
    assert found.columns.values[places].tolist() == [1.0]
    assert found.residuals[2] == 0.0


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(sorted(kinds)),
    support=st.sampled_from(["graph", "features"]),
    cuts=st.sets(st.integers(1, N - 1), max_size=6),
)
def test_blocks_do_not_change_the_columns(seed, kind, support, cuts):
    features = kinds[kind](np.random.default_rng(seed), N, 10)
    params = Params(k=8, truncation=25, keep=12, support=support)
    whole = solved(features, params)
    blocks = [solved(features, params, a, b) for a, b in itertools.pairwise([0, *sorted(cuts), N])]
    np.testing.assert_array_equal(
        np.diff(whole.columns.indptr), np.concatenate([np.diff(block.columns.indptr) for block in blocks])
    )
    same_bytes(whole[1:], [np.concatenate(parts) for parts in list(zip(*blocks, strict=True))[1:]])


# --- columns that share a support

SHARED = dataclasses.replace(PRECISE, truncation=400, keep=400, tolerance=1e-6)


def solved_in_order(features, params, cuts=()):
    """The columns by element, from a graph numbered along itself, block by block; and the order."""
    alpha_s = alpha_s_of(features, params)
    order = order_along(alpha_s, group_size(params))
    ends = [0, *sorted(cuts), len(features)]
    blocks = [
        solve_columns(reorder(alpha_s, order), a, b, params, features, order=order) for a, b in itertools.pairwise(ends)
    ]
    found = np.empty((len(features), len(features)))
    found[order] = np.concatenate([dense_rows(block, len(features)) for block in blocks])
    return found, order


@pytest.mark.parametrize(("alpha", "tolerance"), [(0.99, 1e-6), (0.99, 1e-10), (0.999, 1e-6)])
@pytest.mark.parametrize(("kind", "n"), [*((kind, N) for kind in sorted(kinds)), ("curves", 500)])
def test_shared_supports_are_those_of_their_groups_and_columns_equal_a_dense_solution(kind, n, alpha, tolerance):
    features = kinds[kind](np.random.default_rng(7), n, 10)
    params = dataclasses.replace(SHARED, alpha=alpha, tolerance=tolerance)
    found, order = solved_in_order(features, params)
    alpha_s = reference.dense(alpha_s_of(features, params))[np.ix_(order, order)]
    for first in range(0, n, 8 if n == N else 160):
        members = np.arange(first, min(first + 8, n))
        support = reference.walk_support(alpha_s, members, 400, WALK_STEPS)
        for i in members:
            expected = np.zeros(n)
            expected[order] = reference.column(alpha_s, support, i)
            np.testing.assert_allclose(found[order[i]], expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=10)
@given(cuts=st.sets(st.integers(1, N // 8), max_size=6))
def test_blocks_of_whole_groups_do_not_change_the_columns(cuts):
    features = curves(np.random.default_rng(4), N, 10)
    whole, _ = solved_in_order(features, SHARED)
    found, _ = solved_in_order(features, SHARED, [8 * cut for cut in cuts])
    np.testing.assert_array_equal(found, whole)


def test_small_supports_are_not_shared():
    assert group_size(Params(truncation=400)) == 8
    assert group_size(Params(truncation=399, keep=399)) == 1
    assert group_size(Params(support="features")) == 1


def true_residual(found, alpha_s, support, i, n):
    x = dense_rows(found, n)[i]
    l_alpha = np.eye(n) - alpha_s
    e = np.zeros(n)
    e[i] = 1.0
    return np.linalg.norm((e - l_alpha @ x)[support])


@pytest.mark.parametrize("support", ["graph", "features"])
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_a_column_that_did_not_converge_says_so_with_its_true_residual(support, iterations):
    params = dataclasses.replace(PRECISE, k=20, support=support, iterations=iterations)
    features = clusters(np.random.default_rng(2), N, 10)
    found = solved(features, params)
    alpha_s = reference.dense(alpha_s_of(features, params))
    assert (found.residuals > params.tolerance).all()
    for i in range(N):
        expected = true_residual(found, alpha_s, support_of(features, alpha_s, params, i), i, N)
        assert found.residuals[i] == pytest.approx(expected, abs=1e-5)


def test_iterations_stop_at_the_tolerance():
    features = clusters(np.random.default_rng(2), N, 10)
    loose = solved(features, dataclasses.replace(PRECISE, tolerance=1e-2)).residuals
    tight = solved(features, dataclasses.replace(PRECISE, tolerance=1e-6)).residuals
    assert (loose <= 1e-2).all()
    assert loose.max() > 1e-3
    assert (tight <= 1e-6).all()


def test_entries_are_rounded_to_float16():
    features = clusters(np.random.default_rng(5), N, 10)
    full = dense_rows(solved(features, PRECISE), N)
    found = solved(features, dataclasses.replace(PRECISE, values="float16"))
    assert found.columns.values.dtype == np.float16
    stored = dense_rows(found, N)
    kept = stored > 0
    np.testing.assert_array_equal(stored[kept], full[kept].astype(np.float16))
    assert (full[~kept] <= np.finfo(np.float16).smallest_subnormal).all()


def test_what_rounds_to_zero_is_not_stored():
    # Two pairs of near duplicates, joined by a similarity whose power is far below the smallest float16.
    features = unit([[1, 0, 0], [1, 0, 0.01], [0.01, 1, 0], [0.01, 1, 0.01]])
    for values, expected in (("float16", 2), ("float32", 4)):
        found = solved(features, Params(k=4, gamma=7.0, values=values, tolerance=1e-14, iterations=500))
        assert (found.columns.values > 0).all()
        assert np.diff(found.columns.indptr).tolist() == [expected] * 4


def test_huge_exponents_underflow_to_columns_without_repeated_entries():
    # Three groups in a row; gamma makes the two bridges 1e-200, so a walk over both has no mass left.
    groups = np.array([[1, 0, 0], [0.01, 1, 0], [0, 0.01, 1]])
    features = unit(np.repeat(groups, 20, axis=0))
    found = solved(features, Params(k=60, gamma=100.0, truncation=60, keep=60, values="float32"))
    for i in range(60):
        rows = found.columns.entries[found.columns.indptr[i] : found.columns.indptr[i + 1]]
        assert sorted(rows.tolist()) == list(range(i // 20 * 20, i // 20 * 20 + 20))


@pytest.mark.parametrize(("values", "dtype"), [("uint8", np.float32), ("float16", np.float16)])
def test_types_are_those_of_the_index(values, dtype):
    found = solved(clusters(np.random.default_rng(0), N, 10), Params(values=values))
    assert found.columns.indptr.dtype == np.int64
    assert found.columns.entries.dtype == np.int32
    assert found.columns.values.dtype == dtype  # columns are coded later
    assert found.residuals.dtype == np.float64
    assert found.columns.indptr[0] == 0
    assert found.columns.indptr[-1] == len(found.columns.entries) == len(found.columns.values)
