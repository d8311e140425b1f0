"""Builds in this process: the same index whoever works, resumed, forced, refused, reported."""

import concurrent.futures
import logging
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import suffuse
from data import clusters, curves, duplicated, unit
from suffuse import blocks, offline
from suffuse.arrays import write_array
from suffuse.errors import BuildInterrupted, IndexExists, IndexMissing, InvalidInput, InvalidParams, SuffuseError
from suffuse.offline import STAGES, build
from suffuse.online import Index
from suffuse.params import Params
from suffuse.store import read_manifest, verify

N, D = 600, 16
PARAMS = Params(k=10, truncation=60, keep=30)
SUPPORTS = ("graph", "features")


def directory_bytes(path):
    """Every file below a directory, by its name from there."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def with_support(support, **others):
    return Params(**PARAMS.to_dict() | {"support": support} | others)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    # Nobody pulls the plug here, and on a busy disk most of the time would be this.
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def features():
    return clusters(np.random.default_rng(1), N, D, count=6)


@pytest.fixture(scope="module")
def expected(features, tmp_path_factory):
    """The bytes of an undisturbed build, for each support."""
    made = {}
    for support in SUPPORTS:
        path = tmp_path_factory.mktemp("expected") / "x.index"
        build(features, path, with_support(support), jobs=1)
        made[support] = directory_bytes(path)
    assert made["graph"] != made["features"]
    return made


def use_blocks_of(monkeypatch, rows):
    for module in (blocks, offline):
        monkeypatch.setattr(module, "block_rows", lambda _: rows)


class Stopped(Exception):
    """What a test raises to cut a build short."""


def stop_at(stage, at_least=1):
    """A progress that cuts the build short in a stage."""

    def progress(name, done, total):
        if name == stage and done >= at_least:
            raise Stopped

    return progress


def interrupt(features, path, params=PARAMS, stage="columns", **others):
    """Leave an unfinished build behind."""
    with pytest.raises(Stopped):
        build(features, path, params, progress=stop_at(stage), **others)
    assert path.with_name(path.name + ".building").is_dir()


def names_beside(path):
    return sorted(entry.name for entry in path.parent.iterdir())


# The same index, whoever works


@pytest.mark.parametrize("kind", [str, lambda file: file], ids=["str", "Path"])
def test_an_array_and_its_file_give_the_same_index(features, expected, tmp_path, kind):
    np.save(tmp_path / "features.npy", features)
    build(kind(tmp_path / "features.npy"), kind(tmp_path / "x.index"), PARAMS)
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


def test_the_layout_of_the_array_does_not_change_the_index(features, expected, tmp_path):
    wide = np.repeat(features, 2, axis=1)[:, ::2]
    for number, same in enumerate((np.asfortranarray(features), wide)):
        assert not same.flags.c_contiguous
        build(same, tmp_path / f"{number}.index", PARAMS)
        assert directory_bytes(tmp_path / f"{number}.index") == expected["graph"]


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("jobs", [2, 4])
def test_the_number_of_jobs_does_not_change_the_index(features, expected, tmp_path, support, jobs):
    build(features, tmp_path / "x.index", with_support(support), jobs=jobs)
    assert directory_bytes(tmp_path / "x.index") == expected[support]


def test_a_pool_of_threads_gives_the_same_index_and_is_left_open(features, expected, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        build(features, tmp_path / "x.index", PARAMS, executor=pool)
        assert pool.submit(int, "7").result() == 7
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


def test_a_pool_of_processes_elsewhere_gives_the_same_index(features, expected, tmp_path, monkeypatch):
    # A relative path means the caller's directory, not the workers'.
    monkeypatch.chdir(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, spawn, initializer=os.chdir, initargs=("/",)) as pool:
        for support in SUPPORTS:
            build(features, f"{support}.index", with_support(support), executor=pool)
            assert directory_bytes(tmp_path / f"{support}.index") == expected[support]


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda rng: curves(rng, 230, 24),
        lambda rng: duplicated(rng, 230, 8, distinct=40),
        # Few different values: many similarities are equal, or differ by rounding only.
        lambda rng: rng.integers(1, 4, size=(230, 6)).astype(np.float32),
    ],
    ids=["curves", "duplicates", "ties"],
)
def test_blocks_do_not_change_the_index(tmp_path, monkeypatch, support, make):
    vectors = make(np.random.default_rng(2))
    params = with_support(support, whiten=5)
    build(vectors, tmp_path / "whole.index", params)
    for rows in (7, 50, 229, 1000):
        use_blocks_of(monkeypatch, rows)
        build(vectors, tmp_path / f"{rows}.index", params)
        assert directory_bytes(tmp_path / f"{rows}.index") == directory_bytes(tmp_path / "whole.index"), rows


# What an index holds


def test_the_summary_agrees_with_the_manifest_and_the_files(features, tmp_path):
    path = tmp_path / "x.index"
    summary = build(features, path, PARAMS)
    manifest = read_manifest(path)
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert summary.path == path
    assert (summary.elements, summary.images, summary.dimensions) == (N, N, D)
    assert {
        "elements": summary.elements,
        "images": summary.images,
        "dimensions": summary.dimensions,
        "entries": summary.entries,
        "unconverged": summary.unconverged,
    } == manifest.counts
    assert summary.entries == len(np.load(path / "rows.npy")) == np.load(path / "indptr.npy")[-1]
    assert summary.bytes == sum(sizes.values()) - sizes["manifest.json"] == verify(path)
    assert summary.resumed == 0
    assert tuple(summary.seconds) == STAGES
    assert all(seconds >= 0 for seconds in summary.seconds.values())
    assert sorted(sizes) == ["features.npy", "indptr.npy", "manifest.json", "rows.npy", "values.npy"]
    assert names_beside(path) == ["x.index"]
    assert manifest.params == PARAMS


def test_columns_that_did_not_converge_are_counted(features, tmp_path):
    hasty = build(features, tmp_path / "hasty.index", with_support("graph", iterations=1))
    patient = build(features, tmp_path / "patient.index", with_support("graph", iterations=1000))
    # One step solves the column of an element without neighbours, and no other.
    manifest = read_manifest(tmp_path / "hasty.index")
    assert 0 < hasty.unconverged == N - manifest.graph["isolated"] == manifest.counts["unconverged"]
    assert patient.unconverged == 0


def test_owners_names_and_whitening_are_in_the_index(features, tmp_path):
    # The last two images have a name, but no region.
    owners = np.arange(N, dtype=np.int64) // 4
    names = [{"name": f"photo {i}", "year": 1900 + i} for i in range(N // 4 + 2)]
    path = tmp_path / "x.index"
    summary = build(features, path, with_support("graph", whiten=7), owners=owners, names=names)
    assert (summary.elements, summary.images, summary.dimensions) == (N, N // 4 + 2, 7)
    index = Index.open(path)
    assert len(index) == N // 4 + 2
    assert index.owners.tolist() == owners.tolist()
    assert index.items[151] == {"name": "photo 151", "year": 2051}
    assert index.dimensions == D
    np.testing.assert_allclose(np.linalg.norm(index.features, axis=1), 1.0, rtol=1e-6)
    assert index.search(features[40:41], method="knn").ids[0, 0] == 10
    assert sorted(index.search(features[40:41], top=N).ids[0]) == list(range(N // 4 + 2))
    verify(path)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_regional_whitened_index_is_the_same_for_any_number_of_jobs(features, tmp_path, jobs):
    others = {"owners": np.arange(N) // 3, "names": [f"é{i}" for i in range(N // 3)]}
    for name, count in (("a.index", 2), ("b.index", jobs)):
        build(features, tmp_path / name, with_support("features", whiten=9), jobs=count, **others)
    assert directory_bytes(tmp_path / "a.index") == directory_bytes(tmp_path / "b.index")
    assert {"owners.npy", "items.jsonl", "item_offsets.npy", "whitening_mean.npy", "whitening_projection.npy"} < set(
        directory_bytes(tmp_path / "a.index")
    )


def dense_columns(vectors, params):
    """The inverse of I - alpha S as one dense matrix, from the definitions."""
    rows = unit(vectors).astype(np.float64)
    n, sims = len(rows), np.clip(rows @ rows.T, 0.0, None).round(7)
    ranked = np.argsort(-(sims + 2 * np.eye(n)), axis=1, kind="stable")[:, : params.k]
    near = np.zeros((n, n), bool)
    np.put_along_axis(near, ranked, True, axis=1)
    a = np.where(near & near.T & ~np.eye(n, dtype=bool), sims**params.gamma, 0.0)
    degrees = a.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros(n), where=degrees > 0)
    return np.linalg.inv(np.eye(n) - params.alpha * scale[:, None] * a * scale)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param(np.array([[1.0, 0.0], [0.8, 0.6]]), id="two"),
        pytest.param(np.array([[1.0, 0.0], [-1.0, 0.0]]), id="two-opposite"),
        pytest.param(clusters(np.random.default_rng(3), 9, 4, count=2), id="fewer-than-k"),
        pytest.param(clusters(np.random.default_rng(4), 10, 4, count=2), id="exactly-k"),
        pytest.param(np.ones((200, 5), np.float16), id="all-the-same"),
        pytest.param(np.eye(150, dtype=np.uint8), id="all-isolated"),
        pytest.param(np.concatenate([np.eye(140), np.eye(140)[:20] + np.eye(140)[20:40]]), id="many-isolated"),
    ],
)
def test_odd_galleries_build_and_answer(tmp_path, vectors, support):
    path, n = tmp_path / "x.index", len(vectors)
    params = with_support(support, truncation=300, keep=300, values="float32")
    summary = build(vectors, path, params)
    verify(path)
    assert summary.unconverged == 0
    index, exact = Index.open(path), dense_columns(vectors, params)
    stored, indptr = np.zeros((n, n)), np.load(path / "indptr.npy")
    columns = np.repeat(np.arange(n), np.diff(indptr))
    stored[np.load(path / "rows.npy"), columns] = np.load(path / "values.npy")
    np.testing.assert_allclose(stored, exact, rtol=1e-4, atol=1e-4)
    hits = index.search(vectors, top=n, seeds=3)
    assert len(index) == n
    assert np.isfinite(hits.scores).all()
    assert (np.sort(hits.ids, axis=1) == np.arange(n)).all()
    # Each vector's nearest is itself, or one exactly like it.
    nearest = index.search(vectors, top=1, method="knn")
    np.testing.assert_allclose(nearest.scores, 1.0, atol=1e-6)


def test_isolated_elements_are_counted_in_the_manifest(tmp_path):
    build(np.eye(150, dtype=np.float32), tmp_path / "x.index", PARAMS)
    graph = read_manifest(tmp_path / "x.index").graph
    assert (graph["isolated"], graph["components"], graph["edges"]) == (150, 150, 0)


# Progress


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_names_each_stage_in_order_and_ends_at_the_total(features, tmp_path, jobs):
    calls = []
    build(features, tmp_path / "x.index", PARAMS, jobs=jobs, progress=lambda *call: calls.append(call))
    assert tuple(dict.fromkeys(stage for stage, _, _ in calls)) == STAGES
    assert [STAGES.index(stage) for stage, _, _ in calls] == sorted(STAGES.index(stage) for stage, _, _ in calls)
    assert {total for _, _, total in calls} == {N}
    for stage in STAGES:
        done = [done for name, done, _ in calls if name == stage]
        assert done[0] == 0
        assert done == sorted(done)
        assert done[-1] == N
    # Five blocks: more than the begin and the end is reported.
    assert len({done for name, done, _ in calls if name == "columns"}) == 6


def test_progress_of_a_resumed_stage_begins_where_it_stopped(features, tmp_path):
    interrupt(features, tmp_path / "x.index", stage="index")
    for block in sorted((tmp_path / "x.index.building" / "columns").glob("*.npz"))[2:]:
        block.unlink()
    calls = []
    build(features, tmp_path / "x.index", PARAMS, progress=lambda *call: calls.append(call))
    done = [done for stage, done, _ in calls if stage == "columns"]
    assert done[:2] == [0, 2 * 128]
    assert done == sorted(done)


# Resuming


@pytest.mark.parametrize("stage", STAGES)
def test_a_build_cut_short_in_any_stage_leaves_no_index_and_resumes(features, expected, tmp_path, caplog, stage):
    path = tmp_path / "x.index"
    interrupt(features, path, stage=stage)
    with pytest.raises(IndexMissing):
        Index.open(path)
    finished = len(list(tmp_path.rglob("*.npz")))
    with caplog.at_level(logging.WARNING):
        summary = build(features, path, PARAMS)
    assert not caplog.records
    assert summary.resumed == finished
    assert (finished > 0) == (stage != "features")
    assert directory_bytes(path) == expected["graph"]
    assert names_beside(path) == ["x.index"]


def test_finished_blocks_are_not_computed_again(features, expected, tmp_path, monkeypatch):
    interrupt(features, tmp_path / "x.index", stage="index")

    def never(*args):
        raise AssertionError("this was done already")

    for task in ("neighbors_task", "graph_task", "columns_task"):
        monkeypatch.setattr(offline, task, never)
    assert build(features, tmp_path / "x.index", PARAMS).resumed == 10
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 12}, "k (10, now 12)"),
        ({"alpha": 0.9}, "alpha (0.99, now 0.9)"),
        ({"support": "features"}, "support (graph, now features)"),
        ({"k": 5, "whiten": 8}, "k (10, now 5), whiten (None, now 8)"),
    ],
)
def test_other_parameters_start_anew_and_say_so(features, tmp_path, caplog, change, said):
    path = tmp_path / "x.index"
    interrupt(features, path)
    params = Params(**PARAMS.to_dict() | change)
    with caplog.at_level(logging.WARNING):
        summary = build(features, path, params)
    assert [record.getMessage() for record in caplog.records] == [
        f"x.index.building holds an unfinished build with other {said}: starting anew"
    ]
    assert summary.resumed == 0
    build(features, tmp_path / "fresh.index", params)
    assert directory_bytes(path) == directory_bytes(tmp_path / "fresh.index")
    assert names_beside(path) == ["fresh.index", "x.index"]


def test_other_data_starts_anew_and_says_so(features, tmp_path, caplog):
    path, one_value = tmp_path / "x.index", features.copy()
    one_value[-1, -1] += 0.5
    owners, names = np.arange(N) // 2, [f"{i}" for i in range(N // 2)]
    given = {"owners": owners, "names": names}
    for vectors, others, said in (
        (one_value, given, "features"),
        (features.astype(np.float64), given, "features"),
        (features[:-2], {"owners": owners[:-2], "names": names[:-1]}, "features, owners, names"),
        (features, {"owners": owners[::-1].copy(), "names": names}, "owners"),
        (features, {"owners": owners, "names": names[::-1]}, "names"),
        (features, {"owners": owners}, "names"),
    ):
        interrupt(features, path, **given)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert build(vectors, path, PARAMS, **others).resumed == 0
        assert [record.getMessage() for record in caplog.records] == [
            f"x.index.building holds an unfinished build with other {said}: starting anew"
        ]
        build(vectors, tmp_path / "fresh.index", PARAMS, **others)
        assert directory_bytes(path) == directory_bytes(tmp_path / "fresh.index")
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "fresh.index")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"params": 3}', b'"plan"'])
def test_a_plan_that_cannot_be_read_starts_anew(features, expected, tmp_path, caplog, content):
    interrupt(features, tmp_path / "x.index")
    (tmp_path / "x.index.building" / "plan.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert build(features, tmp_path / "x.index", PARAMS).resumed == 0
    assert "starting anew" in caplog.text
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


def test_blocks_of_another_build_that_cannot_be_removed_are_never_used(features, expected, tmp_path):
    # A symbolic link to a directory is something that shutil.rmtree refuses.
    path, columns = tmp_path / "x.index", tmp_path / "x.index.building" / "columns"
    interrupt(features, path, Params(k=3, truncation=20, keep=5))
    columns.rename(tmp_path / "elsewhere")
    columns.symlink_to(tmp_path / "elsewhere")
    try:
        build(features, path, PARAMS)
    except BuildInterrupted:
        with pytest.raises(IndexMissing):
            Index.open(path)
    else:
        assert directory_bytes(path) == expected["graph"]


def test_files_that_a_crash_left_half_written_are_not_in_the_index(features, expected, tmp_path):
    interrupt(features, tmp_path / "x.index", stage="index")
    work = tmp_path / "x.index.building"
    for folder in ("index", "columns", "graph"):
        (work / folder / ".rows.npy.0123.tmp").write_bytes(b"half")
    build(features, tmp_path / "x.index", PARAMS)
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]
    assert names_beside(tmp_path / "x.index") == ["x.index"]


# An index that is already there


def test_an_existing_index_is_not_overwritten(features, expected, tmp_path):
    path = tmp_path / "x.index"
    build(features, path, PARAMS)
    with pytest.raises(IndexExists, match=r"x\.index exists already.*force"):
        build(features[:100], path, PARAMS)
    assert directory_bytes(path) == expected["graph"]
    assert names_beside(path) == ["x.index"]


def test_force_replaces_an_index(features, expected, tmp_path):
    path = tmp_path / "x.index"
    build(features[:100], path, PARAMS)
    held_open = Index.open(path)
    before = held_open.search(features[:5]).ids
    build(features, path, PARAMS, force=True)
    assert directory_bytes(path) == expected["graph"]
    assert names_beside(path) == ["x.index"]
    # Who had it open goes on with what they opened.
    assert (held_open.search(features[:5]).ids == before).all()


@pytest.mark.parametrize("stage", STAGES)
def test_a_forced_build_that_fails_leaves_the_old_index(features, expected, tmp_path, stage):
    path = tmp_path / "x.index"
    build(features[:100], path, PARAMS)
    before = directory_bytes(path)
    with pytest.raises(Stopped):
        build(features, path, PARAMS, force=True, progress=stop_at(stage))
    assert directory_bytes(path) == before
    assert len(Index.open(path)) == 100
    build(features, path, PARAMS, force=True)
    assert directory_bytes(path) == expected["graph"]
    assert names_beside(path) == ["x.index"]


def test_bad_features_do_not_cost_the_old_index(features, tmp_path):
    path, bad = tmp_path / "x.index", features.copy()
    build(features[:100], path, PARAMS)
    before = directory_bytes(path)
    bad[500, 3] = np.nan
    with pytest.raises(InvalidInput, match="row 500"):
        build(bad, path, PARAMS, force=True)
    assert directory_bytes(path) == before


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_an_index_is_never_replaced(features, tmp_path, force):
    photos, file, empty, other = (tmp_path / name for name in ("photos", "file", "empty", "other"))
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"the only one")
    file.write_bytes(b"precious")
    empty.mkdir()
    other.mkdir()
    (other / "manifest.json").write_bytes(b'{"name": "an app of somebody else"}')
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before, names = directory_bytes(tmp_path), names_beside(photos)
    for name in names:
        with pytest.raises(IndexExists, match=name):
            build(features, tmp_path / name, PARAMS, force=force)
    assert directory_bytes(tmp_path) == before
    assert names_beside(photos) == names


def test_force_replaces_a_link_to_an_index_and_leaves_what_it_points_to(features, expected, tmp_path):
    build(features[:100], tmp_path / "v1.index", PARAMS)
    before = directory_bytes(tmp_path / "v1.index")
    current = tmp_path / "current.index"
    current.symlink_to(tmp_path / "v1.index")
    for _ in range(2):
        build(features, current, PARAMS, force=True)
        assert directory_bytes(current) == expected["graph"]
        assert directory_bytes(tmp_path / "v1.index") == before
        assert names_beside(current) == ["current.index", "v1.index"]


@pytest.mark.parametrize("force", [False, True])
def test_what_appears_at_the_path_during_a_build_is_not_overwritten(features, expected, tmp_path, force):
    path, photo = tmp_path / "x.index", tmp_path / "x.index" / "cat.jpg"

    def somebody_else(stage, done, total):
        if stage == "columns" and not path.exists():
            path.mkdir()
            photo.write_bytes(b"the only one")

    with pytest.raises(IndexExists):
        build(features, path, PARAMS, force=force, progress=somebody_else)
    assert directory_bytes(path) == {"cat.jpg": b"the only one"}
    shutil.rmtree(path)
    assert build(features, path, PARAMS).resumed == 10
    assert directory_bytes(path) == expected["graph"]


def test_an_index_that_another_build_finished_in_the_meantime_is_not_overwritten(features, tmp_path, monkeypatch):
    path, plan = tmp_path / "x.index", offline._plan

    def slow_plan(*args):
        # While this build still reads its features, another one begins and ends.
        monkeypatch.setattr(offline, "_plan", plan)
        build(features[:100], path, PARAMS)
        return plan(*args)

    monkeypatch.setattr(offline, "_plan", slow_plan)
    calls = []
    with pytest.raises(IndexExists):
        build(features, path, PARAMS, progress=lambda *call: calls.append(call))
    assert len(Index.open(path)) == 100
    # It is told before the work, not after it.
    assert calls == []


# What cannot be done


def test_bad_requests_leave_nothing_behind(features, tmp_path):
    path = tmp_path / "x.index"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for error, others in (
            (InvalidParams, {"jobs": 0}),
            (InvalidParams, {"jobs": -2}),
            (InvalidParams, {"jobs": 1, "executor": pool}),
            (InvalidInput, {"owners": np.zeros(3, np.int32)}),
            (InvalidInput, {"names": ["one"]}),
            (InvalidInput, {"names": [{"name": "x", "size": float("nan")}] * N}),
        ):
            with pytest.raises(error):
                build(features, path, PARAMS, **others)
    for vectors in (features[0], features[:1], features.astype(np.int64), tmp_path / "nowhere.npy"):
        with pytest.raises(InvalidInput):
            build(vectors, path, PARAMS)
    for no_name in (".", "/", tmp_path / ".."):
        with pytest.raises(InvalidInput, match="is no name for an index"):
            build(features, no_name, PARAMS)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_a_clear_error(features, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    too_long = "x" * 300 + ".index"
    for path, said in (
        (tmp_path / "file" / "x.index", "Not a directory"),
        ("/proc/x.index", "No such file|Permission|not permitted"),
        (tmp_path / too_long, "too long"),
        (tmp_path / ("x" * 250), "too long"),  # only the working directory's name is
    ):
        for force in (False, True):
            with pytest.raises(SuffuseError, match=said) as caught:
                build(features, path, PARAMS, force=force)
            assert str(path)[-20:] in str(caught.value)
    assert directory_bytes(tmp_path) == {"file": b""}


def test_a_file_in_the_place_of_the_working_directory_is_a_clear_error(features, tmp_path):
    (tmp_path / "x.index.building").write_bytes(b"precious")
    with pytest.raises(BuildInterrupted, match=r"File exists.*x\.index\.building"):
        build(features, tmp_path / "x.index", PARAMS)
    assert directory_bytes(tmp_path) == {"x.index.building": b"precious"}


# Workers


class Delayed(concurrent.futures.ThreadPoolExecutor):
    """Threads of which the first task fails and the others take a while."""

    def __init__(self):
        super().__init__(4)
        self.futures, self.failed = [], threading.Event()

    def submit(self, task, /, *args):
        def slow():
            self.failed.wait()
            time.sleep(0.3)
            task(*args)

        def failing():
            self.failed.set()
            raise OSError(5, "Input/output error")

        future = super().submit(slow if self.futures else failing)
        self.futures.append(future)
        return future


def test_no_task_runs_on_after_a_build_has_failed(features, tmp_path):
    with Delayed() as pool:
        with pytest.raises(BuildInterrupted, match="Input/output error"):
            build(features, tmp_path / "x.index", PARAMS, executor=pool)
        # A task that went on could write a block into the directory of the next build, one with other parameters.
        assert not any(future.running() for future in pool.futures)


def test_a_build_with_many_blocks_holds_few_files_open(features, expected, tmp_path, monkeypatch):
    use_blocks_of(monkeypatch, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors are numbered from below, so this leaves room for fifty more.
    probe = os.open("/", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 50, hard))
    try:
        build(features, tmp_path / "x.index", PARAMS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


READ_AT_ONCE = """
import concurrent.futures, gc, sys, time
from pathlib import Path
from suffuse.arrays import map_array

gc.callbacks.append(lambda phase, info: time.sleep(1e-4))  # let other threads in
path, lengths = Path(sys.argv[1]), []
for threshold in range(3, 23):  # so that collections come at all moments of the parsing
    gc.set_threshold(threshold)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        lengths += pool.map(lambda _: len(map_array(path).array), range(150))
assert lengths == [10] * 3000
"""


def test_threads_read_arrays_at_once_whatever_the_garbage_collector_does(tmp_path):
    # numpy reads headers by `ast`, which Python 3.11 gets wrong if a collection lets another thread in. In a process
    # of its own: such a collector also disturbs the tracing that measures coverage.
    write_array(tmp_path / "x.npy", np.arange(10))
    done = subprocess.run(
        [sys.executable, "-c", READ_AT_ONCE, tmp_path / "x.npy"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_defaults_are_the_documented_ones(features, tmp_path):
    build(features, tmp_path / "x.index")
    assert read_manifest(tmp_path / "x.index").params == Params()
    assert suffuse.build is build
