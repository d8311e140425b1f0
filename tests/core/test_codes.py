"""The compact code of columns: kernels beside slow twins, and the reader of docs/index-format.md."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.builds import directory_bytes
from tests.support.data import clusters, seeds_of_rng
from tests.support.indexes import stored_column

import suffuse
from suffuse import Index, Params
from suffuse.core import Damaged
from suffuse.core.columns import Columns, Solved
from suffuse.core.kernels.combine import combine_columns, refine_candidates
from suffuse.store.manifest import LIST_FILES

FORMAT = Path(__file__).parents[2] / "docs" / "index-format.md"


def columns_of(lists):
    """`Columns` of lists of ids, with their values, largest first."""
    lengths = [len(ids) for ids, _ in lists]
    rows = np.concatenate([np.empty(0, np.int32), *(np.asarray(ids, np.int32) for ids, _ in lists)])
    values = np.concatenate([np.empty(0, np.float32), *(np.asarray(values, np.float32) for _, values in lists)])
    return Columns.of(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), rows, values)


def random_columns(rng, count, n, longest, octaves):
    lists = []
    for _ in range(count):
        ids = rng.choice(n, size=min(n, rng.integers(0, longest + 1)), replace=False)
        values = 2.0 ** (rng.uniform(-5, 5) - rng.uniform(0, octaves, size=len(ids)))
        lists.append((ids, np.sort(values.astype(np.float32))[::-1]))
    return columns_of(lists)


def encode(columns):
    return Solved(columns, columns.stops - columns.starts, np.zeros(len(columns.starts))).encode()


@settings(deadline=None, max_examples=80)
@given(
    seed=seeds_of_rng,
    n=st.sampled_from([1, 30, 200, 20_000, 2**31 - 1]),
    longest=st.sampled_from([0, 1, 20, 21, 22, 150]),
    octaves=st.sampled_from([0, 0.3, 4, 20]),
)
def test_encoding_and_decoding_equal_the_slow_twins(seed, n, longest, octaves):
    rng = np.random.default_rng(seed)
    columns = (
        random_columns(rng, 6, n, longest, octaves) if n < 10**6 else random_columns(rng, 6, 1000, longest, octaves)
    )
    if n > 10**6:  # the farthest ids that there can be
        columns = columns._replace(entries=(columns.entries.astype(np.int64) * ((n - 1) // 999)).astype(np.int32))
    coded = encode(columns)
    decoded = coded.columns.decode(np.arange(6))
    for i in range(6):
        own = slice(columns.indptr[i], columns.indptr[i + 1])
        expected, scale, kept = reference.encode_column(columns.entries[own], columns.values[own])
        found = coded.columns.entries[coded.columns.indptr[i] : coded.columns.indptr[i + 1]].tobytes()
        assert (found, coded.columns.values[i], coded.lengths[i]) == (expected, np.float32(scale), kept)
        entries = reference.decode_column(found, scale)
        places = slice(decoded.indptr[i], decoded.indptr[i + 1])
        assert decoded.entries[places].tolist() == [id for id, _ in entries]
        np.testing.assert_allclose(decoded.values[places], [value for _, value in entries], rtol=1e-6)


@settings(deadline=None, max_examples=60)
@given(seed=seeds_of_rng, longest=st.integers(1, 120), octaves=st.floats(0, 15))
def test_what_is_decoded_is_near_to_what_was_encoded(seed, longest, octaves):
    columns = random_columns(np.random.default_rng(seed), 3, 500, longest, octaves)
    decoded = encode(columns).columns.decode(np.arange(3))
    for i in range(3):
        own, places = (slice(at[i], at[i + 1]) for at in (columns.indptr, decoded.indptr))
        before = dict(zip(columns.entries[own].tolist(), columns.values[own].tolist(), strict=True))
        after = dict(zip(decoded.entries[places].tolist(), decoded.values[places].tolist(), strict=True))
        assert before.keys() == after.keys()  # all of them are within the range
        head = set(columns.entries[own][:20].tolist())
        assert set(decoded.entries[places][:20].tolist()) == head
        tail = columns.values[own][20:]
        span = np.log2(tail[0] / tail[-1]) if len(tail) else 0.0
        for id, value in before.items():
            allowed = 1 / 32 if id in head else span / 8 + 1 / 32
            assert abs(np.log2(after[id] / value)) <= allowed + 1e-5


def test_entries_below_the_range_are_left_out():
    values = np.array([1.0, 2.0**-15.9, 2.0**-16, 1e-38, 1e-45], np.float32)
    coded = encode(columns_of([(np.arange(5), values), ([7], [1e-45])]))
    assert coded.lengths.tolist() == [2, 1]
    decoded = coded.columns.decode(np.arange(2))
    assert decoded.entries.tolist() == [0, 1, 7]
    assert decoded.values[2] == np.float32(1e-45)


def test_chosen_columns_are_decoded_in_the_order_asked_for():
    columns = random_columns(np.random.default_rng(3), 5, 300, 60, 6)
    coded = encode(columns).columns
    whole, chosen = coded.decode(np.arange(5)), coded.decode(np.array([4, 0, 4]))
    for place, i in enumerate([4, 0, 4]):
        own, found = (slice(at[j], at[j + 1]) for at, j in ((whole.indptr, i), (chosen.indptr, place)))
        np.testing.assert_array_equal(chosen.entries[found], whole.entries[own])
        np.testing.assert_array_equal(chosen.values[found], whole.values[own])


@settings(deadline=None, max_examples=300)
@given(
    codes=st.lists(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 127, 128, 255])), max_size=120),
    fill=st.booleans(),
)
def test_any_bytes_decode_as_the_slow_twin_says_or_are_broken(codes, fill):
    codes = [1, 5] * 20 + codes if fill else codes  # a sound head, so that the tail is met as well
    coded = Columns.of(np.array([0, len(codes)]), np.array(codes, np.uint8), np.ones(1, np.float32))
    expected = reference.decode_column(codes, 1.0)
    if expected is None:
        with pytest.raises(Damaged, match=r"codes\.npy is damaged in column 0"):
            coded.decode(np.array([0]))
    else:
        found = coded.decode(np.array([0]))
        assert found.entries.view(np.uint32).tolist() == [id for id, _ in expected]
        np.testing.assert_allclose(found.values, [value for _, value in expected], rtol=1e-6)


@settings(deadline=None, max_examples=300)
@given(
    codes=st.lists(st.integers(0, 255), max_size=150), stops=st.lists(st.integers(0, 150), max_size=6), data=st.data()
)
def test_any_bytes_are_combined_and_compared_as_the_slow_twin_says(codes, stops, data):
    """Small numbers are likely ids; the others are out of range, or cut short."""
    codes = [code % data.draw(st.sampled_from([8, 64, 256])) for code in codes]
    indptr = np.array([0, *sorted(min(stop, len(codes)) for stop in stops), len(codes)])
    n = len(indptr) - 1
    targets = data.draw(st.sampled_from([n, 40, 500]))
    twins = [reference.decode_column(codes[indptr[i] : indptr[i + 1]], 0.5) for i in range(n)]
    coded = indptr[:-1], indptr[1:], np.array(codes, np.uint8), np.full(n, 0.5, np.float32)
    query_ptr, seeds = np.array([0, n, n + 1]), np.array([*range(n), 0], np.uint32)
    weights, nobody = np.ones(n + 1), np.empty(0, np.uint32)
    ids, scores, counts = np.zeros((2, 500), np.int64), np.zeros((2, 500), np.float32), np.zeros(2, np.int64)
    combine_columns(query_ptr, seeds, weights, *coded, nobody, np.empty(0, np.uint8), targets, ids, scores, counts)
    # Twice: damaged candidates spoil their query, so those that are sound are asked for alone.
    sound = np.array([i for i, column in enumerate(twins) if column is not None], np.int64)
    candidates, cosines, found = np.tile(np.arange(n), (2, 1)), np.zeros((2, n), np.float32), np.zeros(2, np.int64)
    known, seeds_of = (query_ptr, seeds, weights, *coded, *coded), (targets, 20, 0)
    refine_candidates(*known, np.full(2, n), *seeds_of, candidates, cosines, found)
    assert (found[counts >= 0] == (n if len(sound) == n else -1)).all()
    assert (found[counts < 0] == -1).all()
    candidates, cosines = np.tile(sound, (2, 1)), np.zeros((2, len(sound)), np.float32)
    refine_candidates(*known, np.full(2, len(sound)), *seeds_of, candidates, cosines, found)
    for q, columns in enumerate((twins, twins[:1])):
        if any(column is None or any(id >= targets for id, _ in column) for column in columns):
            assert counts[q] == found[q] == -1
            continue
        f = np.zeros(targets)
        for column in columns:
            for id, value in column:
                f[id] += value
        expected = reference.largest(f, 500)
        assert counts[q] == len(expected)
        np.testing.assert_allclose(scores[q, : counts[q]], f[expected], rtol=1e-6)
        np.testing.assert_allclose(scores[q, : counts[q]], f[ids[q, : counts[q]]], rtol=1e-6)
        assert sorted(candidates[q]) == sound.tolist()
        assert (np.diff(cosines[q]) <= 0).all()
        for i, cosine in zip(candidates[q].tolist(), cosines[q], strict=True):
            own = np.array([value for _, value in twins[i][:20]])
            product = sum(value * f[id] for id, value in twins[i][:20] if id < targets)
            length = np.linalg.norm(own) * np.linalg.norm(f)
            assert cosine == pytest.approx(product / length if length else 0.0, rel=1e-5)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Whole images, columns with a head and a tail."""
    path = tmp_path_factory.mktemp("codes") / "x.index"
    suffuse.build(clusters(np.random.default_rng(8), 300, 8), path, Params(k=10, truncation=120, keep=60))
    return path


