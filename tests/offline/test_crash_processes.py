"""Building processes that end badly: killed, interrupted, without a worker or room; the next one makes it good."""

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.support.builds import Given, assert_resumes, directory_bytes, finished_blocks, names_beside

from suffuse.core.params import Params
from suffuse.errors import BuildInterrupted, IndexExists, IndexMissing
from suffuse.index.index import Index
from suffuse.offline.build import build

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")

N, BLOCKS = 4000, 32
# Against a hang only: nothing here is that slow.
FOREVER = 300.0


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(tmp_path_factory.mktemp("given"), N)


# What a child runs before its own lines: `go()` builds, and stops forever where `hold` says so.
CHILD = """
import json, os, signal, sys
import numpy as np
import suffuse
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background switches off
given = json.loads(sys.argv[1])
features, path, params = np.load(given["features"]), given["path"], suffuse.Params(**given["params"])

def progress(stage, done, total):
    if [stage, done] == given.get("hold"):
        while True:
            signal.pause()

def go(**others):
    return suffuse.build(features, path, params, progress=progress, **others)
"""


def command(given, path, lines, **others):
    told = {"features": str(given.file), "path": str(path), "params": given.params.to_dict()} | others
    return [sys.executable, "-c", CHILD + lines, json.dumps(told)]


@contextlib.contextmanager
def child(given, path, lines="go(jobs=2)", **others):
    """A process that builds; it does not outlive the test."""
    with subprocess.Popen(
        command(given, path, lines, **others), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(happened, process):
    """Poll as fast as is decent; the moment matters."""
    deadline = time.monotonic() + FOREVER
    while not happened():
        if process.poll() is not None:
            pytest.fail(f"the build ended too early: {process.stderr.read()}")
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill(process):
    process.send_signal(signal.SIGKILL)
    assert process.wait(FOREVER) == -signal.SIGKILL


def assert_unfinished(path):
    with pytest.raises(IndexMissing):
        Index.open(path)
    assert path.with_name(path.name + ".building").is_dir()


@pytest.mark.parametrize(
    ("sign", "hold"),
    # A late kill finds the build waiting at `hold`, so that it never finds it finished.
    [
        ("neighbors/*.npz", ["graph", 0]),
        ("columns/*.npz", ["index", 0]),
        ("index/.codes.npy.*", ["index", N]),
    ],
    ids=["neighbors", "columns", "index"],
)
def test_a_killed_build_leaves_no_index_and_resumes(given, tmp_path, sign, hold):
    path = tmp_path / "x.index"
    work = tmp_path / "x.index.building"
    final_sign = sign.replace(".codes.npy.*", "codes.npy")
    with child(given, path, hold=hold) as process:
        wait_until(lambda: any(work.glob(sign)) or any(work.glob(final_sign)), process)
        kill(process)
    assert_unfinished(path)
    finished = assert_resumes(given, path)
    assert finished >= {"neighbors": 1, "columns": BLOCKS + 1, "index": 2 * BLOCKS}[sign.partition("/")[0]]


def test_a_build_that_is_killed_again_and_again_gets_there(given, tmp_path):
    path, seed = tmp_path / "x.index", secrets.randbits(32)
    print(f"seed {seed}")
    rng, finished = np.random.default_rng(seed), 0
    for _ in range(4):
        with child(given, path, hold=["index", N]) as process:
            wait_until(lambda: (tmp_path / "x.index.building" / "lock").exists(), process)
            time.sleep(rng.uniform(0.0, 0.6))
            kill(process)
        assert_unfinished(path)
        assert finished_blocks(path) >= finished
        finished = finished_blocks(path)
    assert_resumes(given, path)


def test_two_builds_of_one_path_at_once_are_told_apart(given, tmp_path):
    path = tmp_path / "x.index"
    pairs = tmp_path / "x.index.building" / "pairs"
    with child(given, path, hold=["lists", 0]) as process:
        wait_until(lambda: finished_blocks(path) == BLOCKS and not pairs.exists(), process)
        before = directory_bytes(tmp_path)
        for features, params in (
            (given.features, given.params),
            (given.features, Params()),
            (given.features[:9], None),
        ):
            with pytest.raises(IndexExists, match=r"another process is building in .*x\.index\.building"):
                build(features, path, params)
        assert directory_bytes(tmp_path) == before
        # The lock goes with the process that held it.
        kill(process)
    assert assert_resumes(given, path) == BLOCKS


# Three blocks of columns are solved; the next two end once those behind them are cancelled.
INTERRUPTED = """
import time
from concurrent.futures import ThreadPoolExecutor

class Pool(ThreadPoolExecutor):
    futures = []

    def submit(self, task, /, work, start, *stop):
        def run():
            while task.__name__ == "columns_task" and start >= 3 * 128 and not self.futures[-1].cancelled():
                time.sleep(0.001)
            task(work, start, *stop)

        self.futures.append(super().submit(run))
        return self.futures[-1]

with Pool(2) as pool:
    go(executor=pool)
"""


def test_ctrl_c_ends_a_build_soon_and_it_resumes(given, tmp_path):
    path = tmp_path / "x.index"
    with child(given, path, INTERRUPTED) as process:
        wait_until(lambda: finished_blocks(path) == BLOCKS + 3, process)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=FOREVER)
    assert process.returncode == -signal.SIGINT
    assert complaint.rstrip().endswith("KeyboardInterrupt")
    assert_unfinished(path)
    # Both threads finish what they are at; one that is just between two blocks takes no other.
    assert BLOCKS + 4 <= assert_resumes(given, path) <= BLOCKS + 5


