"""The benchmarks measure what they say: references agree with the kernels, bars judge rightly, growth is fitted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import bars, growth, likeness, measure, net, offline_bars, online_bars, references, start_bars, worker
from benchmarks.subjects import Bench, column_bytes, samples, subject
from tests.support import reference

import suffuse
from suffuse.core.columns import group_size
from suffuse.core.graph import order_along, reorder
from suffuse.core.neighbors import nearest, nearest_to_rows
from suffuse.core.params import Params
from suffuse.research.synthetic import manifold

N, D = 400, 24
PARAMS = Params(k=10, truncation=40, keep=20, tolerance=1e-4)

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture(scope="module")
def small():
    features = manifold(N, D, rng=np.random.default_rng(0)).features
    return subject("small", features, references.knn_graph(features, PARAMS.k, 2), PARAMS)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A run over a few hundred elements, in this process, without data from outside."""
    monkeypatch.setattr(worker, "run", lambda task, *rest: getattr(worker, task)(*map(str, rest)))
    monkeypatch.setattr(offline_bars, "SAMPLES", {PARAMS.truncation: 6})
    for name, count in (("_COUNT", 5), ("_ONLINE_COUNT", 2)):
        monkeypatch.setattr(online_bars, name, count)
    return Bench(n=N, data=tmp_path / "nothing", output=tmp_path / "out", params=PARAMS)


# --- references


@pytest.mark.parametrize("truncation", [PARAMS.truncation, N])  # supports of their own, and shared ones
def test_the_papers_way_and_our_kernel_give_the_same_columns(small, truncation):
    params = replace(PARAMS, truncation=truncation, keep=truncation, iterations=1000, tolerance=1e-6)
    graph = reorder(small.alpha_s, order_along(small.alpha_s, group_size(params)))
    chosen = samples(graph, truncation, 40, params)
    pairs = [pair for sample in chosen for pair in sample.of_nodes()]
    assert len(pairs) == 40
    theirs = references.paper_columns(
        references.laplacian(graph), [support for _, support in pairs], params.iterations, params.tolerance
    )
    ours = offline_bars.dense(offline_bars.solved(graph, chosen, truncation, params), N)
    dense = reference.dense(graph)
    for (node, support), their_column, our_column in zip(pairs, theirs, ours, strict=True):
        assert support[0] == node
        assert len(set(support.tolist())) == len(support) <= truncation
        np.testing.assert_allclose(their_column, reference.column(dense, support, node)[support], atol=1e-5)
        np.testing.assert_allclose(our_column[support], their_column, atol=1e-5)
        assert not np.delete(our_column, support).any()


def test_the_plain_walk_is_the_one_of_the_design(small):
    dense, plain = reference.dense(small.alpha_s), references.as_scipy(small.alpha_s)
    for node in range(0, N, 40):
        v = mass = np.eye(N)[node]
        for _ in range(8):
            v = dense @ v
            v[np.argsort(-v, kind="stable")[PARAMS.truncation :]] = 0
            mass = mass + v
        mass[node] = np.inf
        chosen = references.walk_support(plain, node, PARAMS.truncation, 8)
        assert chosen[0] == node
        np.testing.assert_allclose(np.sort(mass[chosen])[:-1], np.sort(mass)[N - len(chosen) : -1])
        assert len(chosen) == min(PARAMS.truncation, (mass > 0).sum())


def test_online_diffusion_is_the_inverse_applied_to_the_seeds(small):
    ids, weights = np.argsort(-np.diff(small.alpha_s.indptr).astype(int))[[0, 40]], np.array([0.5, 0.2])
    y = np.zeros(N)
    y[ids] = weights
    f = references.online_diffusion(references.as_scipy(small.alpha_s), ids, weights, iterations=1000)
    np.testing.assert_allclose(f, reference.inverse(reference.dense(small.alpha_s)) @ y, atol=1e-5)
    assert (f > 0.001).sum() > 20, "the seeds reach others"
    assert references.best(f, 5).tolist() == np.argsort(-f, kind="stable")[:5].tolist()
    assert len(references.best(f, N)) == N


