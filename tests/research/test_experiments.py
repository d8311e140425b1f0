"""The paper's table and figures: measured once, made again from JSON alone, in a page that needs nothing else."""

import base64
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.support.data import curves

from suffuse.core.params import Params
from suffuse.errors import InvalidInput, MissingExtra
from suffuse.research import experiments, report
from suffuse.research.datasets import Dataset, Regional
from suffuse.research.evaluation import judge, judge_classes
from suffuse.research.methods import METHODS, Setting

IMAGES, QUERIES = 150, 12
NASTY = "<script>alert('x')</script>|`b`"
JPEG = b"\xff\xd8\xff\xe0 a small photograph"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(5)
    rows = curves(rng, IMAGES + QUERIES, 8, noise=0.1)
    labels = np.arange(IMAGES + QUERIES) % 3
    judgements = judge_classes(labels[:IMAGES], labels[IMAGES:])
    judgements = [judge(judged.positives[3:], judged.positives[:3]) for judged in judgements]
    owners, query_owners = np.repeat(np.arange(IMAGES), 2), np.repeat(np.arange(QUERIES), 2)
    thumbnails = tmp_path_factory.mktemp("thumbnails")
    names = [f"image {i}" for i in range(IMAGES - 1)] + [NASTY]
    for name in names[:-1]:
        (thumbnails / f"{name}.jpg").write_bytes(JPEG)
    return Dataset(
        "<small> set", rows[:IMAGES], rows[IMAGES:], {"classic": judgements}, "official", names,
        [f"query & {q}" for q in range(QUERIES)],
        Regional(
            np.repeat(rows[:IMAGES], 2, axis=0) + rng.normal(scale=0.05, size=(2 * IMAGES, 8)),
            owners.astype(np.int32),
            np.repeat(rows[IMAGES:], 2, axis=0) + rng.normal(scale=0.05, size=(2 * QUERIES, 8)),
            query_owners.astype(np.int32),
        ),
        thumbnails,
    )  # fmt: skip


@pytest.fixture(scope="module")
def setting():
    params = Params(k=10, truncation=60, keep=40)
    return Setting(params=params, regional_params=params, spectral_rank=20, refine=50)


@pytest.fixture(scope="module")
def full(dataset, setting, tmp_path_factory):
    folder, heard = tmp_path_factory.mktemp("full") / "new", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "PROBES", (1, 8))
        patch.setattr(experiments, "WIDTHS", (1,))
        page = experiments.reproduce(dataset, setting, folder, report=heard.append, command="suffuse reproduce <x>")
    assert page == folder / "report.html"
    assert "table 1: knn" in heard
    return folder