KILLED_AT_RENAME = """
from pathlib import Path
rename, left = Path.rename, given["renames"]

def renamed(self, target):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return rename(self, target)

Path.rename = renamed
go(force=given["force"])
"""


def test_a_build_killed_before_the_rename_completes_next_time(given, tmp_path):
    path = tmp_path / "x.index"
    ended = subprocess.run(command(given, path, KILLED_AT_RENAME, renames=0, force=False), timeout=FOREVER, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "x.index.building" / "index" / "manifest.json").exists()
    assert_unfinished(path)
    assert assert_resumes(given, path) == 2 * BLOCKS


def test_a_forced_build_killed_between_its_renames_loses_nothing(given, tmp_path):
    path = tmp_path / "x.index"
    build(given.features[:50], path, given.params)
    old = directory_bytes(path)
    ended = subprocess.run(command(given, path, KILLED_AT_RENAME, renames=1, force=True), timeout=FOREVER, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert names_beside(path) == ["x.index.building", "x.index.replaced"]
    with pytest.raises(IndexExists):
        given.build(path)
    assert directory_bytes(path) == old
    assert len(Index.open(path)) == 50
    assert given.build(path, force=True).resumed == 2 * BLOCKS
    assert directory_bytes(path) == given.expected
    assert names_beside(path) == ["x.index"]


class Dying(concurrent.futures.ProcessPoolExecutor):
    """One process, which dies at a given task."""

    def __init__(self, last):
        super().__init__(1, multiprocessing.get_context("spawn"))
        self.left = last

    def submit(self, task, /, *args):
        self.left -= 1
        return super().submit(os._exit, 1) if self.left == 0 else super().submit(task, *args)


def test_a_worker_that_dies_interrupts_the_build_and_it_resumes(given, tmp_path):
    path = tmp_path / "x.index"
    with Dying(4) as pool, pytest.raises(BuildInterrupted, match=r"a worker died.*goes on with what is finished"):
        given.build(path, executor=pool)
    assert_unfinished(path)
    assert assert_resumes(given, path) == 3


# No room

SQUEEZED = """
import shutil

def attempt():
    try:
        return {"resumed": go(jobs=2).summary.resumed}
    except suffuse.BuildInterrupted as error:
        try:
            suffuse.Index.open(path)
        except suffuse.IndexMissing:
            return {"said": str(error)}
        raise AssertionError("an unfinished index opens") from error

attempts = []
for room in given["rooms"]:
    make_room(room)
    attempts.append(attempt())
    if "resumed" in attempts[-1]:
        shutil.copytree(path, given["result"])
left = sorted(os.listdir(os.path.dirname(path)))
print(json.dumps({"attempts": attempts, "left": left}))
"""

SMALL_FILES = (
    """
import resource

def make_room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""
    + SQUEEZED
)

SMALL_DISK = (
    """
import subprocess
mounted = False

def make_room(size):
    global mounted
    options, mounted = ("remount," if mounted else "") + f"size={size}", True
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", os.path.dirname(path)], check=True)
"""
    + SQUEEZED
)


def squeezed(given, path, lines, rooms, before=()):
    """Build with more and more room, and return what each attempt said; the last one must succeed."""
    told = command(given, path, lines, rooms=rooms, result=str(path.parent.parent / "result"))
    ended = subprocess.run([*before, *told], capture_output=True, text=True, timeout=FOREVER, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["left"] == [path.name]
    assert directory_bytes(path.parent.parent / "result") == given.expected
    *failed, last = answer["attempts"]
    return [attempt["said"] for attempt in failed], last["resumed"]


def test_files_that_may_not_grow_interrupt_a_build_and_it_resumes(given, tmp_path):
    (tmp_path / "place").mkdir()
    sizes = {name: len(content) for name, content in given.expected.items()}
    unlimited = -1
    pairs = 128 + 1024 * 18 * 8  # k = 10: 18 keys for each row of a shard
    assert sizes["features.npy"] < pairs
    # The first is too small for the features, the second for pairs of shards, the third for a file of a later stage.
    rooms = [sizes["features.npy"] - 1, sizes["features.npy"], pairs, unlimited]
    said, resumed = squeezed(given, tmp_path / "place" / "x.index", SMALL_FILES, rooms)
    assert len(said) == 3
    for message in said:
        assert message.startswith("File too large")
        assert "x.index.building, and the same build goes on from there" in message
    assert resumed >= BLOCKS


def test_a_full_disk_interrupts_a_build_and_it_resumes(given, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    # A mount that only the child sees, and that goes with it.
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or not shutil.which("mount"):
        pytest.skip("there is no unshare or no mount on this machine")
    probe = subprocess.run(
        [*private, "mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this user may not mount a file system: {probe.stderr.strip()}")
    said, resumed = squeezed(given, place / "x.index", SMALL_DISK, ["64k", "320k", "900k", "2m", "64m"], private)
    assert len(said) == 4
    for message in said:
        assert message.startswith("No space left on device")
        assert "x.index.building, and the same build goes on from there" in message
    assert resumed > 0
