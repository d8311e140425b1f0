"""Readers beside a writer see one generation or another, never a mixture; a second writer is told to wait."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.support.faults import new_world
from tests.support.small_worlds import Change, World, contents, digest, queries

import suffuse.index.snapshot
from suffuse import Index, IndexBusy, build, verify
from suffuse.index.search import ask, search
from suffuse.index.writer import change
from suffuse.store.locks import lock_writer
from suffuse.store.manifest import read_manifest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no locks on Windows")


def hits_of(index):
    """What is found in the generation of an index, or in one alone."""
    now = getattr(index, "now", index)
    hits = search(now, ask(now, queries()), 12, 5)
    return hits.ids.tobytes() + hits.scores.tobytes()


def live(world, state, changes, seed=2):
    """Change an index, and return what is found in each of its generations."""
    rng, found = np.random.default_rng(seed), {}
    for number in range(changes + 1):
        now = Index.open(world.path).now
        found[now.manifest.generation] = hits_of(now)
        told = Change("compact", [], []) if number % 4 == 3 else world.random_change(state, rng)
        if number < changes:
            world.make(told)
            state = state.after(told)
    return found


@pytest.mark.parametrize("kind", ["coded", "regions"])
def test_threads_that_search_meanwhile_see_whole_generations(tmp_path, kind):
    world, state = new_world(tmp_path, kind, 50)
    seen, errors, over = [], [], threading.Event()

    def read(following):
        try:
            index = Index.open(world.path)
            while not over.is_set():
                if following:
                    index.refresh()
                else:
                    index = Index.open(world.path)
                now = index.now
                seen.append((now.manifest.generation, hits_of(now)))
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read, args=(number % 2 == 0,)) for number in range(4)]
    for reader in readers:
        reader.start()
    try:
        found = live(world, state, 12)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert errors == []
    assert {found[generation] == hits for generation, hits in seen} == {True}
    assert len({generation for generation, _ in seen}) > 3


READER = """
import sys
from pathlib import Path
from suffuse import Index
from tests.index.test_living_readers import hits_of
print("ready", flush=True)
over, seen = Path(sys.argv[2]), set()
while not over.exists():
    now = Index.open(sys.argv[1]).now
    seen.add((now.manifest.generation, hits_of(now).hex()))
import json
print(json.dumps(sorted(seen)))
"""


def with_paths():
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_processes_that_open_meanwhile_see_whole_generations(tmp_path):
    world, state = new_world(tmp_path, images=50)
    over = tmp_path / "over"
    command = [sys.executable, "-c", READER, str(world.path), str(over)]
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_paths()))
            for _ in range(2)
        ]
        for reader in readers:
            stack.callback(reader.kill)
            assert reader.stdout.readline() == "ready\n"
        try:
            found = live(world, state, 10)
        finally:
            over.touch()
        for reader in readers:
            answer = reader.communicate()[0]
            assert reader.returncode == 0
            seen = json.loads(answer)
            assert {found[generation].hex() == hits for generation, hits in seen} == {True}


@pytest.mark.parametrize("kind", ["coded", "regions, not pooled"])
def test_an_open_index_stays_with_its_generation_until_it_is_refreshed(tmp_path, kind):
    world, _ = new_world(tmp_path, kind)
    world.make(Change("add", [], [5, 6]))
    index = Index.open(world.path)
    before, names, features = hits_of(index), list(index.items), index.features.copy()
    files = set(contents(world.path))
    for told in (Change("remove", [1], []), Change("compact", [], []), Change("add", [], [7])):
        world.make(told)
    assert len(files - set(contents(world.path))) > 5  # its files are gone
    assert hits_of(index) == before
    assert list(index.items) == names
    np.testing.assert_array_equal(index.features, features)
    assert index.refresh()
    assert hits_of(index) == hits_of(Index.open(world.path)) != before
    assert not index.refresh()


@pytest.mark.parametrize("use", [Index.open, verify], ids=["opening", "verifying"])
@pytest.mark.parametrize("name", ["map_array", "map_extended", "sha256_of", "read_segments"])
def test_a_compaction_that_ends_while_an_index_is_read_does_no_harm(tmp_path, monkeypatch, name, use):
    world, state = new_world(tmp_path)
    world.make(Change("add", [], [5]))
    original, calls = getattr(suffuse.index.snapshot, name), []
    count_calls(monkeypatch, name, original, calls)
    use(world.path)
    for moment in range(len(calls)):
        copy = World(world.kind, Path(shutil.copytree(world.path, tmp_path / f"{moment}.index")))
        done = []

        def meanwhile(*args, moment=moment, copy=copy, done=done):
            done.append(None)
            if len(done) == moment + 1:
                with monkeypatch.context() as patched:
                    patched.setattr(suffuse.index.snapshot, name, original)
                    copy.make(Change("compact", [], []))
            return original(*args)

        with monkeypatch.context() as patched:
            patched.setattr(suffuse.index.snapshot, name, meanwhile)
            use(copy.path)
        assert len(done) > moment
        assert not copy.difference(state.after(Change("add", [], [5])))


def count_calls(monkeypatch, name, original, calls):
    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(suffuse.index.snapshot, name, counted)


def test_a_file_that_goes_between_two_looks_at_it_is_no_reason_to_fail(tmp_path, monkeypatch):
    """`map_extended` opens a file twice."""
    world, state = new_world(tmp_path)
    world.make(Change("add", [], [5]))
    original, done = suffuse.store.files._map_file_into, []

    def meanwhile(*args):
        if not done:
            done.append(None)
            world.make(Change("compact", [], []))
        return original(*args)

    monkeypatch.setattr(suffuse.store.files, "_map_file_into", meanwhile)
    assert len(Index.open(world.path)) == len(state.images) + 1
    assert done


HOLDER = """
import signal, sys
from pathlib import Path
from suffuse.store.locks import lock_writer
with lock_writer(Path(sys.argv[1])):
    print("holding", flush=True)
    signal.pause()
