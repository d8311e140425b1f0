"""Columns that hear of new elements: the kernels beside their slow twins, and what comes of it in an index."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import clusters, network, seeds_of_rng

import suffuse.core.growth
from suffuse import Index, Params, build, verify
from suffuse.core import Damaged
from suffuse.core.columns import Columns, Solved
from suffuse.core.graph import Graph
from suffuse.core.growth import extend_stale, to_solve
from suffuse.core.kernels.codes import APPENDED, DAMAGED, HEAD, LONGEST, TO_CODE_ANEW, UNCHANGED, append_to_codes
from suffuse.core.kernels.growth import extend_columns

REACH = 200


def some_columns(rng, lengths, values):
    """Columns with so many entries below REACH, as an index holds them."""
    rows = [rng.permutation(REACH)[:length].astype(np.int32) for length in lengths]
    # Some are equal, and the smallest are far below the largest, but not so far that the code leaves them out.
    numbers = [np.sort(2.0 ** -rng.integers(0, 15, length) / 4)[::-1].astype(np.float32) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    made = Columns.of(indptr, np.concatenate(rows), np.concatenate(numbers))
    if values != "uint8":
        return made._replace(values=made.values.astype(values))
    return Solved(made, np.diff(indptr), np.zeros(len(lengths))).encode().columns


def some_more(rng, columns, most):
    """For each column new ids and values, as the kernels take them: where each begins, ids ascending, values."""
    counts = rng.integers(0, most + 1, columns)
    ids = [REACH + np.sort(rng.permutation(60)[:count]) for count in counts]
    values = [(2.0 ** -rng.uniform(0, 14, count)).astype(np.float32) for count in counts]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return indptr, np.concatenate(ids).astype(np.uint32), np.concatenate(values).astype(np.float32)


@settings(deadline=None, max_examples=150)
@given(
    seed=seeds_of_rng, lengths=st.lists(st.integers(0, 60), min_size=1, max_size=4), most=st.integers(0, 9),
    keep=st.integers(1, 50), values=st.sampled_from(["uint8", "float16", "float32"]),
)  # fmt: skip
def test_the_largest_of_both_are_kept(seed, lengths, most, keep, values):
    rng = np.random.default_rng(seed)
    columns, more = some_columns(rng, lengths, values), some_more(rng, len(lengths), most)
    floor = np.float32(1e-6)
    ids, numbers = np.empty((len(lengths), keep), np.uint32), np.empty((len(lengths), keep), np.float32)
    out = np.empty(len(lengths), np.int64)
    extend_columns(*columns.for_kernels(), REACH, *more, floor, ids, numbers, out)
    for column in range(len(lengths)):
        before, new = columns.decode(np.array([column])), slice(*more[0][[column, column + 1]])
        pairs = [
            *zip(before.entries.tolist(), before.values.astype(np.float32).tolist(), strict=True),
            *zip(more[1][new].tolist(), more[2][new].tolist(), strict=True),
        ]
        expected = sorted((pair for pair in pairs if pair[1] > floor), key=lambda pair: (-pair[1], pair[0]))[:keep]
        assert out[column] == len(expected)
        found = zip(ids[column].tolist(), numbers[column].tolist(), strict=True)
        assert list(found)[: len(expected)] == expected


def appended_slowly(codes, scale, more, keep):
    """What comes of a column, and its entries with the new ones in the levels that its tail has."""
    entries = reference.decode_column(codes, scale)
    if not keep <= len(entries) <= keep + keep // 4 or len(entries) <= HEAD:
        return TO_CODE_ANEW, None
    if any(value > min(value for _, value in entries[:HEAD]) for _, value in more):
        return TO_CODE_ANEW, None
    head, place = entries[:HEAD], 0
    for id, previous in zip([id for id, _ in head], [0, *(id for id, _ in head)], strict=False):
        place += len(reference.varint(id - previous)) + 1
    levels = [level for level in codes[place : place + 8] if level]
    new = []
    for id, value in more:
        depth = np.log2(scale / value) * 16
        if levels and depth <= max(levels):
            nearest = min(levels, key=lambda level: abs(level - depth))
            new.append((id, scale * 2.0 ** (-nearest / 16)))
    return (APPENDED, entries + new) if new else (UNCHANGED, None)


@settings(deadline=None, max_examples=200)
@given(
    seed=seeds_of_rng, above=st.lists(st.integers(-3, 16), min_size=1, max_size=5), most=st.integers(0, 5),
    keep=st.integers(1, 60),
)  # fmt: skip
def test_entries_are_appended_in_the_levels_of_the_tail(seed, above, most, keep):
    rng, lengths = np.random.default_rng(seed), [max(keep + more, 0) for more in above]
    columns, more = some_columns(rng, lengths, "uint8"), some_more(rng, len(lengths), most)
    more[2][:] /= 32  # most belong in the tail
    longer = np.zeros(len(columns.entries) + LONGEST * len(more[1]), np.uint8)
    ends, out = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    append_to_codes(*columns, REACH, keep, *more, longer, ends, out)
    begin = 0
    for column in range(len(lengths)):
        codes = columns.entries[columns.starts[column] : columns.stops[column]].tolist()
        new = slice(*more[0][[column, column + 1]])
        pairs = list(zip(more[1][new].tolist(), more[2][new].tolist(), strict=True))
        state, entries = appended_slowly(codes, float(columns.values[column]), pairs, keep)
        assert out[column] == state
        if state != APPENDED:
            assert ends[column] == begin  # it takes no place
            continue
        found = reference.decode_column(longer[begin : ends[column]].tolist(), float(columns.values[column]))
        assert [id for id, _ in found] == [id for id, _ in entries]
        np.testing.assert_allclose([value for _, value in found], [value for _, value in entries], rtol=1e-6)
        begin = ends[column]


def test_every_end_of_a_column_occurs_in_the_test_above():
    rng, states = np.random.default_rng(0), set()
    for keep in (20, 40, 60):
        columns = some_columns(rng, [40] * 40, "uint8")
        for column in range(40):
            codes = columns.entries[columns.starts[column] : columns.stops[column]].tolist()
            for value in (1e-7, 1e-3, 1.0):
                states.add(appended_slowly(codes, float(columns.values[column]), [(REACH, value)], keep)[0])
    assert states == {APPENDED, UNCHANGED, TO_CODE_ANEW}


def damaged(columns, damage):
    starts, stops, entries = columns.starts.copy(), columns.stops.copy(), columns.entries.copy()
    if damage == "an id that does not exist":
        entries[starts[0]] = 127 if entries.dtype == np.uint8 else 300
        if entries.dtype == np.uint8:
            entries[starts[0]], entries[starts[0] + 1] = 255, 3
    elif damage == "entries outside":
        stops[0] = len(entries) + 1
    else:
        starts[0] = stops[0] + 1
    return columns._replace(starts=starts, stops=stops, entries=entries)


@pytest.mark.parametrize("values", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("damage", ["an id that does not exist", "entries outside", "an end before its start"])
def test_damaged_columns_are_told(values, damage):
    columns = damaged(some_columns(np.random.default_rng(2), [30, 30], values), damage)
    found = Columns.of(np.array([0, 2]), np.array([0, 1], np.int32), np.array([0.01, 0.01], np.float32))
    params = Params(truncation=30, keep=30, values=values)
    with pytest.raises(Damaged, match="column of the index is damaged"):
        extend_stale(columns, found, np.array([REACH]), params, np.ones(REACH, bool))


def test_a_damaged_column_is_told_by_the_kernel_that_appends():
    columns = damaged(some_columns(np.random.default_rng(2), [30, 30], "uint8"), "an end before its start")
    more = np.array([0, 1, 2]), np.array([REACH, REACH], np.uint32), np.array([0.01, 0.01], np.float32)
    ends, out = np.empty(2, np.int64), np.empty(2, np.int64)
    append_to_codes(*columns, REACH, 30, *more, np.empty(999, np.uint8), ends, out)
    assert out[0] == DAMAGED
    assert out[1] != DAMAGED


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, n=st.integers(2, 40), new=st.integers(1, 3), beyond=st.integers(0, 12))
def test_what_is_next_to_new_elements_is_solved_too(seed, n, new, beyond):
    rng = np.random.default_rng(seed)
    alpha_s = 0.9 * network(rng, n, 3)
    hidden = rng.random(n) < 0.2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffuse.core.growth, "_BEYOND", beyond)
        found = to_solve(Graph(*reference.compressed(alpha_s)), np.arange(n - min(new, n), n), hidden)
    start = np.zeros(n)
    start[n - min(new, n) :] = 1
    once = alpha_s @ start
    must = (start > 0) | (once > 0)
    twice = np.where(must | hidden, 0, alpha_s @ once)
    assert set(np.flatnonzero(must)) <= set(found.tolist())
    others = np.setdiff1d(found, np.flatnonzero(must))
    assert len(others) == min(beyond, np.count_nonzero(twice))
    left = np.setdiff1d(np.flatnonzero(twice), others)
    assert not len(left) or not len(others) or twice[others].min() >= twice[left].max() - 1e-12


@pytest.mark.parametrize("values", ["uint8", "float16", "float32"])
def test_stale_columns_hear_of_what_is_new(tmp_path, monkeypatch, values):
    """What the column of a new element says of a stale one, that one says of it; and they stay stale, and sound."""
    monkeypatch.setattr(suffuse.core.growth, "_BEYOND", 0)
    features = clusters(np.random.default_rng(5), 930, 16, count=3, spread=0.5)
    build(features[:900], tmp_path / "x", Params(k=20, truncation=400, keep=200, values=values))
    index = Index.open(tmp_path / "x")
    for batch in (features[900:915], features[915:]):  # the second extends columns that were extended
        before = index.now
        summary = index.add(batch)
        now = index.now
        old, n = len(before.features), len(now.features)
        stale = now.stale_elements[now.stale_elements < old]
        assert 0 < len(stale) == round(summary.stale * n)
        told = now.columns().decode(np.arange(old, n))
        said = np.zeros((n - old, n), np.float32)
        said[np.repeat(np.arange(n - old), np.diff(told.indptr)), told.entries] = told.values
        heard = 0
        for element in stale.tolist():
            column, was = (one.columns().decode(np.array([element])) for one in (now, before))
            new = column.entries >= old
            heard += int(new.sum())
            expected = said[column.entries[new] - old, element]
            assert (expected > 0).all()  # nothing is made up
            np.testing.assert_allclose(column.values[new], expected, rtol=0.5 if values == "uint8" else 1e-3)
            # Small entries may have made room, large ones have not.
            largest = was.entries[np.argsort(-was.values, kind="stable")[:50]]
            assert set(largest.tolist()) <= set(column.entries.tolist())
            assert len(column.entries) <= 200 * 5 // 4 + n - old
        assert heard > 100
    assert verify(tmp_path / "x") > 0
    index.compact()
    build(features, tmp_path / "fresh", index.manifest.params)
    fresh = Index.open(tmp_path / "fresh").now
    for one, other in zip(index.now.columns(), fresh.columns(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_columns_do_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(suffuse.core.growth, "_BEYOND", 0)
    features = clusters(np.random.default_rng(8), 900, 8, count=1, spread=1.0)
    build(features[:450], tmp_path / "x", Params(k=10, truncation=400, keep=60))
    index = Index.open(tmp_path / "x")
    for batch in np.array_split(features[450:], 30):
        index.add(batch)
    stored = index.now
    lengths = np.diff(stored.columns().decode(np.arange(len(stored.features))).indptr)
    assert 60 < lengths.max() <= 60 + 15 + 15  # a quarter, and what one addition brings
