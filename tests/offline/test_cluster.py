"""Builds on a Dask cluster of real processes: the same index, whoever of them dies or comes late; and clear errors."""

import contextlib
import json
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.builds import Given, directory_bytes, finished_blocks, names_beside

from suffuse.core.params import Params
from suffuse.errors import BuildInterrupted, IndexBroken, IndexMissing, InvalidParams, MissingExtra
from suffuse.index.index import Index
from suffuse.offline import cluster
from suffuse.offline.build import build, write_token

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")

N, BLOCKS = 4000, 32
# Against a hang only: nothing here is that slow.
FOREVER = 300.0


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(tmp_path_factory.mktemp("given"), N)


class Cluster:
    """A scheduler and workers, each a process of its own on loopback, at ports that the system chooses."""

    def __init__(self, folder):
        self.folder, self.workers = folder, []
        file = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(file))
        wait_until(lambda: file.exists() and file.read_text().rstrip().endswith("}"))  # not while it is written
        self.address = json.loads(file.read_text())["address"]

    def _start(self, module, *arguments):
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--host", "127.0.0.1"]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen([*command, "--no-dashboard"], stdout=log, stderr=log)

    def start_worker(self):
        scratch = ["--local-directory", str(self.folder)]
        process = self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny", *scratch)
        self.workers.append(process)
        return process

    @contextlib.contextmanager
    def client(self, workers):
        """A client of so many workers."""
        while len(self.workers) < workers:
            self.start_worker()
        with cluster.client_of(self.address) as client:
            client.wait_for_workers(workers, timeout=FOREVER)
            yield client

    def kill(self, process):
        process.kill()
        process.wait()
        if process in self.workers:
            self.workers.remove(process)

    def close(self):
        for process in (*self.workers, self.scheduler):
            self.kill(process)


def wait_until(happened):
    deadline = time.monotonic() + FOREVER
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.start_worker()
    made.start_worker()  # at once: each takes seconds
    yield made
    made.close()


class At:
    """A progress that acts once, when a stage has come so far."""

    def __init__(self, stage, act, *, begin=False):
        self.stage, self.act, self.begin, self.done = stage, act, begin, False

    def __call__(self, stage, done, total):
        if stage == self.stage and not self.done and (self.begin or 0 < done < total):
            self.done = True
            self.act()


# --- the same index


def test_a_client_and_its_executor_give_the_same_index_and_are_left_open(given, machines, tmp_path):
    with machines.client(2) as client:
        for name, executor in (("a.index", client), ("b.index", client.get_executor())):
            given.build(tmp_path / name, executor=executor)
            assert directory_bytes(tmp_path / name) == given.expected
        # The same build of the same path is done again, not remembered.
        assert given.build(tmp_path / "a.index", executor=client, force=True).resumed == 0
        assert client.submit(int, "7").result() == 7
    assert names_beside(tmp_path / "a.index") == ["a.index", "b.index"]


@pytest.mark.parametrize(
    "search",
    [
        {"graph_search": "hnsw", "seed_search": "hnsw"},
        {"graph_search": "hnsw", "support": "features", "support_search": "ivfadc", "whiten": 6},
    ],
    ids=["hnsw", "ivfadc"],
)
def test_stages_that_use_all_threads_or_one_give_the_same_index(given, machines, tmp_path, search):
    params = Params(**given.params.to_dict() | {"truncation": 40, "keep": 20} | search)
    build(given.features[:900], tmp_path / "one.index", params)
    with machines.client(2) as client:
        build(given.features[:900], tmp_path / "many.index", params, executor=client)
    assert directory_bytes(tmp_path / "many.index") == directory_bytes(tmp_path / "one.index")


def test_workers_that_are_killed_and_one_that_joins_late_do_not_change_the_index(given, machines, tmp_path):
    with machines.client(2) as client:
        first, second = machines.workers
        # The first one has tasks of this stage that it will never begin, ...
        stop = At("pairs", lambda: first.send_signal(signal.SIGSTOP), begin=True)
        kill_first = At("pairs", lambda: machines.kill(first))
        join = At("neighbors", machines.start_worker, begin=True)

        def kill_second():
            client.wait_for_workers(2, timeout=FOREVER)
            machines.kill(second)  # ... and the second one is in the middle of some

        callbacks = (stop, kill_first, join, At("columns", kill_second))

        def progress(*reported):
            for callback in callbacks:
                callback(*reported)

        given.build(tmp_path / "x.index", executor=client, progress=progress)
        assert all(callback.done for callback in callbacks)
        assert len(machines.workers) == 1
    assert directory_bytes(tmp_path / "x.index") == given.expected


