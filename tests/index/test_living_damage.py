"""Damaged files: verifying finds all damage, nothing crashes, and no change makes a sound index of a damaged one."""

import secrets
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.faults import new_world
from tests.support.random_damage import Damage, damage_often, examine, random_damage, sound_index
from tests.support.small_worlds import Change, World, contents

from suffuse import Index, IndexBroken, IndexProblem, verify
from suffuse.core import Damaged
from suffuse.core.columns import Columns
from suffuse.index.writer import _check_poolable


def test_no_damage_is_missed_crashes_or_becomes_part_of_a_sound_index(tmp_path):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    result = damage_often(tmp_path, 56, seed)  # two of each kind at each stage; benchmarks.reliability has 1,000
    assert result["failures"] == []
    assert result["found by verify"] == 56
    assert set(result["search"]) == {"refused", "the same"}
    assert result["exact"]["done, and sound"] > 0  # what is made anew may have been damaged


def test_no_bit_of_the_manifest_can_change_unseen(tmp_path):
    world, _ = new_world(tmp_path)
    world.make(Change("add", [], [5]))
    manifest = world.path / "manifest.json"
    sound = manifest.read_bytes()
    rng = np.random.default_rng(4)
    for damage in [*rng.integers(8 * len(sound), size=400).tolist(), *range(-8, 0)]:
        Damage("manifest.json", damage % (8 * len(sound)), None).do(world.path)
        for use in (verify, Index.open):
            with pytest.raises(IndexProblem):
                use(world.path)
        manifest.write_bytes(sound)
    for length in (0, 1, len(sound) // 2, len(sound) - 1):
        manifest.write_bytes(sound[:length])
        with pytest.raises(IndexProblem):
            Index.open(world.path)
    manifest.write_bytes(sound)
    verify(world.path)


COPIED = ("features.npy", "list_ids.npy", "list_sims.npy", "items.jsonl", "item_offsets.npy", "owners.npy")


@pytest.mark.parametrize("name", COPIED)
def test_a_compaction_does_not_take_over_damage(tmp_path, name):
    world, _ = new_world(tmp_path, "regions")
    world.make(Change("add", [], [5]))
    size = (world.path / name).stat().st_size
    Damage(name, 8 * (size * 2 // 3), None).do(world.path)
    damaged = contents(world.path)
    for change in (Change("compact", [], []), Change("add", [], [6], "exact")):
        with pytest.raises(IndexBroken, match=rf"{name} .*(hash|damaged)"):
            world.make(change)
        assert contents(world.path) == damaged


@pytest.mark.parametrize("name", ["list_ids.npy", "list_sims.npy", "indptr.npy", "owners.npy"])
def test_a_fast_addition_does_not_take_over_damage(tmp_path, name):
    world, _ = new_world(tmp_path, "regions")
    size = (world.path / name).stat().st_size
    Damage(name, 8 * (size // 2), None).do(world.path)
    damaged = contents(world.path)
    with pytest.raises(IndexBroken):
        world.make(Change("add", [], [6]))
    assert contents(world.path) == damaged


def test_features_that_are_no_numbers_do_not_enter_a_segment(tmp_path):
    world, _ = new_world(tmp_path)
    features = np.load(world.path / "features.npy")
    at = (world.path / "features.npy").stat().st_size - features.nbytes
    data = bytearray((world.path / "features.npy").read_bytes())
    data[at:] = np.full_like(features, np.nan).tobytes()
    (world.path / "features.npy").write_bytes(data)
    damaged = contents(world.path)
    with pytest.raises(IndexBroken):
        world.make(Change("add", [], [6]))
    assert contents(world.path) == damaged


@pytest.mark.parametrize(("row", "value"), [(9, 1.0), (-1, 1.0), (2, np.nan), (2, -1.0), (2, np.inf)])
def test_columns_that_the_kernel_cannot_take_are_refused(row, value):
    entries = Columns.of(np.array([0, 2]), np.array([1, row], np.int32), np.array([0.5, value], np.float32))
    with pytest.raises(Damaged):
        _check_poolable(entries, 9)
    zero = entries._replace(entries=np.array([1, 8], np.int32), values=np.array([0.5, 0.0], np.float32))
    assert (_check_poolable(zero, 9).values > 0).all()


def test_the_judge_of_damages_sees_an_index_without_any(tmp_path):
    sound = sound_index(tmp_path, 7)
    outcome = examine(sound, Damage("features.npy", None, None))
    assert outcome["failures"] == ["verify did not find it"]
    assert outcome["search"] == "the same"


def test_the_judge_of_damages_sees_one_that_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr("suffuse.index.snapshot.Snapshot.check_hashes", lambda *_: None)
    monkeypatch.setattr("suffuse.store.files.Checksums.check_whole", lambda _: None)
    sound = sound_index(tmp_path, 7)
    size = len(sound.files["features.npy"])
    outcome = examine(sound, Damage("features.npy", 8 * (size - 1) - 10, None))
    assert any("made an index that verifies, and is not what it should be" in said for said in outcome["failures"])


def test_damages_reach_every_file(tmp_path):
    sound = sound_index(tmp_path, 7)
    rng = np.random.default_rng(0)
    assert {random_damage(sound.files, rng).file for _ in range(300)} == set(sound.files)


def test_a_damaged_base_name_does_not_make_a_writer_remove_the_base(tmp_path):
    world, _ = new_world(tmp_path)
    world.make(Change("remove", [3], []))
    world.make(Change("compact", [], []))
    manifest = world.path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"base-000003"', b'"base-000002"'))
    before = contents(world.path)
    copy = World(world.kind, Path(shutil.copytree(world.path, tmp_path / "copy.index")))
    with pytest.raises(IndexProblem):
        copy.make(Change("add", [], [4]))
    assert contents(copy.path) == before
