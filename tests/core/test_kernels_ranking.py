"""Each compiled kernel of a search equals its slow, obvious twin: the largest few, sums of columns, the baselines'."""

import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support import reference_baselines as twin
from tests.support.data import network, seeds_of_rng
from tests.support.worlds import EXACT

from suffuse.core.kernels.combine import combine_columns
from suffuse.core.kernels.nearest import raise_to_best
from suffuse.core.kernels.select import id_of, key_of, largest_first, score_of, sort_ascending, sort_descending
from suffuse.core.kernels.solve import diffuse_early, diffuse_late, diffuse_whole, rank_positive

# --- select


@numba.njit
def keys_of(scores, ids):
    keys = np.empty(len(scores), np.uint64)
    for i in range(len(scores)):
        keys[i] = key_of(scores[i], ids[i])
    return keys


@numba.njit
def taken_apart(keys):
    ids, scores = np.empty(len(keys), np.uint32), np.empty(len(keys), np.float32)
    for i in range(len(keys)):
        ids[i], scores[i] = id_of(keys[i]), score_of(keys[i])
    return ids, scores


@numba.njit
def partitioned(keys, count, wanted):
    keys = keys.copy()
    largest_first(keys, count, wanted)
    return keys


@numba.njit
def sorted_parts(keys, count):
    falling, rising = keys.copy(), keys.copy()
    sort_descending(falling, count)
    sort_ascending(rising, count)
    return falling, rising


positive_scores = st.floats(0, float(np.finfo(np.float32).max), exclude_min=True, width=32) | st.just(np.inf)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.integers(0, 2**32 - 1), positive_scores, min_size=1, max_size=30))
def test_keys_order_by_score_then_by_smaller_id(score_of_id):
    ids = np.array(list(score_of_id), np.uint32)
    scores = np.array(list(score_of_id.values()), np.float32)
    keys = keys_of(scores, ids)
    back = taken_apart(keys)
    np.testing.assert_array_equal(back[0], ids)
    np.testing.assert_array_equal(back[1], scores)
    by_key = ids[np.argsort(keys)[::-1]].tolist()
    assert by_key == sorted(ids.tolist(), key=lambda i: (-score_of_id[i], i))


arrangements = st.sampled_from(["random", "rising", "falling", "organ pipe", "two values apart"])


@settings(deadline=None, max_examples=150)
@given(seed=seeds_of_rng, n=st.integers(1, 60), arrangement=arrangements, data=st.data())
def test_the_wanted_largest_keys_come_first_and_the_rest_is_not_touched(seed, n, arrangement, data):
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.choice(10 * n, n, replace=False).astype(np.uint64))
    if arrangement == "random":
        keys = rng.permutation(keys)
    elif arrangement == "falling":
        keys = keys[::-1].copy()
    elif arrangement == "organ pipe":
        keys = np.concatenate([keys[::2], keys[1::2][::-1]])
    elif arrangement == "two values apart":
        keys = np.roll(keys, 2)
    count = data.draw(st.integers(1, n))
    wanted = data.draw(st.integers(1, count))
    found = partitioned(keys, count, wanted)
    assert set(found[:wanted]) == set(np.sort(keys[:count])[::-1][:wanted])
    assert set(found[wanted:count]) == set(np.sort(keys[:count])[::-1][wanted:])
    np.testing.assert_array_equal(found[count:], keys[count:])


# Keys differ in all of their bits, in few, or not at all.
any_numbers = st.sampled_from([2**64 - 1, 2**17 - 1, 0b1001 << 40, 0]).flatmap(
    lambda bits: st.lists(st.integers(0, 2**64 - 1).map(lambda number: number & bits), min_size=1, max_size=80)
)


@settings(deadline=None, max_examples=100)
@given(any_numbers, st.data())
def test_the_first_keys_are_sorted_and_the_rest_is_not_touched(numbers, data):
    count = data.draw(st.integers(0, len(numbers)))
    falling, rising = sorted_parts(np.array(numbers, np.uint64), count)
    assert falling.tolist() == sorted(numbers[:count], reverse=True) + numbers[count:]
    assert rising.tolist() == sorted(numbers[:count]) + numbers[count:]


# --- combine


def sparse_columns(rng, n, longest):
    """Columns of dyadic numbers, whose weighted sums are exact: indptr, rows, values, and the dense matrix."""
    matrix, rows, values, indptr = np.zeros((n, n)), [], [], [0]
    for i in range(n):
        ids = rng.permutation(n)[: rng.integers(0, min(longest, n) + 1)]
        entries = rng.integers(1, 9, size=len(ids)) / 8
        matrix[ids, i] = entries
        rows.extend(ids)
        values.extend(entries)
        indptr.append(len(rows))
    return np.array(indptr, np.int64), np.array(rows, np.uint32), np.array(values, np.float64), matrix