def test_neighbours_by_faiss_alone_are_ours(small):
    ours = nearest_to_rows(small.features, 0, N, PARAMS.k)
    assert np.array_equal(np.sort(small.neighbors.ids, axis=1), np.sort(ours.ids, axis=1))
    queries = manifold(5, D, rng=np.random.default_rng(1)).features
    expected = nearest(queries, small.features, 7).ids
    assert np.array_equal(references.knn_batch(queries, small.features, 7)[1], expected)
    assert np.array_equal(references.knn_one(queries[:1], small.features, 7)[1], expected[:1])


def test_the_likeness_of_a_set_is_measured(small):
    found = likeness.statistics(small, PARAMS, np.random.default_rng(0), sample=10)
    assert 0 < found["inside"] <= 1
    assert 0 < found["jaccard"] <= 1
    assert 1 <= found["union"] <= N / PARAMS.truncation
    assert found["first"] >= found["tenth"] >= found["last"]
    assert found["iterations"] > 1


# --- the bars


@linux
def test_every_bar_of_the_offline_and_online_part_can_be_measured(bench):
    keys = ["solve", "supports", "graph", "build", "fashion", "combine", "query", "hnsw", "online", "disk"]
    rows = bars.run(bench, keys)
    assert {row.key for row in rows} == set(keys)
    missing = {row.key for row in rows if row.value is None}
    assert missing <= {"fashion", "disk", "hnsw"}, "what needs data from outside says so"
    assert all(row.value > 0 for row in rows if row.value is not None)
    kept = json.loads((bench.output / "bars.json").read_bytes())["rows"]
    assert [row["key"] for row in kept] == [row.key for row in rows]
    assert len({row["code"] for row in kept}) == 1
    table = measure.bars_table(rows)
    assert len(table.splitlines()) == len(rows) + 2
    assert "not available" in table


def test_a_default_that_asks_for_less_work_is_no_speed(bench):
    judged = [row for row in offline_bars.solve(bench) if row.bar is not None]
    assert PARAMS.tolerance > offline_bars.TOLERANCE
    assert len(judged) == 2
    for row in judged:
        assert row.sound
        assert float(row.quality.split()[0]) <= 1e-5


def test_columns_that_are_not_the_true_ones_do_not_count(bench, monkeypatch):
    monkeypatch.setattr(offline_bars, "TOLERANCE", 1e-2)
    assert [row.verdict for row in offline_bars.solve(bench) if row.bar is not None] == ["missed", "missed"]
    assert measure.Row(key="x", what="x", value=99, bar=6, aim=15, at_least=True, sound=False).verdict == "missed"


def test_bars_of_an_earlier_run_stay_unless_they_are_measured_again(bench, monkeypatch):
    bench.output.mkdir()
    for value in (1.0, 2.0):
        row = measure.Row(key="a", what="a", value=value)
        monkeypatch.setitem(bars.BARS, "a", lambda _, row=row: iter([row]))
        monkeypatch.setitem(bars.BARS, "b", lambda _: iter([measure.Row(key="b", what="b", value=5.0)]))
        bars.run(bench, ["a", "b"] if value == 1.0 else ["a"])
    kept = json.loads((bench.output / "bars.json").read_bytes())["rows"]
    assert {row["key"]: row["value"] for row in kept} == {"a": 2.0, "b": 5.0}


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"),
    [
        (20, True, "aim"),
        (10, True, "met"),
        (3, True, "missed"),
        (3, False, "aim"),
        (20, False, "missed"),
        (None, True, "not available"),
    ],
)
def test_a_bar_is_judged(value, at_least, verdict):
    bar, aim = (6, 15) if at_least else (15, 6)
    assert measure.Row(key="x", what="x", value=value, bar=bar, aim=aim, at_least=at_least).verdict == verdict


def test_what_has_no_bar_is_not_judged():
    assert measure.Row(key="x", what="x", value=1.0).verdict == "-"