BUILDING = """
import json, signal, sys
import numpy as np
import suffuse
from suffuse.offline.cluster import client_of
given = json.loads(sys.argv[1])

def progress(stage, done, total):
    if stage == "columns" and done:
        print("columns", flush=True)
        signal.pause()

with client_of(given["address"]) as client:
    params = suffuse.Params(**given["params"])
    suffuse.build(np.load(given["features"]), given["path"], params, executor=client, progress=progress)
"""


def test_a_client_that_is_killed_leaves_finished_blocks_and_the_next_build_resumes(given, machines, tmp_path):
    path = tmp_path / "x.index"
    with machines.client(1):
        pass
    told = {"features": str(given.file), "path": str(path), "params": given.params.to_dict()}
    command = [sys.executable, "-c", BUILDING, json.dumps(told | {"address": machines.address})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "columns\n"
        finally:
            process.kill()
    finished = finished_blocks(path)
    assert finished > BLOCKS
    with pytest.raises(IndexMissing):
        Index.open(path)
    with machines.client(1) as client:
        assert given.build(path, executor=client).resumed >= finished
    assert directory_bytes(path) == given.expected
    assert names_beside(path) == ["x.index"]


def test_the_command_line_builds_on_a_local_cluster(given, tmp_path):
    path, params = tmp_path / "x.index", given.params
    options = ["--k", params.k, "--truncation", params.truncation, "--keep", params.keep, "--dask", "local:2"]
    command = [sys.executable, "-m", "suffuse", "build", given.file, "-o", path, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=FOREVER, check=False)
    assert done.returncode == 0, done.stderr
    assert directory_bytes(path) == given.expected
    assert done.stderr.count("Dashboard: http://127.0.0.1:") == 1
    assert "distributed." not in done.stderr, "what Dask logs is not for users"
    assert all(stage in done.stderr for stage in ("pairs", "neighbors", "graph", "columns", "4000/4000"))


# --- what goes wrong


def test_an_error_of_a_task_arrives_as_it_was_raised(given, machines, tmp_path):
    path, work = tmp_path / "x.index", tmp_path / "x.index.building"
    with machines.client(1) as client:
        remove = At("graph", lambda: (work / "edges" / "0000000000.npz").unlink(), begin=True)
        with pytest.raises(BuildInterrupted, match=r"No such file.*0000000000\.npz.*the same build goes on"):
            given.build(path, executor=client, progress=remove)
        damage = At("columns", lambda: (work / "graph" / "order.npy").write_bytes(b"?"), begin=True)
        with pytest.raises(IndexBroken, match=r"order\.npy cannot be read"):
            given.build(path, executor=client, progress=damage)


def test_a_cluster_with_another_version_is_told(given, machines, tmp_path, monkeypatch):
    there = cluster.__version__
    monkeypatch.setattr(cluster, "__version__", "9.9")
    with machines.client(1) as client:
        for executor in (client, client.get_executor()):
            told = rf"the scheduler has suffuse {there}, the build has .*; install the same version"
            with pytest.raises(BuildInterrupted, match=told):
                given.build(tmp_path / "x.index", executor=executor)
        # One that has joined since says it itself.
        task = client.submit(cluster.run_task, "token", "9.9", int, str(tmp_path))
        with pytest.raises(BuildInterrupted, match=rf"the worker at .* has suffuse {there}, the build has 9\.9"):
            task.result()


def test_a_worker_without_suffuse_is_told_and_not_waited_for(given, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['suffuse'] = None")
    bare = Cluster(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        bare.start_worker()
    try:
        with bare.client(1) as client:
            (worker,) = client.nthreads()
            for executor in (client, client.get_executor(), client.get_executor(workers=worker)):
                with pytest.raises(BuildInterrupted, match=rf"{worker} has no suffuse, the build has"):
                    given.build(tmp_path / "x.index", executor=executor)
            # Another worker may be what it is, if the executor does not use it.
            bare.start_worker()
            client.wait_for_workers(2, timeout=FOREVER)
            (good,) = set(client.nthreads()) - {worker}
            given.build(tmp_path / "x.index", executor=client.get_executor(workers=[good]))
            assert directory_bytes(tmp_path / "x.index") == given.expected
    finally:
        bare.close()


@pytest.mark.parametrize(
    ("act", "found"),
    [(Path.unlink, "cannot open it: No such file"), (lambda run: run.write_text("?"), "has another build there")],
    ids=["nothing", "another"],
)
def test_a_worker_that_does_not_see_the_folder_of_the_build_is_told(given, machines, tmp_path, act, found):
    run = tmp_path / "x.index.building" / "run"
    with (
        machines.client(1) as client,
        pytest.raises(BuildInterrupted, match=rf"x\.index\.building and {found}.*all workers need the same folder"),
    ):
        given.build(tmp_path / "x.index", executor=client, progress=At("columns", lambda: act(run), begin=True))


def test_a_task_that_ends_every_worker_interrupts_the_build(given, machines, tmp_path):
    path = tmp_path / "x.index"

    # Inside, so that it travels as it is: the scheduler cannot import this module.
    def allow_failures(number, dask_scheduler):
        before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, number
        return before

    with machines.client(1) as client:
        before = client.run_on_scheduler(allow_failures, number=0)
        (worker,) = machines.workers
        with pytest.raises(BuildInterrupted, match=r"task columns-\w+ died, 1 in all.*goes on with what is finished"):
            given.build(path, executor=client, progress=At("columns", lambda: machines.kill(worker)))
        client.run_on_scheduler(allow_failures, number=before)
    assert given.build(path).resumed > BLOCKS
    assert directory_bytes(path) == given.expected


def test_a_scheduler_that_ends_interrupts_the_build(given, tmp_path):
    alone = Cluster(tmp_path)
    with cluster.client_of(alone.address) as client:

        def kill():
            wait_until(lambda: client.futures)  # which nobody is there to do
            alone.kill(alone.scheduler)

        with ThreadPoolExecutor(1) as other:
            killed = other.submit(kill)
            with pytest.raises(BuildInterrupted, match=r"scheduler ended.*goes on with what is finished"):
                given.build(tmp_path / "x.index", executor=client)
            killed.result()


def test_a_scheduler_that_cannot_be_reached_is_one_line(given, suffuse, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_CONNECT", 0.5)
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        code, out, err = suffuse("build", given.file, "-o", tmp_path / "x.index", "--dask", address)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: no Dask scheduler answers at {address}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["nonsense", "local:0", "local:x", "tcp://host"])
def test_a_cluster_that_is_no_address_is_refused(where):
    with pytest.raises(InvalidParams, match=r"tcp://HOST:PORT.*local or local:N"), cluster.client_of(where):
        pass


@pytest.mark.parametrize("other", [("--jobs", 2), ("--memory", 1)])
def test_a_cluster_excludes_jobs_and_memory(given, suffuse, tmp_path, other):
    code, _, err = suffuse("build", given.file, "-o", tmp_path / "x.index", "--dask", "local", *other)
    assert code == 2
    assert "give it without --jobs and --memory" in err


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"suffuse\[dask\]"), cluster.client_of("local"):
        pass


def test_an_error_that_names_an_extra_comes_back_from_a_worker_as_it_was():
    told = MissingExtra("distributed", "dask")
    again = pickle.loads(pickle.dumps(told))
    assert (type(again), str(again)) == (MissingExtra, str(told))


def test_a_build_on_one_machine_does_not_import_distributed():
    program = "import sys, suffuse.cli, suffuse.offline; sys.exit('distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_build_waits_for_tasks_of_the_one_before_and_the_late_ones_are_refused(tmp_path, caplog):
    begun, ended = threading.Event(), []

    def task(_work):
        begun.set()
        wait_until(lambda: "waiting for tasks" in caplog.text)
        ended.append(True)

    write_token(tmp_path)
    token = (tmp_path / "run").read_text()
    with ThreadPoolExecutor(1) as other:
        running = other.submit(cluster.run_task, token, cluster.__version__, task, str(tmp_path))
        assert begun.wait(FOREVER)
        write_token(tmp_path)
        assert ended
        running.result()
    with pytest.raises(BuildInterrupted, match="has another build there"):
        cluster.run_task(token, cluster.__version__, task, str(tmp_path))


def test_what_a_killed_worker_left_half_written_is_not_in_the_index(given, tmp_path):
    left = tmp_path / "x.index.building" / "index" / ".hnsw_links.npy.0.tmp"
    given.build(tmp_path / "x.index", progress=At("columns", left.touch, begin=True))
    assert directory_bytes(tmp_path / "x.index") == given.expected
