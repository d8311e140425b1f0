"""An index that is changed answers as one that was built from the same images."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import suffuse.core.growth
from suffuse import Index, InvalidInput, InvalidParams, Params, build, verify
from suffuse.core.neighbors import nearest_to_rows
from suffuse.index.snapshot import Snapshot
from suffuse.store.files import map_array
from suffuse.store.segments import read_segments

D = 8
KINDS = {
    "coded": Params(k=6, truncation=30, keep=20),
    "grouped": Params(k=6, truncation=400, keep=20),
    "plain": Params(k=6, truncation=30, keep=20, values="float32"),
    "features": Params(k=6, truncation=30, keep=20, support="features"),
    "linked": Params(k=6, truncation=30, keep=20, seed_search="hnsw"),
    "with graph": Params(k=6, truncation=30, keep=20, with_graph=True),
}


def rows(rng, count):
    return rng.normal(size=(count, D)).astype(np.float32)


def answers_like(index, features, ids, folder, params, **options):
    """Whether an index answers as one that is built from these features, whose rows have these ids."""
    build(features, folder / "fresh", params, force=True, **options)
    fresh, queries = Index.open(folder / "fresh"), features[::3]
    assert len(index) == len(fresh)
    for method in ("diffusion", "knn"):
        found, expected = (one.search(queries, top=15, seeds=4, method=method) for one in (index, fresh))
        np.testing.assert_array_equal(found.ids, ids[expected.ids])
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


class Twin:
    """What an index should hold: features and names by id."""

    def __init__(self, features, names):
        self.features = dict(enumerate(features))
        self.names = dict(enumerate(names))
        self.next = len(features)

    def add(self, features, names):
        ids = list(range(self.next, self.next + len(features)))
        self.features.update(zip(ids, features, strict=True))
        self.names.update(zip(ids, names, strict=True))
        self.next += len(features)
        return ids

    def remove(self, ids):
        for id in ids:
            del self.features[id], self.names[id]

    def arrays(self):
        ids = np.array(sorted(self.features))
        return np.stack([self.features[id] for id in ids.tolist()]), ids


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "replace", "compact"]), st.integers(1, 7), st.sampled_from(["fast", "exact"])
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("kind", ["coded", "grouped", "plain", "features", "linked", "with graph"])
@settings(deadline=None, max_examples=12)
@given(changes=CHANGES, seed=st.integers(0, 10**6), begin=st.integers(3, 40))
def test_after_any_changes_an_exact_one_leaves_what_a_build_would_make(kind, changes, seed, begin, tmp_path_factory):
    folder, rng, params = tmp_path_factory.mktemp("living"), np.random.default_rng(seed), KINDS[kind]
    features = rows(rng, begin)
    twin = Twin(features, [f"n{i}" for i in range(begin)])
    build(features, folder / "living", params, names=list(twin.names.values()))
    index = Index.open(folder / "living")
    for number, (what, count, mode) in enumerate(changes):
        known = np.array(sorted(twin.features))
        chosen = rng.permutation(known)[: min(count, len(known) - 2)].tolist()
        names = [f"c{number}-{i}" for i in range(count)]
        if what == "add":
            new = rows(rng, count)
            assert index.add(new, names=names, mode=mode).ids.tolist() == twin.add(new, names)
        elif what == "remove":
            assert index.remove(chosen, mode=mode).removed == len(chosen)
            twin.remove(chosen)
        elif what == "replace" and chosen:
            new = rows(rng, len(chosen))
            assert index.replace(chosen, new, mode=mode).ids.tolist() == chosen
            twin.features.update(zip(chosen, new, strict=True))
        else:
            index.compact()
        # At all times: the right images, found by what they look like, with their names, and sound files.
        assert index.ids.list_visible().tolist() == sorted(twin.features)
        everything, ids = twin.arrays()
        nearest = index.search(everything, top=1, method="knn")
        np.testing.assert_array_equal(nearest.ids[:, 0], ids)
        assert [index.items.name(id) for id in ids.tolist()] == [twin.names[id] for id in ids.tolist()]
        assert set(index.search(everything[:3], top=len(ids)).ids.ravel().tolist()) == set(ids.tolist())
        verify(folder / "living")
    index.compact()
    assert index.stale == 0
    assert not index.manifest.segments
    everything, ids = twin.arrays()
    answers_like(index, everything, ids, folder, params)


def test_a_compacted_index_has_the_bytes_of_a_fresh_build(tmp_path):
    rng = np.random.default_rng(1)
    features, params = rows(rng, 300), Params(k=10, truncation=400, keep=100, with_graph=True)
    build(features[:200], tmp_path / "living", params)
    index = Index.open(tmp_path / "living")
    for start in range(200, 300, 25):
        index.add(features[start : start + 25])
    index.compact()
    build(features, tmp_path / "fresh", params)
    base = tmp_path / "living" / index.manifest.base
    assert sorted(path.name for path in base.iterdir()) == sorted(index.manifest.files)
    for name in index.manifest.files:
        assert (base / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes(), name


def test_lists_stay_exact_while_an_index_grows_fast(tmp_path):
    rng = np.random.default_rng(2)
    features, params = rows(rng, 120), KINDS["coded"]
    build(features[:60], tmp_path / "living", params)
    index = Index.open(tmp_path / "living")
    for start in range(60, 120, 20):
        index.add(features[start : start + 20])
    lists, exact = Snapshot.open(tmp_path / "living").lists(), nearest_to_rows(index.features, 0, 120, params.k)
    np.testing.assert_array_equal(lists.ids, exact.ids)
    np.testing.assert_array_equal(lists.sims.view(np.uint32), exact.sims.view(np.uint32))


def test_a_fast_change_solves_what_is_new_and_its_neighbours_and_marks_the_rest(tmp_path, monkeypatch):
    """The columns that it solved are those of the graph as it is now, to float tolerance; stale ones are told."""
    monkeypatch.setattr(suffuse.core.growth, "_BEYOND", 0)
    rng = np.random.default_rng(3)
    features = rows(rng, 150)
    # So many neighbours that the walk of a build reaches every node: what was stored before may reach further.
    params = Params(k=10, truncation=150, keep=150, values="float32", tolerance=1e-9, iterations=500)
    build(features[:140], tmp_path / "living", params)
    index = Index.open(tmp_path / "living")
    summary = index.add(features[140:])
    assert summary.ids.tolist() == list(range(140, 150))
    assert 10 < summary.solved < 150
    assert 0 < summary.stale < 1
    assert index.stale == summary.stale
    build(features, tmp_path / "fresh", params)
    fresh = Index.open(tmp_path / "fresh")
    (segment,), _ = read_segments(tmp_path / "living", index.manifest)
    assert set(range(140, 150)) <= set(segment.column_of.tolist())
    solved = np.setdiff1d(segment.column_of, segment.stale)
    assert len(solved) == summary.solved
    for element in solved.tolist():
        now, expected = (one.now.columns().decode(np.array([element])) for one in (index, fresh))
        dense = np.zeros((2, 150))
        dense[0, now.entries], dense[1, expected.entries] = now.values, expected.values
        np.testing.assert_allclose(dense[0], dense[1], rtol=1e-4, atol=1e-6)
    # What is neither solved nor stale did not change.
    untouched = np.setdiff1d(np.arange(140), np.concatenate([segment.column_of, segment.stale]))
    for element in untouched.tolist():
        now, expected = (one.now.columns().decode(np.array([element])) for one in (index, fresh))
        np.testing.assert_array_equal(np.sort(now.entries), np.sort(expected.entries))


@pytest.mark.parametrize("pool", ["sum", "none"])
@pytest.mark.parametrize("values", ["uint8", "float16"])
def test_regional_indexes_live_too(pool, values, tmp_path):
    rng = np.random.default_rng(4)
    params = Params(k=8, truncation=60, keep=30, pool=pool, values=values)
    regions, owners = rows(rng, 120), np.repeat(np.arange(30), 4)
    build(regions[:80], tmp_path / "living", params, owners=owners[:80])
    index = Index.open(tmp_path / "living")
    assert index.add(regions[80:100], owners=owners[80:100] - 20).ids.tolist() == [20, 21, 22, 23, 24]
    assert index.add(regions[100:], owners=owners[100:] - 25).ids.tolist() == [25, 26, 27, 28, 29]
    verify(tmp_path / "living")
    mine = index.search(regions[100:104], top=5, seeds=6, owners=np.zeros(4, int))
    assert mine.ids[0, 0] == 25
    index.remove([3, 25])
    assert not {3, 25} & set(index.search(regions[:8], top=28).ids.ravel().tolist())
    assert not {3, 25} & set(index.search(regions[:8], top=28, method="knn").ids.ravel().tolist())
    other = rows(rng, 6)
    index.replace([0, 7], other, owners=np.array([0, 0, 1, 1, 1, 1]))
    assert index.search(other[:2], top=1, method="knn", owners=np.zeros(2, int)).ids.tolist() == [[0]]
    verify(tmp_path / "living")
    index.compact()
    verify(tmp_path / "living")
    kept = [image for image in range(30) if image not in (3, 25)]
    parts = {image: regions[owners == image] for image in kept} | {0: other[:2], 7: other[2:]}
    together = np.concatenate([parts[image] for image in kept])
    numbers = np.repeat(np.arange(28), [len(parts[image]) for image in kept])
    build(together, tmp_path / "fresh", params, owners=numbers)
    fresh = Index.open(tmp_path / "fresh")
    found, expected = (one.search(together[::5], top=20, seeds=6) for one in (index, fresh))
    np.testing.assert_array_equal(found.ids, np.array(kept)[expected.ids])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_new_features_are_whitened_as_the_first_ones_were(tmp_path):
    rng = np.random.default_rng(5)
    features = rows(rng, 90)
    build(features[:60], tmp_path / "living", dataclasses.replace(KINDS["plain"], whiten=5))
    index = Index.open(tmp_path / "living")
    index.add(features[60:])
    np.testing.assert_array_equal(index.features[60:], index.prepare(features[60:]))
    index.compact()
    np.testing.assert_array_equal(index.features[60:], index.prepare(features[60:]))
    assert index.search(features[70:71], top=1, method="knn").ids.tolist() == [[70]]


def test_an_index_without_lists_gets_them_with_its_first_addition(tmp_path):
    rng = np.random.default_rng(6)
    features, params = rows(rng, 80), KINDS["coded"]
    build(features[:60], tmp_path / "living", dataclasses.replace(params, with_lists=False))
    index = Index.open(tmp_path / "living")
    index.remove([5])
    assert not index.params.with_lists
    index.add(features[60:])
    assert index.params.with_lists
    everything = np.delete(features, 5, axis=0)
    answers_like(index, everything, np.delete(np.arange(80), 5), tmp_path, params)


def test_an_id_is_never_given_twice(tmp_path):
    rng = np.random.default_rng(7)
    build(rows(rng, 20), tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    given_ids = set(range(20))
    for mode in ("fast", "exact", "fast"):
        ids = index.add(rows(rng, 3), mode=mode).ids.tolist()
        assert not given_ids & set(ids)
        given_ids |= set(ids)
        index.remove(ids)
        index.compact()
    assert Index.open(tmp_path / "living").manifest.next_id == 29


def test_many_small_changes_leave_few_segments(tmp_path):
    rng = np.random.default_rng(8)
    features = rows(rng, 100)
    build(features[:50], tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    for row in features[50:]:
        index.add(row[None])
    assert len(index.manifest.segments) < 8
    assert len(list((tmp_path / "living").glob("segment-*"))) == len(index.manifest.segments)
    np.testing.assert_array_equal(index.search(features, top=1, method="knn").ids[:, 0], np.arange(100))


def test_all_images_may_be_removed_but_an_empty_index_cannot_be_compacted(tmp_path):
    rng = np.random.default_rng(9)
    features = rows(rng, 20)
    build(features, tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    index.remove(np.arange(20))
    assert len(index) == 0
    assert index.search(features[:2], top=5).ids.shape == (2, 0)
    assert index.search(features[:2], top=5, method="knn").ids.shape == (2, 0)
    with pytest.raises(InvalidInput, match="no image would be left"):
        index.compact()
    assert index.add(features[:5]).ids.tolist() == [20, 21, 22, 23, 24]
    assert index.search(features[:1], top=5).ids[0, 0] == 20
    index.compact()
    assert index.search(features[:1], top=5).ids[0, 0] == 20


def test_chains_lead_through_what_is_there_now(tmp_path):
    rng = np.random.default_rng(10)
    features = rows(rng, 60)
    build(features[:50], tmp_path / "living", KINDS["with graph"])
    index = Index.open(tmp_path / "living")
    index.add(features[50:])
    index.remove([4])
    graph = index.graph
    assert graph is not None
    assert len(graph.indptr) == 61
    assert graph.indptr[5] == graph.indptr[4]
    assert 4 not in graph.indices


def bad_requests():
    good = np.ones((2, D), np.float32)
    return {
        "other dimensions": (lambda index: index.add(np.ones((2, D + 1), np.float32)), "dimensions"),
        "no rows": (lambda index: index.add(good[:0]), "row"),
        "not finite": (lambda index: index.add(good * np.nan), "finite|nan"),
        "names": (lambda index: index.add(good, names=["one"]), "1 names for 2 images"),
        "owners": (lambda index: index.add(good, owners=np.zeros(2, int)), "holds images"),
        "unknown id": (lambda index: index.remove([3, 99]), "no image 99"),
        "an id twice": (lambda index: index.remove([3, 3]), "named 2 times"),
        "no whole number": (lambda index: index.remove([0.5]), "whole numbers"),
        "removed before": (lambda index: (index.remove([3]), index.remove([3])), "no image 3"),
        "one image for two": (lambda index: index.replace([1, 2], good[:1]), "1 images for 2 ids"),
    }


@pytest.mark.parametrize("what", bad_requests())
def test_what_cannot_be_done_is_told_and_changes_nothing(what, tmp_path):
    rng = np.random.default_rng(11)
    build(rows(rng, 20), tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    ask, message = bad_requests()[what]
    with pytest.raises(InvalidInput, match=message):
        ask(index)
    assert index.manifest.generation == (2 if what == "removed before" else 1)
    verify(tmp_path / "living")


def test_modes_are_fast_and_exact(tmp_path):
    build(rows(np.random.default_rng(12), 20), tmp_path / "living", KINDS["coded"])
    with pytest.raises(InvalidParams, match="mode must be one of fast, exact"):
        Index.open(tmp_path / "living").remove([1], mode="slow")


def test_a_change_of_nothing_makes_no_generation(tmp_path):
    build(rows(np.random.default_rng(13), 20), tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    assert index.remove([]).generation == index.compact().generation == 1
    assert not index.refresh()


def test_names_survive_a_replacement_unless_others_are_given(tmp_path):
    rng = np.random.default_rng(14)
    build(rows(rng, 20), tmp_path / "living", KINDS["coded"], names=[f"n{i}" for i in range(20)])
    index = Index.open(tmp_path / "living")
    index.replace([3], rows(rng, 1))
    index.replace([4], rows(rng, 1), names=[{"name": "other", "year": 1999}])
    for _ in range(2):
        assert index.items.name(3) == "n3"
        assert index.items[4] == {"name": "other", "year": 1999}
        index.compact()


def test_seeds_of_ones_own_go_by_id(tmp_path):
    rng = np.random.default_rng(15)
    features = rows(rng, 40)
    build(features, tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    index.remove([0, 1, 2], mode="exact")
    found = index.combine(np.array([[10, 11]]), np.array([[0.9, 0.8]]), top=10)
    expected = index.search(features[10:11], top=37)
    assert set(found.ids[0].tolist()) <= {-1, *expected.ids[0].tolist()}
    assert 10 in found.ids[0]
    # An image that was removed meanwhile counts as nothing found; one that never was is a mistake.
    gone = index.combine(np.array([[10, 2]]), np.array([[0.9, 0.8]]), top=10)
    alone = index.combine(np.array([[10, -1]]), np.array([[0.9, 0.8]]), top=10)
    np.testing.assert_array_equal(gone.ids, alone.ids)
    with pytest.raises(InvalidInput, match="40"):
        index.combine(np.array([[40]]), np.array([[0.9]]))


def test_the_new_base_maps_like_any_other(tmp_path):
    rng = np.random.default_rng(16)
    build(rows(rng, 20), tmp_path / "living", KINDS["coded"])
    index = Index.open(tmp_path / "living")
    index.remove([0], mode="exact")
    base = tmp_path / "living" / index.manifest.base
    assert map_array(base / "ids.npy").array.tolist() == list(range(1, 20))
    assert suffuse.verify(tmp_path / "living") > 0
