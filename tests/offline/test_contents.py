"""What a build makes and says: the files, counts and columns of its index, its summary and its progress."""

import json

import numpy as np
import pytest
from tests.support import reference
from tests.support.builds import EXACT_STAGES, PARAMS, SUPPORTS, D, N, directory_bytes, names_beside, with_support
from tests.support.damage import edit
from tests.support.data import clusters, unit
from tests.support.indexes import stored_column

import suffuse
from suffuse.core.graph import transition_of
from suffuse.core.neighbors import nearest_to_rows
from suffuse.core.params import Params
from suffuse.errors import IndexBroken
from suffuse.index import snapshot as store
from suffuse.index.index import Index
from suffuse.index.snapshot import verify
from suffuse.offline.build import build
from suffuse.store import files
from suffuse.store.manifest import read_manifest


def test_the_summary_agrees_with_the_manifest_and_the_files(features, tmp_path):
    path = tmp_path / "x.index"
    summary = build(features, path, PARAMS)
    manifest = read_manifest(path)
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert summary.path == path
    assert (summary.elements, summary.images, summary.dimensions) == (N, N, D)
    assert {
        "elements": summary.elements,
        "images": summary.images,
        "dimensions": summary.dimensions,
        "entries": summary.entries,
        "unconverged": summary.unconverged,
    } == manifest.counts
    assert len(np.load(path / "codes.npy")) == np.load(path / "indptr.npy")[-1]
    index = Index.open(path)
    assert summary.entries == sum(len(stored_column(index, i)[0]) for i in range(N))
    assert summary.bytes == sum(sizes.values()) - sizes["manifest.json"] == verify(path)
    assert summary.resumed == 0
    assert tuple(summary.seconds) == EXACT_STAGES
    assert all(seconds >= 0 for seconds in summary.seconds.values())
    districts = [f"district_{part}.npy" for part in ("codes", "indptr", "scales", "shares")]
    lists = ["list_ids.npy", "list_sims.npy"]
    more = ["manifest.json", "marks.npy", "pages.npy", "scales.npy"]
    assert sorted(sizes) == ["codes.npy", *districts, "districts.npy", "features.npy", "indptr.npy", *lists, *more]
    assert names_beside(path) == ["x.index"]
    assert manifest.params == PARAMS


