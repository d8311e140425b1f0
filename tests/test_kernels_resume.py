"""The supports that columns from before a change tell, beside their slow twin; and where they tell too little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from data import clusters, network, seeds_of_rng
from suffuse import Index, Params, build
from suffuse.changes import alpha_s_of, neighbors_in, solve
from suffuse.codes import encode, held, kernel_view, plain
from suffuse.diffusion import Columns
from suffuse.errors import IndexBroken
from suffuse.kernels.resume import resume_supports
from suffuse.neighbors import Neighbors, nearest_to_rows

STEPS = 4


def stored_columns(rng, known, most, values):
    """Columns of `known` elements over them, as an index holds them, and the same as a matrix, column i in row i."""
    lengths = rng.integers(0, min(most, known) + 1, known)
    rows = [rng.permutation(known)[:length].astype(np.int32) for length in lengths]
    numbers = [np.sort(rng.uniform(0.01, 1.0, length))[::-1].astype(np.float32) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    made = Columns(indptr, np.concatenate(rows), np.concatenate(numbers), np.zeros(known))
    if values == "uint8":
        coded = encode(made)
        columns = held(coded.indptr, coded.codes, coded.scales)
    else:
        columns = held(indptr, made.rows, made.values.astype(values))
    dense, entries = np.zeros((known, known)), plain(columns, np.arange(known))
    for element in range(known):
        part = slice(entries.indptr[element], entries.indptr[element + 1])
        dense[element, entries.rows[part]] = entries.values[part]
    return columns, dense


def resumed(alpha_s, order, columns, group, truncation):
    """The support of each group of all nodes, as sets."""
    n, groups = len(order), -(-len(order) // group)
    supports, sizes = np.zeros((groups, truncation), np.uint32), np.empty(groups, np.int64)
    number = np.argsort(order).astype(np.uint32)
    resume_supports(
        0, n, group, order.astype(np.uint32), number, *reference.compressed(alpha_s), *map(kernel_view, columns),
        STEPS, supports, sizes,
    )  # fmt: skip
    return [sorted(support[:size].tolist()) for support, size in zip(supports, sizes, strict=True)], sizes


def twin(alpha_s, order, dense, members, truncation):
    """One step from the sum of the columns of the members, which are nodes; a walk where that tells too little."""
    n, known = len(order), len(dense)
    columns = np.zeros((n, n))  # by nodes; those of new ones are 0
    old = np.flatnonzero(order < known)
    columns[np.ix_(old, old)] = dense[np.ix_(order[old], order[old])]
    total = np.zeros(n)
    for node in members:
        if order[node] < known:
            total += columns[node]
        else:
            total[node] += 1
            total += alpha_s[node] @ columns
            total += np.where(order >= known, alpha_s[node], 0)
    start = np.zeros(n)
    frontier = reference.largest(total, truncation)
    start[frontier] = total[frontier]
    mass = alpha_s @ start
    too_new = mass[order >= known].sum() > 0.25 * mass.sum()
    mass[members] = np.inf
    if np.count_nonzero(mass) < truncation or too_new:
        return sorted(reference.walk_support(alpha_s, members, truncation, STEPS)), True
    return sorted(reference.largest(mass, truncation)), False


@settings(deadline=None, max_examples=150)
@given(
    seed=seeds_of_rng, n=st.integers(2, 40), degree=st.integers(2, 10), share=st.floats(0, 0.6),
    new=st.integers(0, 4), group=st.integers(1, 8), values=st.sampled_from(["uint8", "float16", "float32"]),
)  # fmt: skip
def test_supports_are_one_step_from_the_columns_before(seed, n, degree, share, new, group, values):
    rng = np.random.default_rng(seed)
    alpha_s, order = 0.9 * network(rng, n, degree), rng.permutation(n)
    truncation = max(min(group, n), int(share * n))
    columns, dense = stored_columns(rng, n - min(new, n - 1), 30, values)
    found, _ = resumed(alpha_s, order, columns, group, truncation)
    groups = np.split(np.arange(n), np.arange(group, n, group))
    for support, members in zip(found, groups, strict=True):
        assert support == twin(alpha_s, order, dense, members, truncation)[0]


def test_both_ways_are_taken_by_the_test_above():
    """Else one of them would not be compared at all."""
    rng, ways = np.random.default_rng(1), set()
    for new in (0, 12):
        alpha_s, order = 0.9 * network(rng, 24, 6), rng.permutation(24)
        _, dense = stored_columns(rng, 24 - new, 20, "float32")
        ways |= {twin(alpha_s, order, dense, np.arange(first, first + 4), 8)[1] for first in range(0, 24, 4)}
    assert ways == {True, False}


@pytest.mark.parametrize("values", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("damage", ["an id that does not exist", "entries outside", "an end before its start"])
def test_damaged_columns_are_told(values, damage):
    rng = np.random.default_rng(3)
    alpha_s = 0.9 * network(rng, 20, 5)
    columns, _ = stored_columns(rng, 20, 20, values)
    assert (resumed(alpha_s, np.arange(20), columns, 4, 6)[1] > 0).all()
    longest = int((columns.stops - columns.starts).argmax())
    starts, stops, entries = columns.starts.copy(), columns.stops.copy(), columns.entries.copy()
    if damage == "an id that does not exist":
        entries[starts[longest] : starts[longest] + 1] = 127 if values == "uint8" else 20
    elif damage == "entries outside":
        stops[longest] = len(entries) + 1
    else:
        starts[longest] = stops[longest] + 1
    damaged = columns._replace(starts=starts, stops=stops, entries=entries)
    assert (resumed(alpha_s, np.arange(20), damaged, 4, 6)[1] < 0).all()


def small_world(values="uint8"):
    """Features of a few clusters, their lists and their parameters."""
    features = clusters(np.random.default_rng(5), 900, 16, count=3, spread=0.5)
    return features, Params(k=20, truncation=400, keep=200, values=values)


def test_a_change_with_a_damaged_column_is_refused():
    features, params = small_world("float32")
    found = nearest_to_rows(features, 0, len(features), params.k)
    graph = alpha_s_of(Neighbors(found.ids.astype(np.int32), found.sims), params)
    n = len(features)
    wrong = held(np.arange(n + 1), np.full(n, n, np.int32), np.ones(n, np.float32))
    with pytest.raises(IndexBroken, match="column of the index is damaged"):
        solve(graph, neighbors_in(graph, np.array([0])), params, features, None, wrong)


def test_where_nothing_changed_columns_stay_what_they_were(tmp_path):
    features, params = small_world("float32")
    build(features, tmp_path / "x", params)
    index = Index.open(tmp_path / "x")
    found = nearest_to_rows(features, 0, len(features), params.k)
    graph = alpha_s_of(Neighbors(found.ids.astype(np.int32), found.sims), params)
    stored = index._now._stored.columns
    order, solved = solve(graph, np.arange(len(features)), params, features, None, stored)
    again = plain(held(solved.indptr, *solved[1:3]), np.arange(len(order)))
    before = plain(stored, order)
    for place in range(0, len(order), 37):
        old, new = (
            dict(zip(part.rows[span].tolist(), part.values[span].tolist(), strict=True))
            for part in (before, again)
            for span in [slice(part.indptr[place], part.indptr[place + 1])]
        )
        # Other nodes may be at the end of a support: what both hold is the same within what that is worth.
        both = old.keys() & new.keys()
        assert len(both) > 0.9 * len(old)
        top = sorted(both, key=old.__getitem__)[-20:]
        np.testing.assert_allclose([new[id] for id in top], [old[id] for id in top], rtol=0.05)


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
    grown = index._now._stored
    reach = np.diff(plain(grown.columns, np.arange(900, n)).indptr)
    index.compact()
    compacted = np.diff(plain(index._now._stored.columns, np.arange(900, n)).indptr)
    np.testing.assert_array_equal(reach, compacted)