def combined(query_ptr, seeds, weights, columns, top, owners=None, images=None, hidden=()):
    indptr, rows, values = columns
    owners = np.empty(0, np.uint32) if owners is None else owners.astype(np.uint32)
    images = len(indptr) - 1 if images is None else images
    m = len(query_ptr) - 1
    ids, scores, counts = np.full((m, top), -7, np.int64), np.full((m, top), -7, np.float32), np.empty(m, np.int64)
    hidden = np.array(hidden, np.uint8)
    combine_columns(
        query_ptr, seeds, weights, indptr[:-1], indptr[1:], rows, values, owners, hidden, images, ids, scores, counts
    )
    return ids, scores, counts


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds_of_rng,
    n=st.integers(1, 40),
    values=st.sampled_from(["float32", "float16"]),
    pooled=st.booleans(),
    hiding=st.sampled_from([None, 0.0, 0.3, 1.0]),
    top=st.integers(1, 50),
)
def test_combined_columns_equal_a_dense_sum_without_what_is_hidden(seed, n, values, pooled, hiding, top):
    rng = np.random.default_rng(seed)
    indptr, rows, entries, matrix = sparse_columns(rng, n, longest=12)
    stored = entries.astype(np.float32) if values == "float32" else entries.astype(np.float16).view(np.uint16)
    images = max(1, n // 3) if pooled else n
    owners = rng.integers(images, size=n) if pooled else None
    query_ptr = np.concatenate([[0], np.cumsum(rng.integers(0, 6, size=5))]).astype(np.int64)
    seeds = rng.integers(n, size=query_ptr[-1]).astype(np.uint32)
    weights = rng.integers(0, 5, size=query_ptr[-1]) / 4
    hidden = np.empty(0, bool) if hiding is None else rng.random(images) < hiding
    ids, scores, counts = combined(query_ptr, seeds, weights, (indptr, rows, stored), top, owners, images, hidden)
    for q in range(5):
        places = slice(query_ptr[q], query_ptr[q + 1])
        f = reference.combine(seeds[places], weights[places], matrix, owners, images)
        f[np.flatnonzero(hidden)] = 0.0
        expected = reference.largest(f, top)
        assert counts[q] == len(expected)
        assert ids[q, : counts[q]].tolist() == expected
        np.testing.assert_array_equal(scores[q, : counts[q]], f[expected].astype(np.float32))
        assert (ids[q, counts[q] :] == -7).all()


def test_every_positive_float16_is_read_as_the_number_it_is():
    bits = np.arange(1, 0x7C00, dtype=np.uint16)
    n = len(bits)
    indptr = np.full(n + 1, n, np.int64)
    indptr[0] = 0
    columns = indptr, np.arange(n, dtype=np.uint32), bits
    ids, scores, counts = combined(np.array([0, 1]), np.zeros(1, np.uint32), np.ones(1), columns, n)
    assert counts[0] == n
    np.testing.assert_array_equal(scores[0], bits.view(np.float16).astype(np.float32)[::-1])
    np.testing.assert_array_equal(ids[0], np.arange(n)[::-1])


@pytest.mark.parametrize("values", [np.ones(3, np.float32), np.ones(3, np.float16).view(np.uint16)])
def test_ids_that_do_not_exist_are_reported_for_their_query_only(values):
    columns = np.array([0, 1, 2, 3]), np.array([0, 3, 2], np.uint32), values
    ids, scores, counts = combined(np.arange(4), np.arange(3, dtype=np.uint32), np.ones(3), columns, 2)
    assert counts.tolist() == [1, -1, 1]
    assert (ids[0, 0], scores[0, 0], ids[2, 0], scores[2, 0]) == (0, 1.0, 2, 1.0)


def test_owners_that_do_not_exist_are_reported_however_many_there_are():
    n = 200
    columns = np.array([0, *[n] * n]), np.arange(n, dtype=np.uint32), np.ones(n, np.float32)
    owners = np.arange(n)
    counts = combined(np.array([0, 1]), np.zeros(1, np.uint32), np.ones(1), columns, 2, owners, images=3)[2]
    assert counts.tolist() == [-1]


FEW_BYTES = """
import resource
import numpy as np
from suffuse.core.kernels.combine import combine_columns

def combine(images):
    ids, scores, counts = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32), np.empty(1, np.int64)
    combine_columns(
        np.array([0, 1]), np.zeros(1, np.uint32), np.ones(1), np.array([0, 2]), np.array([2, 2]),
        np.array([1, 0], np.uint32), np.array([1.0, 0.5], np.float32), np.empty(0, np.uint32), np.empty(0, np.uint8),
        images, ids, scores, counts,
    )
    return ids.tolist(), counts.tolist()

with open("/proc/self/statm") as statm:
    in_use = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**28, resource.RLIM_INFINITY))
assert combine(images=2) == combine(images=2**31 - 1) == ([[1, 0]], [2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process like this")
def test_memory_follows_the_columns_and_not_the_number_of_images():
    answer = subprocess.run([sys.executable, "-c", FEW_BYTES], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


# --- per query, match


@settings(deadline=None, max_examples=40)
@given(seed=seeds_of_rng, n=st.integers(1, 40), degree=st.integers(1, 8), share=st.floats(0, 1))
def test_a_query_solved_on_a_slice_or_the_whole_graph_equals_a_dense_solution(seed, n, degree, share):
    rng = np.random.default_rng(seed)
    s = network(rng, n, degree)
    support = rng.permutation(n)[: max(1, int(share * n))]
    y = np.zeros(n)
    y[support[:5]] = rng.uniform(0, 3, min(5, len(support)))
    f = np.empty(len(support))
    diffuse_late(support.astype(np.uint32), *reference.compressed(0.95 * s), EXACT, 1e-12, y[support], f)
    np.testing.assert_allclose(f, twin.solved(0.95 * s, support, y)[support], rtol=1e-7, atol=1e-10)
    # S in the place of A: any symmetric matrix without negative entries will do.
    diffuse_early(support.astype(np.uint32), *reference.compressed(s), 0.95, EXACT, 1e-12, y[support], f)
    np.testing.assert_allclose(f, twin.solved_early(s, 0.95, support, y)[support], rtol=1e-7, atol=1e-10)
    whole = np.empty(n)
    diffuse_whole(*reference.compressed(0.95 * s), EXACT, 1e-12, y, whole)
    np.testing.assert_allclose(whole, twin.solved(0.95 * s, np.arange(n), y), rtol=1e-7, atol=1e-10)


def test_a_query_without_weight_on_any_seed_reaches_nothing():
    f = np.full(30, 7.0)
    diffuse_whole(*reference.compressed(0.9 * network(np.random.default_rng(0), 30, 4)), 20, 1e-6, np.zeros(30), f)
    np.testing.assert_array_equal(f, np.zeros(30))


def test_the_tolerance_is_relative_to_the_query():
    graph = reference.compressed(0.9 * network(np.random.default_rng(0), 30, 4))
    y, f, tiny = np.random.default_rng(1).random(30), np.empty(30), np.empty(30)
    diffuse_whole(*graph, EXACT, 1e-3, y, f)
    diffuse_whole(*graph, EXACT, 1e-3, 2.0**-60 * y, tiny)
    np.testing.assert_array_equal(2.0**60 * tiny, f)


@settings(deadline=None, max_examples=60)
@given(
    scores=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 1e-60, 0.25, 0.25 + 1e-12, 0.5, 3.0]), min_size=1, max_size=30),
    seed=seeds_of_rng,
    data=st.data(),
)
def test_the_largest_positive_scores_are_ranked_with_ties_by_id(scores, seed, data):
    ids = np.random.default_rng(seed).permutation(100)[: len(scores)].astype(np.uint32)
    top = data.draw(st.integers(1, len(scores) + 3))
    found, out = np.full(top, -7, np.int64), np.full(top, -7, np.float32)
    count = rank_positive(ids, np.array(scores), found, out)
    rounded = dict(zip(ids.tolist(), np.array(scores, np.float32).tolist(), strict=True))
    expected = sorted((i for i in rounded if rounded[i] > 0), key=lambda i: (-rounded[i], i))[:top]
    assert found.tolist() == expected + [-7] * (top - count)
    assert out[:count].tolist() == [rounded[i] for i in expected]


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(1, 40), width=st.integers(1, 20))
def test_the_best_of_an_image_is_the_largest_of_its_regions(seed, n, width):
    rng = np.random.default_rng(seed)
    sims, owners = rng.normal(size=(n, width)).astype(np.float32), rng.integers(9, size=n).astype(np.uint32)
    best = np.full((9, width), -np.inf, np.float32)
    raise_to_best(sims, owners, best)
    expected = [sims[owners == image].max(axis=0, initial=-np.inf) for image in range(9)]
    np.testing.assert_array_equal(best, expected)