"""


@contextlib.contextmanager
def held_by_another(path):
    """Another process that is changing the index, for as long as this lasts; then it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "holding\n"
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)


def test_a_second_writer_is_told_who_is_at_work_and_a_dead_one_is_forgotten(tmp_path):
    world, state = new_world(tmp_path)
    with held_by_another(world.path) as pid:
        for told in (Change("add", [], [5]), Change("remove", [1], []), Change("compact", [], [])):
            with pytest.raises(IndexBusy, match=rf"process {pid} is changing .*x\.index; try again"):
                world.make(told)
        assert not world.difference(state)
    assert (world.path / "writer.lock").read_text() == f"{pid}\n"
    world.make(Change("add", [], [5]))
    assert not world.difference(state.after(Change("add", [], [5])))


def test_a_second_writer_in_the_same_process_is_told_too(tmp_path):
    world, _ = new_world(tmp_path)
    with lock_writer(world.path), pytest.raises(IndexBusy, match=f"process {os.getpid()} is changing"):
        world.make(Change("add", [], [5]))


def test_a_forced_build_does_not_replace_an_index_that_is_being_changed(tmp_path, monkeypatch):
    world, state = new_world(tmp_path)
    features = np.random.default_rng(0).normal(size=(20, 8))
    before = contents(world.path)
    with held_by_another(world.path) as pid:
        with pytest.raises(IndexBusy, match=f"process {pid} is changing"):
            build(features, world.path, force=True)
        assert not world.path.with_name("x.index.building").exists()
        # Also if the writer came later than the build.
        monkeypatch.setattr("suffuse.offline.build.refuse_overwriting", lambda *_: None)
        with pytest.raises(IndexBusy, match=f"process {pid} is changing"):
            build(features, world.path, force=True)
        assert contents(world.path) == before
    assert not world.difference(state)
    build(features, world.path, force=True)
    assert len(Index.open(world.path)) == 20
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.index"]


def test_a_writer_whose_index_was_replaced_does_not_write_into_the_new_one(tmp_path, monkeypatch):
    world, _ = new_world(tmp_path)
    new = World(world.kind, tmp_path / "new.index")
    new.build([1, 2, 3])
    original = os.open

    def replaced_first(path, *args, **others):
        descriptor = original(path, *args, **others)
        if Path(path) == world.path and new.path.exists():
            world.path.rename(tmp_path / "old.index")
            new.path.rename(world.path)
        return descriptor

    monkeypatch.setattr(os, "open", replaced_first)
    with pytest.raises(IndexBusy, match="another process has just replaced"):
        change(world.path, removed=[1])
    assert read_manifest(world.path).generation == 1
    assert read_manifest(tmp_path / "old.index").generation == 1


def test_a_forced_build_is_seen_by_refreshing(tmp_path):
    world, state = new_world(tmp_path)
    index = Index.open(world.path)
    before = digest(world.path)
    build(np.random.default_rng(0).normal(size=(20, 8)), world.path, force=True)
    assert len(index) == len(state.images)
    assert index.refresh()
    assert len(index) == 20
    assert digest(world.path) != before