@pytest.fixture(scope="module")
def quick(dataset, setting, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    experiments.reproduce(dataset._replace(regional=None), setting, folder, quick=True, pictures=False)
    return folder


def _read(folder, name):
    return json.loads((folder / name).read_text())


def test_everything_is_there_and_nothing_else(full, quick):
    figures_ = {f"fig{number}.{kind}" for number in (1, 4, 5, 6) for kind in ("png", "svg")}
    tables = {f"{name}.{kind}" for name in ("table1", "truncation", "approximate") for kind in ("json", "md")}
    for folder in (full, quick):
        assert {path.name for path in folder.iterdir()} == figures_ | tables | {"queries.json", "report.html"}
    assert (full / "fig1.png").read_bytes().startswith(b"\x89PNG")
    assert (full / "fig1.svg").read_text().rstrip().endswith("</svg>")


def test_every_file_says_on_which_machine_and_by_which_command(full):
    for name in ("table1", "truncation", "approximate", "queries"):
        raw = _read(full, f"{name}.json")
        assert raw["command"] == "suffuse reproduce <x>"
        assert raw["machine"]["cpu"]
        assert {"suffuse", "python", "numpy", "faiss-cpu"} <= set(raw["machine"]["versions"])
        assert raw["date"].startswith("20")
        assert raw["setting"]["params"]["k"] == 10
    day = _read(full, "table1.json")["date"][:10]
    for name in ("table1.md", "truncation.md", "approximate.md", "report.html"):
        text = (full / name).read_text()
        assert "suffuse reproduce &lt;x&gt;" in text or "suffuse reproduce &lt;x>" in text
        assert f"numpy {np.__version__}" in text
        assert day not in text


def test_the_full_table_has_all_methods_and_the_quick_one_the_fast_ones(full, quick):
    assert [row["method"] for row in _read(full, "table1.json")["results"]] == list(METHODS)
    names = [row["method"] for row in _read(quick, "table1.json")["results"]]
    assert {"knn", "online", "paper", "graph", "refined"} <= set(names)
    assert not {"spectral", "regional", "fusion"} & set(names)


def test_all_truncations_are_measured_and_that_of_the_setting_is_the_tables(full):
    rows = _read(full, "truncation.json")["rows"]
    methods = {"online-early", "online-late", "paper", "graph"}
    assert {(row["method"], row["truncation"]) for row in rows} == {("knn", None), ("online", None)} | {
        (method, size) for method in methods for size in (50, 100, IMAGES)
    }
    whole = {row["method"]: row["quality"]["classic"] for row in rows if row["truncation"] in (None, IMAGES)}
    assert whole["online-early"] == whole["online-late"] == pytest.approx(whole["online"], abs=0.5)


def test_each_truncation_has_a_k_nn_of_its_own_minute_beside_it(dataset, setting, tmp_path, monkeypatch):
    shop = experiments.Workshop(dataset, setting, tmp_path)
    (plain,) = experiments.compare(shop, ["knn"])
    monkeypatch.setattr(experiments, "time_query", lambda *_: 7.0)
    rows = experiments.measure_truncation(shop, [plain._replace(milliseconds=0.5)], [30], lambda _: None)
    assert {(row["truncation"], row["knn_milliseconds"]) for row in rows} == {(None, 0.5), (30, 7.0)}


def test_truncations_are_cut_to_the_gallery():
    assert experiments.choose_truncations(30, quick=True) == [30]
    assert experiments.choose_truncations(30, quick=False) == [30]
    assert experiments.choose_truncations(500, quick=True) == [100, 300]
    assert experiments.choose_truncations(5063, quick=False) == [50, 100, 200, 500, 1000, 2000, 5000, 5063]
    assert experiments.choose_truncations(100_000, quick=False)[-1] == 5000


def test_a_truncation_that_the_table_has_is_not_measured_again(dataset, setting, tmp_path, monkeypatch):
    shop = experiments.Workshop(dataset, setting, tmp_path)
    results = experiments.compare(shop, ["knn", "paper", "graph"])
    monkeypatch.setattr(experiments, "compare", None)
    rows = experiments.measure_truncation(shop, results, [60], lambda _: None)
    assert [(row["method"], row["truncation"]) for row in rows] == [("knn", None), ("paper", 60), ("graph", 60)]


def test_times_are_taken_in_turn_and_the_best_round_counts(dataset, setting, tmp_path, monkeypatch):
    shop = experiments.Workshop(dataset, setting, tmp_path)
    results = [result._replace(milliseconds=9.0) for result in experiments.compare(shop, ["knn", "graph", "r-match"])]
    times = iter([5.0, 6.0, 4.0, 7.0, 8.0, 3.0, 8.0, 8.0])
    monkeypatch.setattr(experiments, "time_query", lambda *_: next(times))
    again = experiments.time_in_turn([(shop, results[:1]), (shop, results[1:])])
    assert [result.milliseconds for result in again] == [4.0, 3.0, 9.0]
    assert [result.quality for result in again] == [result.quality for result in results]


def test_a_busy_machine_is_admitted():
    machine = {"cpu": "x", "cores": 2, "versions": {}}
    raw = {"dataset": {"name": "y", "images": 1, "queries": 1}, "command": "z", "machine": machine, "load": 2.0}
    assert "other work" not in report.describe_run(raw)
    assert "other work" not in report.describe_run({**raw, "load": None})
    assert "load 7.1" in report.describe_run({**raw, "load": 7.1})


def test_approximate_searches_are_compared_with_the_exact_one(full):
    rows = _read(full, "approximate.json")["rows"]
    for stage, size in (("support", 60), ("graph", 10)):
        exact, *others = [row for row in rows if row["stage"] == stage]
        assert exact["search"] == "exact"
        assert exact["recall"] == 1.0
        assert {row["size"] for row in (exact, *others)} == {size}
        assert [row["probes"] for row in others if row["search"] == "ivfadc"] == [1, 8]
        assert [row["ef"] for row in others if row["search"] == "hnsw"] == [size]
        recalls = [row["recall"] for row in others if row["search"] == "ivfadc"]
        assert recalls[0] < recalls[-1] <= 1.0
        assert all(row["training_seconds"] > 0 and row["search_seconds"] > 0 for row in others)


def test_queries_are_sorted_by_what_they_gain_and_their_hits_are_marked(full, dataset):
    raw = _read(full, "queries.json")
    assert raw["method"] == "refined"
    difference = [entry["precision"]["refined"] - entry["precision"]["knn"] for entry in raw["gain"]]
    assert difference == sorted(difference, reverse=True)
    assert all(value > 0 for value in difference)
    assert len(raw["gain"]) == len({entry["query"] for entry in raw["gain"]}) <= 10
    lost = [entry["precision"]["refined"] - entry["precision"]["knn"] for entry in raw["lose"]]
    assert lost == sorted(lost)
    assert all(value < 0 for value in lost)
    marks = set()
    for entry in raw["gain"]:
        judged = dataset.protocols["classic"][dataset.query_names.index(entry["query"])]
        for hits in entry["hits"].values():
            assert len(hits) == 10
            for hit in hits:
                image = dataset.image_names.index(hit["name"])
                known = "right" if image in judged.positives else "junk" if image in judged.junk else "wrong"
                assert hit["mark"] == known
                marks.add(known)
    assert {"right", "wrong"} <= marks


def test_tables_figures_and_page_are_made_again_from_json_alone(full, dataset, tmp_path):
    for path in full.glob("*.json"):
        shutil.copy(path, tmp_path)
    report.render(tmp_path, dataset.thumbnails)
    for path in full.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


class _Page(HTMLParser):
    """What a browser would see: tags, addresses, text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.words, self.ids, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_needs_nothing_from_outside(full, quick):
    for folder in (full, quick):
        text = (folder / "report.html").read_text()
        page = _Page(text)
        assert not re.search(r"https?://", text)
        assert not {"script", "link", "iframe"} & set(page.tags)
        assert page.tags.count("svg") == 4
        assert page.open == []
        assert all(address.startswith(("#", "data:image/jpeg;base64,")) for address in page.addresses)
        assert len(page.ids) == len(set(page.ids))
        assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)


def test_names_cannot_put_markup_in_a_page_or_a_table(full, tmp_path):
    for path in full.glob("*.json"):
        shutil.copy(path, tmp_path)
    queries = _read(tmp_path, "queries.json")
    queries["gain"][0]["query"] = queries["gain"][0]["hits"]["knn"][0]["name"] = NASTY
    (tmp_path / "queries.json").write_text(json.dumps(queries))
    text = report.render(tmp_path).read_text()
    page = _Page(text)
    assert "script" not in page.tags
    assert page.words.count(NASTY) >= 2
    assert "Diffusion on <small> set" in page.words
    assert "<small>" not in (tmp_path / "table1.md").read_text()
    assert "<small>" not in (tmp_path / "fig1.svg").read_text()


def test_photographs_are_in_the_page_or_left_out(full, quick):
    page = _Page((full / "report.html").read_text())
    inside = [address for address in page.addresses if address.startswith("data:")]
    assert len(inside) >= 20
    assert {base64.b64decode(address.partition(",")[2]) for address in inside} == {JPEG}
    text = (quick / "report.html").read_text()
    assert "<img" not in text
    assert "image 1" in text  # names instead


def test_a_name_cannot_reach_a_file_outside_the_thumbnails(tmp_path):
    (tmp_path / "thumbs").mkdir()
    (tmp_path / "secret.jpg").write_bytes(JPEG)
    for name in ("../secret", "missing", str(tmp_path / "secret")):
        assert report.read_thumbnail(tmp_path / "thumbs", name) == ""


def test_marks_are_not_by_colour_alone(full):
    text = (full / "report.html").read_text()
    assert "✓" in text
    assert "✗" in text
    assert "border-style: dashed" in text


def test_published_numbers_stand_beside_ours_for_the_papers_own_sets(dataset, setting, tmp_path):
    for name, best in (("oxford5k_resnet", 96.2), ("oxford5k", None)):
        named = dataset._replace(name=name)
        shop = experiments.Workshop(named, setting, tmp_path)
        measured = experiments.measure_table(shop, experiments.compare(shop, ["knn", "graph"]))
        assert measured["published_best"] == best
        raw = {**experiments.describe(named, setting, quick=True), **measured}
        table = report.tabulate_methods(raw)
        assert all(len(row) == len(table.head) for row in table.rows)
        assert any("96.2" in note for note in report.describe_table(raw)) == (best is not None)


def test_revisited_protocols_have_a_column_each_and_figures_show_medium():
    assert experiments.choose_protocol(["easy", "medium", "hard"]) == "medium"
    protocols = ["easy", "hard"]
    result = {
        "method": "graph", "quality": {"easy": 50.0, "hard": 20.0}, "gain": {"easy": [1.0, -1.0, 2.0]},
        "milliseconds": 1.0, "offline_seconds": 2.0, "bytes_per_image": 3000.0,
    }  # fmt: skip
    raw = {"dataset": {"protocols": protocols, "name": "x"}, "results": [result]}
    table = report.tabulate_methods(raw)
    assert table.head[1:5] == ["mAP easy (%)", "gain easy over k-NN (95%)", "mAP hard (%)", "gain hard over k-NN (95%)"]
    assert table.rows == [["graph", "50.00", "+1.0 (-1.0 to +2.0)", "20.00", "-", "1.00", "2.0", "3,000"]]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no"), ("{", "not JSON"), ("[]", "not a measurement")]
)
def test_a_missing_or_broken_measurement_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "table1.json").write_text(content)
    with pytest.raises(InvalidInput, match=rf"table1\.json.*{message}|{message} table1\.json"):
        report.render(tmp_path)


@pytest.mark.parametrize("module", ["matplotlib.figure", "jinja2"])
def test_a_report_without_what_it_needs_names_the_extra(full, dataset, monkeypatch, tmp_path, module):
    for path in full.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[research\]'"):
        report.render(tmp_path)


def test_png_figures_are_pictures_of_a_readable_size(full):
    from matplotlib.image import imread

    for number in (1, 4, 5, 6):
        height, width, _ = imread(io.BytesIO((full / f"fig{number}.png").read_bytes())).shape
        assert width >= 1000
        assert height >= 600