def test_a_build_with_the_graph_of_the_paper_or_of_regions_makes_no_districts(features, tmp_path):
    stages = tuple(stage for stage in EXACT_STAGES if stage != "districts")
    for name, graph, owners in (("paper.index", "paper", None), ("regional.index", "local", np.arange(N) // 4)):
        summary = build(features, tmp_path / name, with_support("graph", graph=graph), owners=owners)
        files = {file.name for file in (tmp_path / name).iterdir()}
        assert tuple(summary.seconds) == stages
        assert not [file for file in files if file.startswith("district")]
        assert ("marks.npy" in files) == (graph == "local")
        verify(tmp_path / name)


def test_columns_that_did_not_converge_are_counted(features, tmp_path):
    hasty = build(features, tmp_path / "hasty.index", with_support("graph", iterations=1))
    patient = build(features, tmp_path / "patient.index", with_support("graph", iterations=1000))
    # One step solves the column of an element without neighbours, and no other.
    manifest = read_manifest(tmp_path / "hasty.index")
    assert 0 < hasty.unconverged == N - manifest.graph["isolated"] == manifest.counts["unconverged"]
    assert patient.unconverged == 0


def test_owners_names_and_whitening_are_in_the_index(features, tmp_path):
    # The last two images have a name, but no region.
    owners = np.arange(N, dtype=np.int64) // 4
    names = [{"name": f"photo {i}", "year": 1900 + i} for i in range(N // 4 + 2)]
    path = tmp_path / "x.index"
    summary = build(features, path, with_support("graph", whiten=7), owners=owners, names=names)
    assert (summary.elements, summary.images, summary.dimensions) == (N, N // 4 + 2, 7)
    index = Index.open(path)
    assert len(index) == N // 4 + 2
    assert index.owners.tolist() == owners.tolist()
    assert index.items[151] == {"name": "photo 151", "year": 2051}
    assert index.dimensions == D
    np.testing.assert_allclose(np.linalg.norm(index.features, axis=1), 1.0, rtol=1e-6)
    assert index.search(features[40:41], method="knn").ids[0, 0] == 10
    assert sorted(index.search(features[40:41], top=N).ids[0]) == list(range(N // 4 + 2))
    verify(path)


def dense_columns(vectors, params):
    """The inverse of I - alpha S as one dense matrix, from the definitions."""
    rows = unit(vectors).astype(np.float64)
    n, sims = len(rows), (rows @ rows.T).round(7)
    ranked = np.argsort(-(sims + 2 * np.eye(n)), axis=1, kind="stable")[:, : params.k]
    if params.graph == "local":
        a = reference.balanced(reference.local_affinity(ranked, np.take_along_axis(sims, ranked, axis=1)))
    else:
        near = np.zeros((n, n), bool)
        np.put_along_axis(near, ranked, True, axis=1)
        a = np.where(near & near.T & ~np.eye(n, dtype=bool), np.clip(sims, 0.0, None) ** params.gamma, 0.0)
    degrees = a.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros(n), where=degrees > 0)
    return np.linalg.inv(np.eye(n) - params.alpha * scale[:, None] * a * scale)


@pytest.mark.parametrize("graph", ["local", "paper"])
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param(np.array([[1.0, 0.0], [0.8, 0.6]]), id="two"),
        pytest.param(np.array([[1.0, 0.0], [-1.0, 0.0]]), id="two-opposite"),
        pytest.param(clusters(np.random.default_rng(3), 9, 4, count=2), id="fewer-than-k"),
        pytest.param(clusters(np.random.default_rng(4), 10, 4, count=2), id="exactly-k"),
        pytest.param(np.ones((200, 5), np.float16), id="all-the-same"),
        pytest.param(np.eye(150, dtype=np.uint8), id="all-isolated"),
        pytest.param(np.concatenate([np.eye(140), np.eye(140)[:20] + np.eye(140)[20:40]]), id="many-isolated"),
    ],
)
def test_odd_galleries_build_and_answer(tmp_path, vectors, support, graph):
    path, n = tmp_path / "x.index", len(vectors)
    params = with_support(support, graph=graph, truncation=300, keep=300, values="float32")
    summary = build(vectors, path, params)
    verify(path)
    assert summary.unconverged == 0
    index, exact = Index.open(path), dense_columns(vectors, params)
    stored, indptr = np.zeros((n, n)), np.load(path / "indptr.npy")
    columns = np.repeat(np.arange(n), np.diff(indptr))
    stored[np.load(path / "rows.npy"), columns] = np.load(path / "values.npy")
    np.testing.assert_allclose(stored, exact, rtol=1e-4, atol=1e-4)
    hits = index.search(vectors, top=n, seeds=3)
    assert len(index) == n
    assert np.isfinite(hits.scores).all()
    assert (np.sort(hits.ids, axis=1) == np.arange(n)).all()
    # Each vector's nearest is itself, or one exactly like it.
    nearest = index.search(vectors, top=1, method="knn")
    np.testing.assert_allclose(nearest.scores, 1.0, atol=1e-6)


def test_isolated_elements_are_counted_in_the_manifest(tmp_path):
    build(np.eye(150, dtype=np.float32), tmp_path / "x.index", PARAMS)
    graph = read_manifest(tmp_path / "x.index").graph
    assert (graph["isolated"], graph["components"], graph["edges"]) == (150, 150, 0)


# Progress


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_names_each_stage_in_order_and_ends_at_the_total(features, tmp_path, jobs):
    calls = []
    build(features, tmp_path / "x.index", PARAMS, jobs=jobs, progress=lambda *call: calls.append(call))
    assert tuple(dict.fromkeys(stage for stage, _, _ in calls)) == EXACT_STAGES
    assert [EXACT_STAGES.index(stage) for stage, _, _ in calls] == sorted(
        EXACT_STAGES.index(stage) for stage, _, _ in calls
    )
    assert {total for _, _, total in calls} == {N}
    for stage in EXACT_STAGES:
        done = [done for name, done, _ in calls if name == stage]
        assert done[0] == 0
        assert done == sorted(done)
        assert done[-1] == N
    # Five blocks: more than the begin and the end is reported.
    assert len({done for name, done, _ in calls if name == "columns"}) == 6


def test_the_defaults_are_the_documented_ones(features, tmp_path):
    build(features, tmp_path / "x.index")
    assert read_manifest(tmp_path / "x.index").params == Params()
    assert suffuse.open(tmp_path / "x.index").params == Params()


@pytest.mark.parametrize("support", SUPPORTS)
def test_the_graph_is_in_the_index_if_it_is_asked_for(features, tmp_path, support):
    params = with_support(support, with_graph=True)
    build(features, tmp_path / "x.index", params)
    index = Index.open(tmp_path / "x.index")
    s = transition_of(nearest_to_rows(index.features, 0, N, params.k), params)
    np.testing.assert_array_equal(index.graph.indptr, s.indptr)
    np.testing.assert_array_equal(index.graph.indices, s.indices)
    np.testing.assert_array_equal(index.graph.weights, s.weights.astype(np.float32))
    assert verify(tmp_path / "x.index") > 0
    build(features, tmp_path / "without.index", with_support(support))
    without = Index.open(tmp_path / "without.index")
    assert without.graph is None
    for i in range(N):
        for a, b in zip(stored_column(index, i), stored_column(without, i), strict=True):
            np.testing.assert_array_equal(a, b)


GRAPH_DAMAGES = {
    "a file is gone": (lambda path: (path / "graph_indices.npy").unlink(), "graph_indices.npy is missing"),
    "ids do not exist": (
        lambda path: change(path / "graph_indices.npy", 0, N),
        "graph_indices.npy holds an id outside",
    ),
    "rows go backwards": (lambda path: change(path / "graph_indptr.npy", 5, 10**6), "graph_indptr.npy goes backwards"),
    "rows end elsewhere": (lambda path: change(path / "graph_indptr.npy", N, 3), "do not fit graph_indptr.npy"),
}


def change(path, place, value):
    array = np.load(path)
    array[place] = value
    np.save(path, array)


@pytest.mark.parametrize("name", GRAPH_DAMAGES)
def test_a_damaged_graph_is_noticed(features, tmp_path, monkeypatch, name):
    damage, message = GRAPH_DAMAGES[name]
    path = tmp_path / "x.index"
    build(features, path, with_support("graph", with_graph=True))
    damage(path)
    # As if the damage had been there when hashes and sums were taken.
    monkeypatch.setattr(store, "sha256_of", lambda file: read_manifest(path).files[file.name]["sha256"])
    monkeypatch.setattr(files.Checksums, "check_whole", lambda _: None)
    with pytest.raises(IndexBroken, match=message):
        verify(path)


def test_a_graph_that_the_parameters_do_not_know_is_refused(features, tmp_path):
    path = tmp_path / "x.index"
    build(features, path, with_support("graph", with_graph=True))
    edit(lambda manifest: manifest["params"].update(with_graph=False))(path)
    with pytest.raises(IndexBroken, match="with_graph=False and names 3 of 3 files for it"):
        Index.open(path)


@pytest.mark.parametrize("support", SUPPORTS)
def test_the_lists_are_in_the_index_unless_they_are_not_wanted(features, tmp_path, support):
    build(features, tmp_path / "x.index", with_support(support))
    expected = nearest_to_rows(Index.open(tmp_path / "x.index").features, 0, N, PARAMS.k)
    np.testing.assert_array_equal(np.load(tmp_path / "x.index" / "list_ids.npy"), expected.ids)
    np.testing.assert_array_equal(np.load(tmp_path / "x.index" / "list_sims.npy"), expected.sims)
    build(features, tmp_path / "without.index", with_support(support, with_lists=False))
    a, b = (directory_bytes(tmp_path / f"{name}.index") for name in ("x", "without"))
    assert a.keys() - b.keys() == {"list_ids.npy", "list_sims.npy"}
    assert all(a[name] == b[name] for name in b.keys() - {"manifest.json", "pages.npy"})


LIST_DAMAGES = {
    "a file is gone": (lambda path: (path / "list_sims.npy").unlink(), "list_sims.npy is missing"),
    "ids do not exist": (lambda path: change(path / "list_ids.npy", (3, 1), N), "list_ids.npy holds an id outside"),
    "ids are negative": (lambda path: change(path / "list_ids.npy", (3, 1), -1), "list_ids.npy holds an id outside"),
    "not a number": (lambda path: change(path / "list_sims.npy", (3, 1), np.nan), "list_sims.npy .* not finite"),
}


@pytest.mark.parametrize("name", LIST_DAMAGES)
def test_damaged_lists_are_noticed(features, tmp_path, monkeypatch, name):
    damage, message = LIST_DAMAGES[name]
    path = tmp_path / "x.index"
    build(features, path, PARAMS)
    damage(path)
    # As if the damage had been there when hashes and sums were taken.
    monkeypatch.setattr(store, "sha256_of", lambda file: read_manifest(path).files[file.name]["sha256"])
    monkeypatch.setattr(files.Checksums, "check_whole", lambda _: None)
    with pytest.raises(IndexBroken, match=message):
        verify(path)


def test_lists_that_the_parameters_do_not_know_are_refused(features, tmp_path):
    path = tmp_path / "x.index"
    build(features, path, PARAMS)
    edit(lambda manifest: manifest["params"].update(with_lists=False))(path)
    with pytest.raises(IndexBroken, match="with_lists=False and names 2 of 2 files for it"):
        Index.open(path)


def test_where_the_pictures_are_is_in_the_manifest(features, tmp_path):
    pictures = {"root": "photos", "extractor": {"model": "tiny", "size": 64}}
    path = tmp_path / "x.index"
    build(features, path, PARAMS, pictures=pictures)
    assert Index.open(path).manifest.pictures == pictures
    build(features, tmp_path / "without.index", PARAMS)
    assert read_manifest(tmp_path / "without.index").pictures is None
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"pictures": [1]}))
    with pytest.raises(IndexBroken, match="no proper 'pictures'"):
        read_manifest(path)
