"""An index whose seeds are found by HNSW: the same answers as with exact seeds, wherever the seeds are the same."""

import dataclasses

import numpy as np
import pytest
from tests.support import reference
from tests.support.damage import set_at
from tests.support.data import curves, scattered
from tests.support.indexes import SHORT, same_hits, stored_columns

import suffuse
import suffuse.index.search
import suffuse.index.snapshot
import suffuse.store.files
from suffuse import Index
from suffuse.core.ann import SEARCH_WIDTH, HnswGraph, search_width
from suffuse.errors import IndexBroken, InvalidParams
from suffuse.index.snapshot import verify

LINKED = dataclasses.replace(SHORT, seed_search="hnsw")


@pytest.fixture(scope="module")
def features():
    return curves(np.random.default_rng(8), 400, 12, count=5)


@pytest.fixture(scope="module")
def linked(features, tmp_path_factory):
    path = tmp_path_factory.mktemp("linked") / "x.index"
    suffuse.build(features, path, LINKED)
    return path


def test_seeds_by_hnsw_give_the_answers_of_exact_seeds(features, linked, tmp_path):
    suffuse.build(features, tmp_path / "plain.index", SHORT)
    queries = scattered(np.random.default_rng(9), 20, 12)
    plain, index = Index.open(tmp_path / "plain.index"), Index.open(linked)
    same_hits(index.search(queries, ef=400), plain.search(queries))
    same_hits(index.search(queries, exact=True), plain.search(queries))
    found = index.search(queries)
    assert (found.ids == plain.search(queries).ids).mean() > 0.9


def test_a_narrow_search_misses_seeds_and_a_wide_one_does_not(linked):
    queries = scattered(np.random.default_rng(10), 100, 12)
    index = Index.open(linked)
    exact = index.search(queries, seeds=3, exact=True)
    narrow, wide = ((index.search(queries, seeds=3, ef=ef).ids == exact.ids).mean() for ef in (1, 400))
    assert narrow < wide == 1


def test_links_are_verified_and_their_files_belong_to_the_parameter(linked, tmp_path):
    assert verify(linked) > 0
    assert {f"hnsw_{name}.npy" for name in HnswGraph._fields} <= set(Index.open(linked).manifest.files)
    copy = tmp_path / "copy.index"
    copy.mkdir()
    for file in linked.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    set_at("params", "seed_search", value="exact")(copy)
    with pytest.raises(IndexBroken, match="seed_search='exact' and names 5 of 5 files for it"):
        Index.open(copy)


def test_damaged_links_are_noticed(linked, tmp_path):
    copy = tmp_path / "copy.index"
    copy.mkdir()
    for file in linked.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    links = np.load(copy / "hnsw_links.npy")
    links[:] = 10**6
    np.save(copy / "hnsw_links.npy", links)
    with pytest.raises(IndexBroken, match="the search graph was damaged, or it holds ids that do not exist"):
        Index.open(copy).search(scattered(np.random.default_rng(1), 3, 12))


def test_a_larger_index_is_searched_wider():
    assert search_width(100) == search_width(100_000) == SEARCH_WIDTH
    assert search_width(1_000_000) == 191


@pytest.mark.parametrize("ef", [0, -3, 1.5])
def test_ef_must_be_a_whole_number_from_one(linked, ef):
    with pytest.raises(InvalidParams, match="ef must be a whole number of at least 1"):
        Index.open(linked).search(scattered(np.random.default_rng(1), 1, 12), ef=ef)


def test_what_is_read_next_is_asked_for_beforehand_while_searches_read_from_disk(linked, monkeypatch):
    # Blocks read before and after the seeds of a search, and before and after its columns.
    read = iter([0, 7, 7, 9, 9, 9, 9, 9, 9, 12, 12, 12, 12, 12, 12, 12])
    seeds, columns, asked = [], [], []
    vectors = scattered(np.random.default_rng(1), 4, 12)
    unhurried = Index.open(linked)
    f = reference.diffuse(vectors[:1], unhurried.features, stored_columns(unhurried), 6, LINKED)
    reached = np.count_nonzero(f)  # by columns; what districts reach behind them gets no second look
    monkeypatch.setattr(suffuse.index.snapshot, "blocks_read", lambda: next(read))
    find = suffuse.core.ann.nearest_by_hnsw
    monkeypatch.setattr(
        suffuse.core.ann,
        "nearest_by_hnsw",
        lambda *rest, fetch, pages: seeds.append(fetch) or find(*rest, fetch=fetch, pages=pages),
    )
    monkeypatch.setattr(
        suffuse.store.files.Mapped, "will_need", lambda _, ranges: columns.append((len(asked), len(ranges)))
    )
    index = Index.open(linked)
    for vector in vectors:
        asked.append(index.search(vector[None], seeds=6))
    assert seeds == [True, True, False, True]
    # The seeds of a search after one that read from disk, and its candidates if its own seeds were read from there.
    assert columns == [(0, 6), (0, reached), (1, 6)]


def test_a_graph_along_the_links_of_the_seeds_is_that_of_exact_search(features, tmp_path):
    params = dataclasses.replace(LINKED, with_graph=True)
    stages = []
    for name, graph_search, jobs in (("exact", "exact", 2), ("a", "hnsw", 1), ("b", "hnsw", 2)):
        suffuse.build(
            features, tmp_path / name, dataclasses.replace(params, graph_search=graph_search), jobs=jobs,
            progress=lambda stage, *_: stages.append(stage),
        )  # fmt: skip
    exact, linked, again = (Index.open(tmp_path / name).graph for name in ("exact", "a", "b"))
    assert stages.count("seeds") > 0
    assert "search" not in stages, "there is nothing to train"
    for a, b in zip(linked, again, strict=True):
        np.testing.assert_array_equal(a, b)
    same = np.mean([
        len(np.intersect1d(*(g.indices[g.indptr[i] : g.indptr[i + 1]] for g in (exact, linked))))
        / max(exact.indptr[i + 1] - exact.indptr[i], 1)
        for i in np.flatnonzero(np.diff(exact.indptr))
    ])  # fmt: skip
    assert same > 0.95
