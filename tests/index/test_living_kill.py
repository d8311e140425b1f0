"""Writers that are killed: the index holds the last committed state, and the next writer goes on from there."""

import os
import secrets
import shutil
import sys

import pytest
from tests.support.faults import CHANGES, Killed, moments, new_world
from tests.support.kills import kill_often
from tests.support.small_worlds import Change, State, World, digest, leftovers

from suffuse import verify
from suffuse.store.manifest import read_manifest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")


@pytest.mark.parametrize("verb", CHANGES)
def test_a_change_that_dies_at_any_step_is_there_as_a_whole_or_not_at_all(tmp_path, verb):
    told = CHANGES[verb]
    steps = moments(tmp_path, "regions", told, Killed)
    before, after = next(steps)
    known = {"before": digest(tmp_path / "original.index")}
    changed = World("regions", tmp_path / "changed.index")
    shutil.copytree(tmp_path / "original.index", changed.path)
    changed.make(told)
    known["after"] = digest(changed.path)
    seen = []
    for world, step, outcome in steps:
        assert isinstance(outcome, Killed), step
        seen.append("after" if generation_of(world) == generation_of(changed) else "before")
        state = after if seen[-1] == "after" else before
        assert not world.difference(state), step
        assert digest(world.path) == known[seen[-1]], step
        verify(world.path)
        next_change = Change("add", [], [77])
        assert world.make(next_change).ids.tolist() == [state.next_id], step
        assert not world.difference(state.after(next_change)), step
        assert not leftovers(world.path), step
    # Nothing before one step, everything from there on.
    assert seen == sorted(seen, reverse=True)
    assert seen.count("before") > 5
    assert seen.count("after") > 0


def generation_of(world):
    return read_manifest(world.path).generation


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_index_whose_writers_are_killed_at_random_moments_loses_nothing(tmp_path):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    result = kill_often(tmp_path, 14, seed)
    assert result["failures"] == []
    assert result["kills"] == 14


def test_the_judge_of_states_sees_what_is_lost(tmp_path):
    world, state = new_world(tmp_path)
    assert not world.difference(state)
    images = state.images
    first = images[0]
    assert "ids" in world.difference(State({id: images[id] for id in list(images)[1:]}, state.next_id))
    assert "next id" in world.difference(state._replace(next_id=31))
    assert "image 0 has other features" in world.difference(state._replace(images=images | {0: first + 5}))
    before = digest(world.path)
    world.make(Change("add", [], [5]))
    assert digest(world.path) != before
    assert "ids" in world.difference(state)


def test_the_judge_of_leftovers_sees_them(tmp_path):
    world, _ = new_world(tmp_path)
    world.make(Change("add", [], [5]))
    assert leftovers(world.path) == []
    (world.path / "segment-000009.npz").write_bytes(b"half")
    (world.path / "compacting").mkdir()
    assert leftovers(world.path) == ["segment-000009.npz", "compacting"]
