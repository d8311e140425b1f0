"""Approximate search only proposes: each element stays first in its list, no edge is wrong, and bytes are the same."""

import functools
import itertools
import json
import logging
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.builds import EXACT_STAGES, directory_bytes
from tests.support.data import clusters, duplicated, scattered

from suffuse.core import Damaged
from suffuse.core import ann as approximate
from suffuse.core.blas import load_faiss
from suffuse.core.columns import solve_columns
from suffuse.core.graph import affinity, transition_of
from suffuse.core.neighbors import Neighbors, nearest_to_rows
from suffuse.core.params import Params
from suffuse.errors import IndexMissing
from suffuse.index.index import Index
from suffuse.index.snapshot import verify
from suffuse.offline import tasks
from suffuse.offline.build import build
from suffuse.store.manifest import HNSW_FILES, read_manifest

KINDS = ("ivfadc", "hnsw")
EVERYWHERE = Params(probes=10_000, ef=500)

N, D = 600, 16
PARAMS = Params(k=10, truncation=60, keep=40, support="features", probes=4)


@pytest.fixture(scope="module")
def features():
    return clusters(np.random.default_rng(1), N, D, count=12)


def opened(tmp_path, features, params=EVERYWHERE):
    path = tmp_path / "ivfadc.faiss"
    if not path.exists():
        path.write_bytes(approximate.train_ivfadc(features))
    return approximate.read_ivfadc(str(path), params.probes)


def finder(tmp_path, features, kind, params=EVERYWHERE):
    if kind == "hnsw":
        return functools.partial(approximate.nearest_along_links, approximate.build_hnsw(features), params.ef)
    return functools.partial(approximate.nearest_by_ivfadc, opened(tmp_path, features, params))


def found_by(tmp_path, features, kind, k, params=EVERYWHERE):
    return finder(tmp_path, features, kind, params)(features, 0, len(features), k)


def recall(found, features):
    """The share of the true neighbours, the element itself left out, that were found."""
    true = nearest_to_rows(features, 0, len(features), found.ids.shape[1])
    return np.mean([np.isin(right[1:], ids[1:]).mean() for ids, right in zip(found.ids, true.ids, strict=True)])


def assert_lists_are_sound(found, features, k):
    """Self first, by id; others once, sorted, with their true similarity; then the element itself, similarity 0."""
    n = len(features)
    assert found.ids.shape == found.sims.shape == (n, min(k, n))
    assert found.ids.dtype == np.int32
    assert found.sims.dtype == np.float32
    for own, (ids, sims) in enumerate(zip(found.ids.tolist(), found.sims.tolist(), strict=True)):
        assert ids[0] == own
        assert sims[0] == pytest.approx(1.0)
        others = [id for id in ids[1:] if id != own]
        assert ids[1 + len(others) :] == [own] * (len(ids) - 1 - len(others))
        assert set(sims[1 + len(others) :]) <= {0.0}
        assert len(set(others)) == len(others)
        assert all(0 <= id < n for id in others)
        pairs = list(zip(sims[1 : 1 + len(others)], others, strict=True))
        assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        np.testing.assert_allclose([sim for sim, _ in pairs], features[others] @ features[own], atol=1e-6)


# Lists


@pytest.mark.parametrize(("kind", "least"), [("ivfadc", 0.9), ("hnsw", 0.99)])
def test_a_wide_search_finds_nearly_all_neighbors(features, tmp_path, kind, least):
    found = found_by(tmp_path, features, kind, 20)
    assert_lists_are_sound(found, features, 20)
    # What IVFADC misses in all its cells, its codes have confused.
    assert recall(found, features) >= least


def test_a_hundred_and_twenty_eight_sub_vectors_find_nearly_all_neighbors(tmp_path):
    vectors = clusters(np.random.default_rng(2), 500, 256, count=10, spread=1.0)
    assert opened(tmp_path, vectors).pq.M == 128
    assert recall(found_by(tmp_path, vectors, "ivfadc", 20), vectors) >= 0.95


