"""An index that was changed, in a real PostgreSQL: the ids that it gave, without what was removed."""

import numpy as np
import pytest
from tests.support.by_sql import find_seeds, rank_by_columns
from tests.support.data import curves
from tests.support.postgres import assert_same_ranking

import suffuse
from suffuse import Index, InvalidInput, Params
from suffuse.index import search as similar
from suffuse.postgres import PostgresIndex, export, export_index

N, D = 120, 10
PARAMS = Params(k=8, truncation=60, keep=20)
REMOVED, REPLACED = [0, 3, 4, 57, 119], [10, 90]


@pytest.fixture(scope="module", params=["uint8", "float32"])
def changed(request, tmp_path_factory):
    """An index with added, removed and replaced images: hidden places, stale columns, ids that are no places."""
    rows = curves(np.random.default_rng(0), N + 24, D)
    path = tmp_path_factory.mktemp("changed") / "x.index"
    params = Params(k=8, truncation=60, keep=20, values=request.param)
    names = [{"name": f"{id}.jpg", "old": True} for id in range(N)]
    suffuse.build(rows[:N], path, params, names=names)
    index = Index.open(path)
    index.add(rows[N : N + 20], names=[f"new {number}.jpg" for number in range(20)])
    index.remove([*REMOVED, N + 5])
    index.replace(REPLACED, rows[N + 20 : N + 22])
    index.add(rows[N + 22 :])
    assert index.stale > 0
    assert len(index.ids.hidden)
    return path


def check(server, path, schema):
    """Every search by SQL finds what the open index finds without its second look and its districts."""
    opened = Index.open(path)
    done = export_index(path, server.url, schema)
    queries = curves(np.random.default_rng(5), 12, D)
    ids = opened.ids.list_visible()
    sims = np.full((12, opened.manifest.next_id), np.nan)
    sims[:, ids] = opened.prepare(queries) @ opened.features[opened.ids.find_rows(ids)].T
    with PostgresIndex(server.url, schema) as index:
        assert len(index) == len(opened) == done.images
        # From the similarities that SQL has: ranks between near marks depend on their last bits.
        query, (seen, weights) = similar.ask(opened.now, queries), find_seeds(index, opened.prepare(queries), 10)
        seen = seen._replace(ids=opened.ids.find_rows(seen.ids.ravel()).astype(np.int32).reshape(seen.ids.shape))
        y, again = (similar.find_seeds(opened.now, query, 10, found=known) for known in (None, seen))
        np.testing.assert_array_equal(again.ids, y.ids)
        np.testing.assert_allclose(again.sims, y.sims, atol=5e-7)
        np.testing.assert_allclose(weights.ravel(), again.weights, rtol=1e-9)
        for top in (10, len(opened)):
            found = index.search(queries, top, exact=True)
            assert_same_ranking(found, rank_by_columns(opened.now, query, top, found=seen), sims)
        for seed in index.explain(queries[0], int(found.ids[0, 0])):
            assert seed.seed in ids
    stored = server.run(f'SELECT id, name FROM "{schema}".items ORDER BY id')
    assert stored == [(id, opened.items.name(id)) for id in ids.tolist()]
    (rows,) = server.run(f'SELECT array_agg(DISTINCT r) FROM "{schema}".columns, unnest(rows) r')[0]
    assert set(rows) <= set(ids.tolist())
    return opened


def test_a_changed_index_is_found_as_it_is_by_its_own_ids(server, changed):
    opened = check(server, changed, "changed")
    assert not set(REMOVED) & set(opened.ids.list_visible().tolist())
    assert set(REPLACED) < set(opened.ids.list_visible().tolist())


def test_a_compacted_index_keeps_its_ids_in_the_database(server, changed, tmp_path):
    import shutil

    copy = shutil.copytree(changed, tmp_path / "copy.index")
    before = Index.open(copy).ids.list_visible()
    Index.open(copy).compact()
    opened = check(server, copy, "compacted")
    np.testing.assert_array_equal(opened.ids.list_visible(), before)
    assert "ids.npy" in opened.manifest.files


def test_blocks_do_not_change_an_export(server, changed, monkeypatch):
    """Ids that follow each other are copied together, as long as they are in one block."""
    tables = []
    for block in (1, 7, 1000):
        monkeypatch.setattr(export, "_BLOCK", block)
        export_index(changed, server.url, "blocks")
        tables.append(server.run("SELECT id, name, metadata, embedding::real[] FROM blocks.items ORDER BY id"))
        tables[-1] += server.run('SELECT id, rows, "values" FROM blocks.columns ORDER BY id')
    assert tables[0] == tables[1] == tables[2]


def test_an_index_without_images_is_an_export_without_hits(server, tmp_path):
    suffuse.build(curves(np.random.default_rng(0), 20, D), tmp_path / "x", PARAMS)
    Index.open(tmp_path / "x").remove(range(20))
    assert export_index(tmp_path / "x", server.url, "empty").images == 0
    with PostgresIndex(server.url, "empty") as index:
        assert len(index) == 0
        assert index.search(np.eye(D)[:2]).ids.shape == (2, 0)


def test_ids_that_the_tables_cannot_hold_are_refused(server, changed, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", N)
    with pytest.raises(InvalidInput, match=rf"has an image \d+; ids above {N} cannot be exported"):
        export_index(changed, server.url, "large")