def test_the_reader_in_the_documentation_reads_an_index(path):
    reader = re.search(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL).group(1)
    namespace = {}
    exec(reader, namespace)
    for i in (0, 7, 299):
        ids, values = stored_column(Index.open(path), i)
        column = namespace["read_column"](path, i)
        assert list(column) == ids.tolist()
        assert len(column) > 30
        np.testing.assert_allclose(list(column.values()), values, rtol=1e-6)


def test_a_coded_search_is_near_to_a_plain_one(path, tmp_path):
    index = Index.open(path)
    features = clusters(np.random.default_rng(8), 300, 8)
    params = dataclasses.replace(index.params, values="float32")
    suffuse.build(features, tmp_path / "plain.index", params)
    uncoded = Index.open(tmp_path / "plain.index")
    queries = features[:40] + 0.1
    for refine in (0, 30):
        coded, expected = (i.search(queries, top=10, refine=refine) for i in (index, uncoded))
        same = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(coded.ids, expected.ids, strict=True)])
        assert same > 0.9
    coded_bytes, plain_bytes = (
        sum(file["bytes"] for name, file in i.manifest.files.items() if name not in LIST_FILES)  # both have the same
        for i in (index, uncoded)
    )
    assert coded_bytes < plain_bytes / 3


def test_the_blocks_of_a_coded_build_do_not_change_it(tmp_path, monkeypatch):
    from suffuse.offline import tasks

    features, params = clusters(np.random.default_rng(9), 300, 8), Params(k=10, truncation=120, keep=60)
    suffuse.build(features, tmp_path / "a.index", params)
    monkeypatch.setattr(tasks, "block_rows", lambda _: 37)
    suffuse.build(features, tmp_path / "b.index", params)
    assert directory_bytes(tmp_path / "a.index") == directory_bytes(tmp_path / "b.index")