def test_a_wider_search_finds_more(tmp_path):
    vectors = scattered(np.random.default_rng(3), 2000, 24)
    by_probes = [recall(found_by(tmp_path, vectors, "ivfadc", 10, Params(probes=p)), vectors) for p in (1, 8, 45)]
    by_ef = [recall(found_by(tmp_path, vectors, "hnsw", 10, Params(ef=ef)), vectors) for ef in (1, 40, 400)]
    for shares in (by_probes, by_ef):
        assert shares == sorted(set(shares))


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 70),
    d=st.integers(1, 12),
    k=st.integers(2, 90),
    kind=st.sampled_from(KINDS),
    probes=st.integers(1, 9),
    repeats=st.booleans(),
)
def test_lists_are_sound_however_small_or_equal_the_set_is(tmp_path_factory, seed, n, d, k, kind, probes, repeats):
    rng = np.random.default_rng(seed)
    vectors = duplicated(rng, n, d, distinct=max(1, n // 8)) if repeats else scattered(rng, n, d)
    folder = tmp_path_factory.mktemp("small")
    assert_lists_are_sound(found_by(folder, vectors, kind, k, Params(probes=probes, ef=1)), vectors, k)


@pytest.mark.parametrize("kind", KINDS)
def test_duplicates_keep_each_element_first_in_its_own_list(tmp_path, kind):
    vectors = duplicated(np.random.default_rng(4), 400, 16, distinct=5)
    found = found_by(tmp_path, vectors, kind, 12)
    assert_lists_are_sound(found, vectors, 12)
    assert found.ids[:, 0].tolist() == list(range(400))
    assert np.allclose(found.sims[:, 1], 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_do_not_change_approximate_lists(features, tmp_path, kind):
    find = finder(tmp_path, features, kind, Params(probes=3, ef=20))
    whole = find(features, 0, N, 15)
    bounds = [0, 1, 20, 21, 170, 431, 431, N]
    parts = [find(features, a, b, 15) for a, b in itertools.pairwise(bounds)]
    for name in Neighbors._fields:
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert joined.tobytes() == getattr(whole, name).tobytes()


def test_hnsw_never_keeps_fewer_candidates_than_neighbors(features, tmp_path):
    narrow, wide = (found_by(tmp_path, features, "hnsw", 200, Params(ef=ef)) for ef in (1, 200))
    np.testing.assert_array_equal(narrow.ids, wide.ids)


def test_one_cell_of_many_gives_short_lists_that_end_with_the_element_itself(features, tmp_path):
    found = found_by(tmp_path, features, "ivfadc", 200, Params(probes=1))
    assert_lists_are_sound(found, features, 200)
    assert (found.ids[:, -1] == np.arange(N)).all()
    # An edge needs another element.
    matrix = reference.dense(affinity(found, 3.0))
    assert matrix.diagonal().sum() == 0
    true = reference.dense(affinity(nearest_to_rows(features, 0, N, N), 3.0))
    np.testing.assert_allclose(matrix[matrix > 0], true[matrix > 0], rtol=1e-5)


# The faiss index in its file


def test_the_same_rows_give_the_same_bytes(features):
    faiss = load_faiss()
    threads, blas = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    one = bytes(approximate.train_ivfadc(features))
    faiss.omp_set_num_threads(2)
    two = bytes(approximate.train_ivfadc(features))
    assert faiss.omp_get_max_threads() == 2
    faiss.omp_set_num_threads(threads)
    assert one == two
    assert faiss.cvar.distance_compute_blas_threshold == blas


@pytest.mark.parametrize(("n", "cells", "bits"), [(2, 1, 1), (3, 2, 1), (100, 10, 6), (256, 16, 8), (1000, 32, 8)])
def test_the_codebooks_follow_the_number_of_elements(tmp_path, caplog, capfd, n, cells, bits):
    with caplog.at_level(logging.WARNING):
        index = opened(tmp_path, scattered(np.random.default_rng(n), n, 12))
    assert (index.nlist, index.pq.nbits, index.ntotal) == (cells, bits, n)
    said = [record.message for record in caplog.records]
    assert said == (
        []
        if bits == 8
        else [
            f"{n} elements are too few to train 256 values for each sub-vector: IVFADC uses {2**bits};"
            " search exactly instead"
        ]
    )
    # faiss itself says nothing.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("d", "sub_vectors", "warns"),
    [(12, 12, False), (128, 128, False), (129, 43, False), (192, 96, False), (512, 128, False), (131, 1, True)],
)
def test_sub_vectors_are_as_many_as_divide_the_dimensions_up_to_128(tmp_path, caplog, d, sub_vectors, warns):
    with caplog.at_level(logging.WARNING):
        index = opened(tmp_path, scattered(np.random.default_rng(d), 256, d))
    assert sub_vectors == index.pq.M
    assert [f"IVFADC cuts {d} dimensions into 1 sub-vectors" in record.message for record in caplog.records] == (
        [True] if warns else []
    )


def test_a_damaged_file_is_named(features, tmp_path):
    opened(tmp_path, features)
    path = tmp_path / "ivfadc.faiss"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(Damaged, match=r"ivfadc\.faiss cannot be read: .*"):
        opened(tmp_path, features)


# Columns


@pytest.mark.parametrize("values", ["float16", "float32"])
def test_a_column_on_a_short_support_is_solved_on_what_was_found(features, tmp_path, values):
    params = Params(k=10, truncation=200, keep=200, support="features", values=values, tolerance=1e-9, iterations=500)
    s = transition_of(nearest_to_rows(features, 0, N, params.k), params)
    alpha_s = s._replace(weights=params.alpha * s.weights)
    find = finder(tmp_path, features, "ivfadc", Params(probes=2))
    solved = solve_columns(alpha_s, 100, 140, params, features, find=find)
    supports = find(features, 100, 140, 200).ids
    system = np.eye(N) - reference.dense(alpha_s)
    lengths = set()
    for column, support in enumerate(supports):
        members = np.unique(support)
        lengths.add(len(members))
        right = np.linalg.solve(system[np.ix_(members, members)], (members == 100 + column).astype(float))
        stored = slice(solved.columns.indptr[column], solved.columns.indptr[column + 1])
        mine = np.zeros(N)
        mine[solved.columns.entries[stored]] = solved.columns.values[stored]
        np.testing.assert_allclose(mine[members], right, rtol=2e-3 if values == "float16" else 1e-5, atol=1e-6)
        assert np.isin(solved.columns.entries[stored], members).all()
    assert len(lengths) > 1
    assert max(lengths) < 200


# Whole builds


def chosen(**others):
    return Params(**{**PARAMS.to_dict(), **others})


@pytest.mark.parametrize(
    "searches",
    [
        {"graph_search": "ivfadc"},
        {"support_search": "ivfadc"},
        {"graph_search": "hnsw", "support_search": "ivfadc"},
        {"graph_search": "hnsw", "support": "graph"},
    ],
    ids=lambda searches: " ".join(searches.values()),
)
def test_an_approximate_build_gives_the_same_bytes_whoever_works(features, tmp_path, searches):
    params = chosen(**searches)
    for jobs in (1, 2):
        summary = build(features, tmp_path / f"{jobs}.index", params, jobs=jobs)
    one, two = (directory_bytes(tmp_path / f"{jobs}.index") for jobs in (1, 2))
    assert one == two
    pairs = () if params.graph_search != "exact" else ("pairs",)
    assert tuple(summary.seconds) == ("features", "search", *pairs, *EXACT_STAGES[2:])
    index = Index.open(tmp_path / "2.index")
    assert index.params == params
    verify(tmp_path / "2.index")
    # Nothing of the search stays, and the index answers as any other.
    assert {file.name for file in tmp_path.iterdir()} == {"1.index", "2.index"}
    assert sorted(index.search(features[7:8], top=N).ids[0]) == list(range(N))


def test_each_stage_has_its_own_search(features, tmp_path):
    def built(name, **others):
        build(features, tmp_path / name, chosen(**others))
        return read_manifest(tmp_path / name).graph, (tmp_path / name / "codes.npy").read_bytes()

    graph, rows = built("exact")
    same_graph, other_rows = built("supports", support_search="ivfadc", probes=1)
    assert same_graph == graph
    assert other_rows != rows
    assert built("lists", graph_search="ivfadc", probes=1)[0] != graph


def test_a_search_for_supports_is_not_prepared_where_the_graph_gives_them(features, tmp_path):
    summary = build(features, tmp_path / "x.index", chosen(support="graph", support_search="hnsw"))
    assert tuple(summary.seconds) == EXACT_STAGES


def test_progress_shows_the_search_between_features_and_neighbors(features, tmp_path):
    calls = []
    build(features, tmp_path / "x.index", chosen(graph_search="hnsw"), progress=lambda *call: calls.append(call))
    assert list(dict.fromkeys(stage for stage, _, _ in calls))[:3] == ["features", "search", "neighbors"]
    assert [call[1:] for call in calls if call[0] == "search"] == [(0, N), (N, N)]


class Stopped(Exception):
    """What ends a build in these tests."""


KILLED = """
import json, os, signal, sys
import numpy as np
import suffuse

def progress(stage, *_counts):
    if stage == "neighbors":
        os.kill(os.getpid(), signal.SIGKILL)

suffuse.build(np.load(sys.argv[1]), sys.argv[2], suffuse.Params(**json.loads(sys.argv[3])), progress=progress)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")
@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_was_killed_finds_its_approximate_index(features, tmp_path, monkeypatch, kind):
    params, path = chosen(graph_search=kind, support_search=kind), tmp_path / "x.index"
    np.save(tmp_path / "features.npy", features)
    command = [sys.executable, "-c", KILLED, tmp_path / "features.npy", path, json.dumps(params.to_dict())]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(IndexMissing):
        Index.open(path)
    there = sorted(file.name for file in (tmp_path / "x.index.building" / "search").iterdir())
    assert there == (["ivfadc.faiss"] if kind == "ivfadc" else sorted(HNSW_FILES))

    def never(*_arguments):
        raise AssertionError("this was done already")

    monkeypatch.setattr(tasks, "search_task", never)
    build(features, path, params)
    monkeypatch.undo()
    build(features, tmp_path / "again.index", params)
    assert directory_bytes(path) == directory_bytes(tmp_path / "again.index")


def test_other_probes_start_the_build_anew(features, tmp_path, caplog):
    path = tmp_path / "x.index"

    def stop(stage, *_counts):
        if stage == "graph":
            raise Stopped

    with pytest.raises(Stopped):
        build(features, path, chosen(graph_search="ivfadc"), progress=stop)
    summary = build(features, path, chosen(graph_search="ivfadc", probes=9))
    assert summary.resumed == 0
    assert "probes (4, now 9)" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_of_a_very_small_set_everything_is_found(tmp_path, kind, n):
    vectors = scattered(np.random.default_rng(n), n, 6)
    build(vectors, tmp_path / "x.index", Params(support="features", graph_search=kind, support_search=kind))
    build(vectors, tmp_path / "exact.index", Params(support="features"))
    for name in ("indptr.npy", "codes.npy", "scales.npy"):
        assert (tmp_path / "x.index" / name).read_bytes() == (tmp_path / "exact.index" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_found_is_nobody_s_neighbor_in_the_summary(features, tmp_path, kind):
    build(features, tmp_path / "x.index", chosen(k=100, graph_search=kind, probes=1))
    graph = read_manifest(tmp_path / "x.index").graph
    assert graph["most_listed"] <= N


def test_the_command_line_builds_approximately(features, tmp_path, monkeypatch, capsys):
    from suffuse.cli.app import main

    np.save(tmp_path / "features.npy", features)
    arguments = ["build", tmp_path / "features.npy", "-o", tmp_path / "x.index", "--support", "features"]
    arguments += ["--graph-search", "hnsw", "--ef", 77, "--support-search", "ivfadc", "--probes", 5]
    monkeypatch.setattr("sys.argv", ["suffuse", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "search" in capsys.readouterr().err
    params = json.loads((tmp_path / "x.index" / "manifest.json").read_text())["params"]
    assert [params[name] for name in ("graph_search", "ef", "support_search", "probes")] == ["hnsw", 77, "ivfadc", 5]
