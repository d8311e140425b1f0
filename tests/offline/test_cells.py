"""Indexes of version 0.1 whose graph was searched by cells, a search that is no longer there."""

import dataclasses

import numpy as np
import pytest
from tests.support.builds import directory_bytes
from tests.support.data import clusters

import suffuse
from suffuse import Index, Params
from suffuse.errors import InvalidParams
from suffuse.store.manifest import read_manifest, write_manifest

ADVICE = 'build with graph_search="hnsw" instead'
ROWS = clusters(np.random.default_rng(3), 90, 8, count=6)


def make(path, cells, **others):
    """A tiny index of 80 images that says that its graph was searched by cells, or one that does not."""
    suffuse.build(ROWS[:80], path, Params(k=6, truncation=30, keep=15, **others))
    if cells:
        manifest = read_manifest(path)
        params = dataclasses.replace(manifest.params, graph_search="cells")
        write_manifest(path, dataclasses.replace(manifest, params=params))
    return Index.open(path)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_an_index_that_holds_its_lists_opens_and_changes_as_any_other(tmp_path, mode):
    cells, exact = make(tmp_path / "cells", True), make(tmp_path / "exact", False)
    assert cells.params.graph_search == "cells"
    for index in (cells, exact):
        index.add(ROWS[80:85], mode=mode)
        index.remove([3, 81], mode=mode)
        index.replace([7], ROWS[85:86], mode=mode)
    for found, expected in zip(cells.search(ROWS[:9], top=80), exact.search(ROWS[:9], top=80), strict=True):
        np.testing.assert_array_equal(found, expected)
    for index in (cells, exact):
        index.compact()
    assert Index.open(tmp_path / "cells").params.graph_search == "cells"
    for found, expected in zip(cells.search(ROWS[:9], top=80), exact.search(ROWS[:9], top=80), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_without_lists_what_needs_a_search_is_refused_and_the_index_stays_as_it_is(tmp_path):
    index = make(tmp_path / "x.index", True, with_lists=False)
    index.remove([3])
    before = directory_bytes(tmp_path / "x.index")
    with pytest.raises(InvalidParams, match=ADVICE):
        index.add(ROWS[80:])
    with pytest.raises(InvalidParams, match=ADVICE):
        index.compact()
    assert directory_bytes(tmp_path / "x.index") == before
    assert len(index.search(ROWS[:1], top=80).ids[0]) == 79


def test_a_build_by_cells_is_refused_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(InvalidParams, match=ADVICE):
        suffuse.build(ROWS, tmp_path / "x.index", Params(graph_search="cells"))
    assert not list(tmp_path.iterdir())
