"""The supports that known columns tell, beside their slow twin; and where they tell too little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, network, seeds_of_rng

from suffuse import Index, Params, build
from suffuse.core import Damaged
from suffuse.core.columns import Columns, Solved
from suffuse.core.growth import alpha_s_of, neighbors_in, solve
from suffuse.core.kernels.codes import HEAD
from suffuse.core.kernels.supports import known_supports
from suffuse.core.neighbors import Neighbors, nearest_to_rows

STEPS, WHOLE = 4, 8


def stored_columns(rng, known, most, values):
    """Columns of `known` elements over them, as an index holds them; as a matrix, column i in row i; and the heads."""
    lengths = rng.integers(0, min(most, known) + 1, known)
    rows = [rng.permutation(known)[:length].astype(np.int32) for length in lengths]
    numbers = [np.sort(rng.uniform(0.01, 1.0, length))[::-1].astype(np.float32) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    made = Columns.of(indptr, np.concatenate(rows), np.concatenate(numbers))
    if values == "uint8":
        columns = Solved(made, np.diff(indptr), np.zeros(known)).encode().columns
    else:
        columns = made._replace(values=made.values.astype(values))
    dense, heads = np.zeros((2, known, known))
    entries = columns.decode(np.arange(known))
    for element, largest_first in enumerate(rows):
        part = slice(entries.indptr[element], entries.indptr[element + 1])
        dense[element, entries.entries[part]] = entries.values[part]
        heads[element, largest_first[:HEAD]] = dense[element, largest_first[:HEAD]]
    return columns, dense, heads


def told(alpha_s, order, columns, group, truncation):
    """The support of each group of all nodes, and their sizes."""
    n, groups = len(order), -(-len(order) // group)
    supports, sizes = np.zeros((groups, truncation), np.uint32), np.empty(groups, np.int64)
    number = np.argsort(order).astype(np.uint32)
    known_supports(
        0, n, group, WHOLE, order.astype(np.uint32), number, *reference.compressed(alpha_s), *columns.for_kernels(),
        STEPS, supports, sizes,
    )  # fmt: skip
    return [support[:size] for support, size in zip(supports, np.maximum(sizes, 0), strict=True)], sizes


def twin(alpha_s, order, dense, heads, members, truncation):
    """What the member has that has the most, by node: e + alpha S times the columns of the neighbours.

    Only of the heaviest neighbours of any member is the column whole, of the others it is the head. Then what is new
    hears of it by one step. None where that tells too little.
    """
    n, is_new = len(order), order >= len(dense)
    columns = np.eye(n)  # by nodes; of a new one nothing but itself is known
    old = np.flatnonzero(~is_new)
    columns[np.ix_(old, old)] = heads[np.ix_(order[old], order[old])]
    for node in members:
        edges = alpha_s[node]
        least = np.sort(edges)[-WHOLE] if np.count_nonzero(edges) >= WHOLE else 0
        for other in np.flatnonzero((edges > 0) & (edges >= least) & ~is_new):
            columns[other, old] = dense[order[other], order[old]]
    mass = alpha_s[members] @ columns
    mass[np.arange(len(members)), members] += 1
    if is_new.any():
        frontier = reference.largest(mass.max(axis=0), truncation)
        came = mass[:, frontier] @ alpha_s[frontier]
        arrived = is_new & (came.max(axis=0) > 0)
        mass[:, arrived] = came[:, arrived]
    best = mass.max(axis=0)
    too_new = best[is_new].sum() > 0.25 * best.sum()
    too_few = np.count_nonzero(best) < 0.5 * truncation
    best[members] = np.inf
    return None if too_new or too_few else best


@settings(deadline=None, max_examples=200)
@given(
    seed=seeds_of_rng, n=st.integers(2, 60), degree=st.integers(2, 30), share=st.floats(0, 0.6),
    new=st.integers(0, 4), group=st.integers(1, 8), values=st.sampled_from(["uint8", "float16", "float32"]),
)  # fmt: skip
def test_supports_are_where_the_columns_of_neighbours_have_the_most(seed, n, degree, share, new, group, values):
    rng = np.random.default_rng(seed)
    alpha_s, order = 0.9 * network(rng, n, degree), rng.permutation(n)
    truncation = max(min(group, n), int(share * n))
    columns, *matrices = stored_columns(rng, n - min(new, n - 1), 30, values)
    found, _ = told(alpha_s, order, columns, group, truncation)
    for support, members in zip(found, np.split(np.arange(n), np.arange(group, n, group)), strict=True):
        assert len(set(support.tolist())) == len(support)
        best = twin(alpha_s, order, *matrices, members, truncation)
        if best is None:
            assert sorted(support) == sorted(reference.walk_support(alpha_s, members, truncation, STEPS))
            continue
        assert len(support) == min(truncation, np.count_nonzero(best))
        # Masses are of single precision: what differs must be as good as equal.
        expected = reference.largest(best, truncation)
        last = best[expected].min()
        different = np.setxor1d(support, expected)
        np.testing.assert_allclose(best[different], last, rtol=1e-5)


def test_both_ways_are_taken_by_the_test_above():
    """Else one of them would not be compared at all."""
    rng, ways = np.random.default_rng(1), set()
    for new in (0, 12):
        alpha_s, order = 0.9 * network(rng, 24, 6), rng.permutation(24)
        _, *matrices = stored_columns(rng, 24 - new, 20, "float32")
        ways |= {twin(alpha_s, order, *matrices, np.arange(first, first + 4), 8) is None for first in range(0, 24, 4)}
    assert ways == {True, False}


def test_exact_columns_tell_themselves():
    """c = e + alpha S c: with few edges, what the columns of the neighbours tell is the column itself."""
    rng = np.random.default_rng(4)
    alpha_s = 0.9 * network(rng, 60, 3)
    assert (np.count_nonzero(alpha_s, axis=1) <= WHOLE).all()
    exact = reference.inverse(alpha_s).astype(np.float32)
    columns = Columns.of(np.arange(0, 3601, 60), np.tile(np.arange(60, dtype=np.int32), 60), exact.reshape(-1))
    found, _ = told(alpha_s, np.arange(60), columns, 1, 12)
    for node, support in enumerate(found):
        assert sorted(support) == sorted(reference.largest(exact[node], 12))


@pytest.mark.parametrize("values", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("damage", ["an id that does not exist", "entries outside", "an end before its start"])
def test_damaged_columns_are_told(values, damage):
    rng = np.random.default_rng(3)
    alpha_s = 0.9 * network(rng, 20, 5)
    columns, _, _ = stored_columns(rng, 20, 20, values)
    assert (told(alpha_s, np.arange(20), columns, 4, 6)[1] > 0).all()
    longest = int((columns.stops - columns.starts).argmax())
    starts, stops, entries = columns.starts.copy(), columns.stops.copy(), columns.entries.copy()
    if damage == "an id that does not exist":
        entries[starts[longest] : starts[longest] + 1] = 127 if values == "uint8" else 20
    elif damage == "entries outside":
        stops[longest] = len(entries) + 1
    else:
        starts[longest] = stops[longest] + 1
    damaged = columns._replace(starts=starts, stops=stops, entries=entries)
    assert (told(alpha_s, np.arange(20), damaged, 4, 6)[1] < 0).all()


def small_world(values="uint8"):
    """Features of a few clusters, their lists and their parameters."""
    features = clusters(np.random.default_rng(5), 900, 16, count=3, spread=0.5)
    return features, Params(k=20, truncation=400, keep=200, values=values)


def test_a_change_with_a_damaged_column_is_refused():
    features, params = small_world("float32")
    found = nearest_to_rows(features, 0, len(features), params.k)
    graph = alpha_s_of(Neighbors(found.ids.astype(np.int32), found.sims), params)
    n = len(features)
    wrong = Columns.of(np.arange(n + 1), np.full(n, n, np.int32), np.ones(n, np.float32))
    with pytest.raises(Damaged, match="column of the index is damaged"):
        solve(graph, neighbors_in(graph, np.array([0])), params, features, None, wrong)


def test_columns_that_are_solved_again_tell_no_less(tmp_path):
    """What a support leaves out is missing in the sum: larger columns on as many nodes are better ones."""
    features, params = small_world("float32")
    build(features, tmp_path / "x", params)
    index = Index.open(tmp_path / "x")
    found = nearest_to_rows(features, 0, len(features), params.k)
    graph = alpha_s_of(Neighbors(found.ids.astype(np.int32), found.sims), params)
    stored = index.now.columns()
    order, solved = solve(graph, np.arange(len(features)), params, features, None, stored)
    again, before = solved.columns.decode(np.arange(len(order))), stored.decode(order)
    exact = reference.inverse(reference.dense(graph))[order].sum()
    assert before.values.sum() * 0.999 < again.values.sum() < exact


def test_many_images_of_something_new_find_each_other(tmp_path):
    rng = np.random.default_rng(9)
    features, params = small_world()
    build(features, tmp_path / "x", params)
    index = Index.open(tmp_path / "x")
    # An arc, of which each image only knows the nearest: one step from what was there before would not go along it.
    angles = np.linspace(0, 1.2, 420)[:, None]
    ends = np.linalg.qr(rng.normal(size=(16, 2)))[0].T
    index.add((np.cos(angles) * ends[0] + np.sin(angles) * ends[1]).astype(np.float32))
    n = len(index)
    grown = index.now
    reach = np.diff(grown.columns().decode(np.arange(900, n)).indptr)
    index.compact()
    compacted = np.diff(index.now.columns().decode(np.arange(900, n)).indptr)
    np.testing.assert_array_equal(reach, compacted)
