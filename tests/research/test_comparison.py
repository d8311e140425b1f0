"""Methods by name, side by side; advice; tuning; and the verbs for researchers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.support.data import clusters, unit

from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index.index import Index
from suffuse.research.comparison import Result, advise, compare
from suffuse.research.datasets import Dataset, Regional
from suffuse.research.evaluation import average_precision, judge
from suffuse.research.methods import METHODS, Queries, Setting, Workshop, list_available, prepare, scale_scores
from suffuse.research.tuning import WORTH_IT, Point, find_pareto, split_queries, tune

IMAGES, CLASSES, PER_IMAGE = 60, 5, 3
SETTING = Setting(
    params=Params(k=8, truncation=40, keep=30),
    regional_params=Params(k=8, truncation=60, keep=30),
    seeds=4,
    refine=20,
    expand=3,
    spectral_rank=60,
)


@pytest.fixture(scope="module")
def dataset():
    """Clusters of images, each with regions around it; queries are new members of the clusters."""
    rng = np.random.default_rng(0)
    everyone = clusters(rng, IMAGES + 10, 16, count=CLASSES, spread=0.9)
    features, queries = everyone[:IMAGES], everyone[IMAGES:]
    members = np.arange(IMAGES) % CLASSES
    judged = [judge(np.flatnonzero(members == q % CLASSES), np.array([], int)) for q in range(10)]

    def regions(rows):
        return unit(np.repeat(rows, PER_IMAGE, axis=0) + 0.2 * rng.standard_normal((len(rows) * PER_IMAGE, 16)))

    return Dataset(
        "made up", features, queries, {"classic": judged}, "official",
        [f"image {i}" for i in range(IMAGES)], [f"query {q}" for q in range(10)],
        Regional(
            regions(features), np.repeat(np.arange(IMAGES), PER_IMAGE).astype(np.int32),
            regions(queries), np.repeat(np.arange(10), PER_IMAGE).astype(np.int32),
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shop(dataset, tmp_path_factory):
    return Workshop(dataset, SETTING, tmp_path_factory.mktemp("indexes"))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_a_full_ranking_that_beats_chance(shop, dataset, name):
    prepared = prepare(name, shop)
    ranking = prepared.rank(Queries.of(dataset), IMAGES)
    judged = dataset.protocols["classic"]
    scores = [average_precision(ids, judged[q].positives) for q, ids in enumerate(ranking.ids)]
    assert np.mean(scores) > 0.6  # chance is 0.2
    assert all(sorted(ids.tolist()) == list(range(IMAGES)) for ids in ranking.ids)
    assert (np.diff(ranking.scores, axis=1) <= 1e-6).all()
    assert prepared.bytes > 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_a_query_alone_as_among_others(shop, dataset, name):
    prepared, queries = prepare(name, shop), Queries.of(dataset)
    together, alone = prepared.rank(queries, 10), prepared.rank(queries.take(3, 4), 10)
    np.testing.assert_array_equal(alone.ids[0], together.ids[3])
    np.testing.assert_allclose(alone.scores[0], together.scores[3], rtol=1e-5)


def test_named_methods_of_the_core_are_what_the_index_answers(shop, dataset):
    index = Index.open(shop.folder / "graph.index")
    for name, refine in (("graph", 0), ("refined", 20)):
        expected = index.search(dataset.queries, 12, 4, refine=refine)
        found = prepare(name, shop).rank(Queries.of(dataset), 12)
        np.testing.assert_array_equal(found.ids, expected.ids)
    found = prepare("paper", shop).rank(Queries.of(dataset), 12)
    paper = Index.open(shop.folder / "paper.index")
    assert paper.params == replace(
        SETTING.params, graph="paper", support="features", keep=SETTING.params.truncation, values="float16"
    )
    np.testing.assert_array_equal(found.ids, paper.search(dataset.queries, 12, 4, refine=0).ids)
    assert index.params == replace(SETTING.params, graph="local", support="graph")


def test_matched_walks_from_the_best_matches_of_regions(shop, dataset):
    queries = Queries.of(dataset)
    matched, found = prepare("r-match", shop).rank(queries, IMAGES), prepare("matched", shop).rank(queries, IMAGES)
    seeds, sims = matched.ids[:, : SETTING.seeds], matched.scores[:, : SETTING.seeds]
    expected = shop.graph_index.combine(seeds, np.maximum(sims, 0), IMAGES, refine=SETTING.refine)
    for q in range(len(found.ids)):
        reached = expected.ids[q] >= 0
        assert found.ids[q][reached].tolist() == expected.ids[q][reached].tolist()
        # What diffusion did not reach follows in the order of the matches.
        rest = [image for image in matched.ids[q] if image not in expected.ids[q]]
        assert found.ids[q][~reached].tolist() == rest


def test_fusion_is_the_weighted_mean_of_scaled_scores(shop, dataset):
    queries, weight = Queries.of(dataset), SETTING.weight
    ours, theirs = (scale_scores(prepare(name, shop).rank(queries, IMAGES)) for name in ("matched", "regional-refined"))
    assert ours.max(axis=1) == pytest.approx(np.ones(10))
    fused = scale_scores(prepare("fusion", shop).rank(queries, IMAGES))
    expected = (1 - weight) * ours + weight * theirs
    np.testing.assert_allclose(fused, expected / expected.max(axis=1, keepdims=True), rtol=1e-4)


def test_regional_scores_can_be_pooled_otherwise(dataset, tmp_path):
    for pooling in ("max", "gmp"):
        shop = Workshop(dataset, replace(SETTING, pooling=pooling), tmp_path)
        found = prepare("regional", shop).rank(Queries.of(dataset), 10)
        _, _, regions, owners = dataset.regional
        expected = Index.open(tmp_path / "unpooled.index").search(
            regions, 10, SETTING.regional_seeds, owners=owners, pooling=pooling
        )
        np.testing.assert_array_equal(found.ids, expected.ids)


def test_a_comparison_tells_quality_time_size_and_gain(shop, dataset):
    heard = []
    plain, ours = compare(shop, ["knn", "graph"], heard.append)
    assert heard == ["knn", "graph"]
    scores = [
        average_precision(ids, judged.positives)
        for ids, judged in zip(
            prepare("graph", shop).rank(Queries.of(dataset), IMAGES).ids, dataset.protocols["classic"], strict=True
        )
    ]
    assert ours.quality["classic"] == pytest.approx(100 * np.mean(scores), abs=1e-3)
    assert ours.per_query["classic"] == pytest.approx(scores, abs=1e-5)
    difference, low, high = ours.gain["classic"]
    assert difference == pytest.approx(ours.quality["classic"] - plain.quality["classic"], abs=2e-3)
    assert low <= difference <= high
    assert plain.gain["classic"] == (0.0, 0.0, 0.0)
    assert ours.milliseconds > 0
    assert ours.bytes_per_image > plain.bytes_per_image > 0
    assert set(ours.more["classic"]) == {"mP@1", "mP@5", "mP@10"}


def test_an_unknown_method_and_missing_regions_are_named(shop, dataset, tmp_path):
    with pytest.raises(InvalidParams, match="method 'best' is unknown; known are: knn, aqe"):
        prepare("best", shop)
    without = dataset._replace(regional=None)
    assert "regional" not in list_available(without)
    assert "regional" in list_available(dataset)
    with pytest.raises(InvalidParams, match="made up has no regional features"):
        prepare("regional", Workshop(without, SETTING, tmp_path))


GRAPH = {"isolated": 0, "most_listed": 60, "degree_largest": 20}


def test_a_sound_graph_gets_no_warning():
    assert advise(GRAPH, 1000, Params(k=50), np.array([80, 100, 120])) == []


def test_k_larger_than_a_typical_class_is_warned_of():
    (warning,) = advise(GRAPH, 1000, Params(k=50, graph="paper"), np.array([9, 9, 10, 200]))
    assert "k is 50, but a typical query has only 9.5 relevant images" in warning
    assert advise(GRAPH, 1000, Params(k=50), np.array([9, 9, 10, 200])) == []  # ours does not depend on k


def test_a_loss_that_was_measured_is_told():
    def refined(low, high):
        return Result("refined", {}, {}, {}, {}, {"classes": (-2.5, low, high)}, 0.0, 0.0, 0.0)

    (warning,) = advise(GRAPH, 1000, Params(), np.array([100]), [refined(-4.0, -1.0)])
    assert warning == "classes: the default search has 2.5 points less than k-NN; use k-NN here"
    assert advise(GRAPH, 1000, Params(), np.array([100]), [refined(-4.0, 1.0)]) == []


def test_many_isolated_elements_are_warned_of():
    (warning,) = advise({**GRAPH, "isolated": 300}, 1000, Params(k=50), np.array([100]))
    assert "30% of the elements have no mutual neighbour" in warning


def test_a_hub_is_warned_of():
    (warning,) = advise({**GRAPH, "most_listed": 900}, 1000, Params(k=50), np.array([100]))
    assert "among the 50 nearest of 90% of all others" in warning


def test_tuning_prefers_the_smaller_index_only_at_equal_quality(dataset):
    outcome = tune(dataset, SETTING, {"k": (2, 8), "keep": (5, 30), "seeds": (1, 4)})
    assert outcome.chosen in outcome.points
    assert {point.values["k"] for point in outcome.points} == {2, 8}
    best = max(point.quality for point in outcome.points)
    assert outcome.chosen.quality >= best - 3 * WORTH_IT  # each of three parameters may give away that much
    first = outcome.points[0]
    assert outcome.chosen.quality > first.quality or outcome.chosen.bytes_per_image <= first.bytes_per_image
    assert 0 < outcome.held_out_after <= 100


def test_halves_share_no_query(dataset):
    tuning, judging = split_queries(dataset)
    assert sorted(tuning.query_names + judging.query_names) == sorted(dataset.query_names)
    assert len(tuning.queries) == len(tuning.protocols["classic"]) == 5
    with pytest.raises(InvalidInput, match="tuning needs at least 4"):
        split_queries(dataset._replace(queries=dataset.queries[:3]))


def test_pareto_points_are_beaten_by_none():
    def point(quality, size):
        return Point({"seeds": 1}, quality, 1.0, 1.0, size)

    good, small, dominated = point(80, 100), point(70, 50), point(69, 60)
    assert find_pareto([good, small, dominated]) == [good, small]


@pytest.fixture(scope="module")
def files(dataset, tmp_path_factory):
    """The data set as files, for the command line."""
    folder = tmp_path_factory.mktemp("research")
    for name, rows in {"features": dataset.features, "queries": dataset.queries, **dataset.regional._asdict()}.items():
        np.save(folder / f"{name}.npy", rows)
    truth = {
        "images": dataset.image_names,
        "queries": [
            {"name": name, "ok": judged.positives.tolist(), "junk": []}
            for name, judged in zip(dataset.query_names, dataset.protocols["classic"], strict=True)
        ],
    }
    (folder / "truth.json").write_text(json.dumps(truth))
    np.savez(folder / "classes.npz", features=dataset.features, labels=np.arange(IMAGES) % CLASSES)
    return folder


SMALL = ("--k", 8, "--truncation", 40, "--keep", 30, "--seeds", 4)


def test_evaluate_prints_a_table_and_writes_every_query(suffuse, files, tmp_path):
    code, out, err = suffuse(
        "evaluate", files / "features.npy", "--queries", files / "queries.npy", "--truth", files / "truth.json",
        "--regions", files / "regions.npy", "--region-owners", files / "region_owners.npy", "--regional-k", 8,
        "--query-regions", files / "query_regions.npy", "--query-region-owners", files / "query_region_owners.npy",
        "--methods", "knn,graph,regional", *SMALL, "--json", tmp_path / "out.json",
    )  # fmt: skip
    assert code == 0, err
    for word in ("knn", "graph", "regional", "mAP", "ms per query", "bytes per image", "10 queries, 60 images"):
        assert word in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert [result["method"] for result in content["results"]] == ["knn", "graph", "regional"]
    assert len(content["results"][1]["per_query"]["classic"]) == 10


def test_evaluate_warns_where_diffusion_may_lose(suffuse, files):
    asked = ("evaluate", files / "classes.npz", "--queries", 10, "--methods", "knn,graph")
    code, _, err = suffuse(*asked, "--k", 40, "--graph", "paper")
    assert code == 0
    assert "Does diffusion help here?" in err
    assert "k is 40" in err
    for others in (SMALL, ("--k", 40)):
        assert "Does diffusion help here?" not in suffuse(*asked, *others)[2]


def test_tune_prints_what_was_tried_and_what_it_is_worth(suffuse, files, tmp_path, monkeypatch):
    monkeypatch.setattr("suffuse.research.tuning.GRID", {"k": (4, 8)})
    code, out, _ = suffuse("tune", files / "classes.npz", "--queries", 8, "--json", tmp_path / "tuned.json")
    assert code == 0
    assert "chosen" in out
    assert "held back" in out
    assert len(json.loads((tmp_path / "tuned.json").read_text())["points"]) == 3


def test_reproduce_writes_a_page(suffuse, files, tmp_path):
    code, out, err = suffuse(
        "reproduce", files / "classes.npz", "-o", tmp_path / "out", "--queries", 8, "--quick", "--k", 8, "--no-pictures"
    )
    assert code == 0, err
    assert (tmp_path / "out" / "report.html").exists()
    assert out.strip() == str(tmp_path / "out" / "report.html")
    assert str(files) not in (tmp_path / "out" / "report.html").read_text()


def test_datasets_are_listed(suffuse):
    code, out, _ = suffuse("datasets", "list")
    assert code == 0
    assert "oxford5k" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("evaluate", "{files}/features.npy"), 1, "give --queries and --truth"),
        (("evaluate", "{files}/classes.npz", "--queries", "some"), 2, "how many to hold out"),
        (("evaluate", "{files}/classes.npz", "--methods", "knn,best"), 2, "method 'best' is unknown"),
        (("evaluate", "{files}/classes.npz", "--weight", "2"), 2, "weight must be"),
        (("evaluate", "{files}/classes.npz", "--seeds", "0"), 2, "seeds must be"),
        (("evaluate", "{files}/features.npy", "--regions", "{files}/regions.npy"), 2, "need all of --regions"),
        (("evaluate", "{files}/missing.npz"), 1, "there is no file"),
        (("datasets", "fetch", "nothing", "-o", "{files}/x"), 1, "nothing"),
    ],
)
def test_a_mistake_gets_one_clear_line(suffuse, files, arguments, code, message):
    found, out, err = suffuse(*(argument.format(files=files) for argument in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