def test_pieces_are_timed_in_turn_after_a_first_run_of_each():
    calls = []
    one, two = measure.interleaved(3, lambda: calls.append("a"), lambda: calls.append("b"))
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert one.cpu.shape == two.wall.shape == (3,)
    calls.clear()
    measure.interleaved_queries(2, lambda q: calls.append(f"a{q}"), lambda q: calls.append(f"b{q}"))
    assert calls == ["a0", "b0", "a0", "b0", "b1", "a1"]


@linux
def test_pages_of_a_file_that_was_just_read_are_in_memory(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * 4096 + 1))
    assert path.read_bytes()
    resident, pages = start_bars.resident_pages(path)
    assert pages >= 1
    assert 0 < resident <= pages
    (tmp_path / "empty").write_bytes(b"")
    assert start_bars.resident_pages(tmp_path / "empty") == (0, 0)
    assert 0 <= start_bars.forget(tmp_path) <= 1


@linux
def test_a_first_query_and_a_series_of_them_are_measured(bench):
    index = bench.built()[0]
    np.savez(bench.cache / "seeds.npz", ids=bench.seeds.ids, sims=bench.seeds.sims)
    for seeds in ("none", bench.cache / "seeds.npz"):
        assert set(worker.run("first", index, bench.queries_file, seeds)) == {"imports", "open", "query"}
    np.save(bench.cache / "few.npy", bench.queries[:3])
    assert len(worker.run("queries", index, bench.cache / "few.npy")["plain"]["wall"]) == 3


# --- growth


def test_bytes_of_columns_are_all_that_is_not_something_else():
    files = {
        "features.npy": 1,
        "rows.npy": 10,
        "values.npy": 100,
        "items.jsonl": 1,
        "manifest.json": 1,
        "owners.npy": 1,
    }
    assert column_bytes(files) == 110


def test_an_exponent_is_recovered():
    sizes = [1000, 5000, 70_000]
    assert growth.exponent(sizes, [3e-6 * n**1.7 for n in sizes]) == pytest.approx(1.7)
    assert growth.exponent(sizes, [0.25, 0.25, 0.25]) == pytest.approx(0, abs=1e-9)
    assert np.isnan(growth.exponent(sizes, [0.0, 1.0, 2.0]))


@linux
def test_growth_is_measured_size_by_size_and_tabled_from_what_is_there(bench, monkeypatch, capsys):
    folder = bench.output
    folder.mkdir()
    monkeypatch.setattr(growth, "_QUERIES", 5)
    for n in (150, 300):
        growth.measure(folder, bench.data, n, D, PARAMS)
    growth.measure(folder, bench.data, growth.FASHION, D, PARAMS)
    assert "left out" in capsys.readouterr().err
    runs = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
    assert len(runs) == 2
    assert not list(folder.glob("work-*")), "features and index are gone"
    table = growth.growth_table(runs).splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["150", "300"]
    assert table[0].index("features, CPU") < table[0].index("columns, CPU") < table[0].index("query p99")
    (fit,) = growth.exponent_table(runs).splitlines()[2:]
    assert "synthetic, d=24, k 10, keep 20" in fit
    assert "150, 300" in fit


@pytest.mark.parametrize("kind", net.KINDS)
def test_the_net_finds_the_same_bytes_and_hits_whoever_builds(kind, tmp_path):
    world, hashes = net.World(kind, "tiny"), []
    rows, owners, items = world.rows(0, world.count)
    more, more_owners, more_items = world.rows(world.count, 11)
    for jobs in (1, 2):
        path, found = tmp_path / f"{jobs}.index", net.Net()
        with suffuse.build(rows, path, world.params, owners=owners, names=items, jobs=jobs) as index:
            net.searched(found, "built", path, world)
            index.add(more, names=more_items, owners=more_owners)
            index.remove([1, 2])
            found.note_files("changed", path)
            net.searched(found, "changed", path, world)
            index.compact()
            found.note_files("compacted", path)
        hashes.append(found.hashes)
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) > 30
