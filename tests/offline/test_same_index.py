"""The same index whoever works: arrays and files, threads and processes, any blocks; and workers that fail."""

import concurrent.futures
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.support.builds import PARAMS, SUPPORTS, N, directory_bytes, with_support
from tests.support.data import curves, duplicated

from suffuse.errors import BuildInterrupted
from suffuse.offline import tasks
from suffuse.offline.build import build
from suffuse.store.files import write_array


def use_blocks_of(monkeypatch, rows):
    monkeypatch.setattr(tasks, "block_rows", lambda _: rows)


@pytest.mark.parametrize("rows", [64, 136])
def test_blocks_do_not_change_a_build_with_drafts(features, tmp_path, monkeypatch, rows):
    params = with_support("graph", truncation=400)
    summary = build(features, tmp_path / "a.index", params)
    assert {"drafts", "supports"} <= summary.seconds.keys()
    use_blocks_of(monkeypatch, rows)
    build(features, tmp_path / "b.index", params, jobs=3)
    assert directory_bytes(tmp_path / "a.index") == directory_bytes(tmp_path / "b.index")


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


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_regional_whitened_index_is_the_same_for_any_number_of_jobs(features, tmp_path, jobs):
    others = {"owners": np.arange(N) // 3, "names": [f"é{i}" for i in range(N // 3)]}
    for name, count in (("a.index", 2), ("b.index", jobs)):
        build(features, tmp_path / name, with_support("features", whiten=9), jobs=count, **others)
    assert directory_bytes(tmp_path / "a.index") == directory_bytes(tmp_path / "b.index")
    assert {"owners.npy", "items.jsonl", "item_offsets.npy", "whitening_mean.npy", "whitening_projection.npy"} < set(
        directory_bytes(tmp_path / "a.index")
    )


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
    # Descriptors are numbered from below, where no other test holds one: this leaves room for fifty more.
    probes = [os.open("/", os.O_RDONLY) for _ in range(50)]
    for probe in probes:
        os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(probes) + 1, hard))
    try:
        build(features, tmp_path / "x.index", PARAMS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert directory_bytes(tmp_path / "x.index") == expected["graph"]


READ_AT_ONCE = """
import concurrent.futures, gc, sys, time
from pathlib import Path
from suffuse.store.files import map_array

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
