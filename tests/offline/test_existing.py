"""What is at the path already: an unfinished build goes on, an index stays, anything else is refused and kept."""

import concurrent.futures
import logging
import shutil

import numpy as np
import pytest
from tests.support.builds import EXACT_STAGES, PARAMS, N, directory_bytes, finished_tasks, names_beside

from suffuse.core.params import Params
from suffuse.errors import BuildInterrupted, IndexExists, IndexMissing, InvalidInput, InvalidParams, SuffuseError
from suffuse.index.index import Index
from suffuse.offline import build as offline
from suffuse.offline import tasks
from suffuse.offline.build import build


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


# Resuming


@pytest.mark.parametrize("stage", EXACT_STAGES)
def test_a_build_cut_short_in_any_stage_leaves_no_index_and_resumes(features, expected, tmp_path, caplog, stage):
    path = tmp_path / "x.index"
    interrupt(features, path, stage=stage)
    with pytest.raises(IndexMissing):
        Index.open(path)
    finished = finished_tasks(path)
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

    for task in ("neighbors_task", "lists_task", "edges_task", "graph_task", "columns_task"):
        monkeypatch.setattr(tasks, task, never)
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


def test_progress_of_a_resumed_stage_begins_where_it_stopped(features, tmp_path):
    interrupt(features, tmp_path / "x.index", stage="index")
    for block in sorted((tmp_path / "x.index.building" / "columns").glob("*.npz"))[2:]:
        block.unlink()
    calls = []
    build(features, tmp_path / "x.index", PARAMS, progress=lambda *call: calls.append(call))
    done = [done for stage, done, _ in calls if stage == "columns"]
    assert done[:2] == [0, 2 * 128]
    assert done == sorted(done)


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


@pytest.mark.parametrize("stage", EXACT_STAGES)
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
    path, check = tmp_path / "x.index", offline.check_matrix

    def slow_check(*args):
        # While this build still reads its features, another one begins and ends.
        monkeypatch.setattr(offline, "check_matrix", check)
        build(features[:100], path, PARAMS)
        check(*args)

    monkeypatch.setattr(offline, "check_matrix", slow_check)
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
