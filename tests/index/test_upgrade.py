"""Upgrading an index of version 0.1: the graph, the seeds and the districts of today, from the lists that it holds."""

import shutil

import numpy as np
import pytest
from tests.support.builds import directory_bytes
from tests.support.data import curves
from tests.support.indexes import same_hits
from typer.testing import CliRunner

import suffuse
from suffuse.cli.app import app
from suffuse.offline import tasks
from suffuse.store.manifest import FORMAT_VERSION

SMALL = {"k": 8, "truncation": 60, "keep": 30}


@pytest.fixture
def old(tmp_path):
    """An index with the paper's graph, whose lists and images have been changed."""
    features = curves(np.random.default_rng(4), 150, 8)
    index = suffuse.build(
        features[:140], tmp_path / "old.index", graph="paper", names=[f"photo {i}" for i in range(140)], **SMALL
    )
    index.add(features[140:], names=[f"photo {i}" for i in range(140, 150)])
    index.remove([3, 77])
    return index


def test_an_upgraded_index_is_what_a_build_makes_today(old, tmp_path, monkeypatch):
    kept = np.delete(np.arange(150), [3, 77])
    features, before = old.features[kept], old.search(old.features[5], top=20)
    for search in ("pair_task", "neighbors_task"):
        monkeypatch.setattr(tasks, search, None)  # nothing is searched again
    summary = old.upgrade()
    monkeypatch.undo()
    assert (summary.images, summary.stale, old.params.graph) == (148, 0.0, "local")
    assert old.manifest.version == FORMAT_VERSION
    suffuse.verify(old.path)
    new = suffuse.build(features, tmp_path / "new.index", names=[f"photo {i}" for i in kept], **SMALL)
    query = old.features[5]
    hits, expected = old.search(query, top=148), new.search(query, top=148)
    np.testing.assert_array_equal(hits.ids, kept[expected.ids])
    np.testing.assert_array_equal(hits.scores, expected.scores)
    assert hits.names == expected.names
    assert hits.scores[:20].tolist() != before.scores.tolist()
    base = old.path / old.manifest.base
    same = ("features.npy", "codes.npy", "marks.npy", "districts.npy", "district_codes.npy", "list_ids.npy")
    assert all((base / name).read_bytes() == (new.path / name).read_bytes() for name in same)


def test_until_it_is_upgraded_an_index_keeps_its_rule_through_every_change(old):
    assert old.params.graph == "paper"
    old.compact()
    assert (old.params.graph, old.now.has_districts) == ("paper", False)
    assert not (old.path / old.manifest.base / "marks.npy").exists()


def test_an_index_of_today_is_left_as_it_is(tmp_path):
    index = suffuse.build(curves(np.random.default_rng(4), 60, 8), tmp_path / "x.index", **SMALL)
    before = directory_bytes(index.path)
    assert index.upgrade().generation == 1
    after = directory_bytes(index.path)
    after.pop("writer.lock", None)
    assert after == before


def test_golden_indexes_of_every_version_can_be_upgraded(tmp_path):
    from tests.store.test_store import GOLDEN

    for version in (1, 2, 3):
        path = tmp_path / f"{version}.index"
        shutil.copytree(GOLDEN / f"version-{version}.index", path)
        index = suffuse.open(path)
        names = [index.items.name(id) for id in index.ids.list_visible().tolist()]
        index.upgrade()
        suffuse.verify(path)
        assert index.params.graph == "local"
        assert [index.items.name(id) for id in index.ids.list_visible().tolist()] == names
        same_hits(index.search(like=[0], top=3), suffuse.open(path).search(like=[0], top=3))


def test_the_command_line_upgrades_and_says_so(old):
    done = CliRunner().invoke(app, ["upgrade", str(old.path)])
    assert done.exit_code == 0
    assert "148 images, upgraded as generation 4" in done.stderr
    again = CliRunner().invoke(app, ["upgrade", str(old.path), "--json"])
    assert "nothing to upgrade" in again.stderr
    assert '"generation": 4' in again.stdout
