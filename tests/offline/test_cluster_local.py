"""A local cluster: its dashboard, workers that are killed, what it leaves behind, and what it says."""

import fcntl
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.builds import Given, directory_bytes

from suffuse.offline import cluster

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the locks of POSIX")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(tmp_path_factory.mktemp("given"), 4000)


@pytest.fixture(scope="module")
def client():
    with cluster.client_of("local:1") as opened:
        yield opened


def read(client, page=""):
    """A page of the dashboard: its text."""
    base = client.dashboard_link.removesuffix("/status")
    with urllib.request.urlopen(f"{base}/{page}") as answer:
        assert answer.status == 200
        return answer.read().decode()


def test_the_dashboard_answers_at_the_link_that_is_shown(client):
    with urllib.request.urlopen(client.dashboard_link) as answer:
        assert answer.status == 200
        assert "Dask" in answer.read().decode()
    for page in ("tasks", "workers", "graph"):
        assert "Dask" in read(client, page)


def test_the_dashboard_shows_the_tasks_of_a_build_by_their_stage(given, client, tmp_path):
    (worker,) = client.nthreads()
    page = f"info/worker/{urllib.parse.quote_plus(worker)}.html"
    run = tmp_path / "x.index.building" / "run"

    def shown():
        while "columns-" not in read(client, page):
            time.sleep(0.01)
        return json.loads(read(client, "json/counts.json"))

    def look(stage, done, total):
        # Tasks wait for this lock, as for one that a build before them holds, while somebody looks.
        if stage == "columns" and done == 0 and not looks:
            held = run.open()
            fcntl.flock(held, fcntl.LOCK_EX)
            looks.append(other.submit(shown))
            looks[0].add_done_callback(lambda _: held.close())

    looks = []
    with ThreadPoolExecutor(1) as other:
        given.build(tmp_path / "x.index", executor=client, progress=look)
        counts = looks[0].result()
    assert counts["workers"] == 1
    assert counts["processing"] >= 1
    assert directory_bytes(tmp_path / "x.index") == given.expected


def test_a_worker_that_is_killed_is_replaced_and_the_index_is_the_same(given, client, tmp_path):
    killed = []

    def kill(stage, done, total):
        if stage == "columns" and 0 < done < total and not killed:
            killed.extend(client.run(os.getpid).values())
            os.kill(killed[0], 9)

    given.build(tmp_path / "x.index", executor=client, progress=kill)
    assert directory_bytes(tmp_path / "x.index") == given.expected
    (new,) = client.run(os.getpid).values()
    assert [new] != killed


@pytest.mark.skipif(not cluster._FORKS, reason="workers are started otherwise")
def test_workers_have_imported_the_tasks_when_they_start(client):
    assert all(client.run(lambda: "suffuse.offline.tasks" in sys.modules).values())


def test_a_cluster_that_is_not_used_starts_and_ends_without_a_word():
    program = (
        "import os\n"
        "from suffuse.offline.cluster import client_of\n"
        "if __name__ == '__main__':\n"
        "    with client_of('local:2') as client:\n"
        "        print(len(client.nthreads()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_the_settings_of_threads_are_left_as_they_were(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    cluster._begin_to_import()
    assert dict(os.environ) == before
