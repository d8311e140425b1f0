"""The command line, as a person or a script meets it."""

import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features, queries, names and owners as files."""
    directory = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((6, 16))
    features = np.repeat(centres, 20, axis=0) + 0.3 * rng.standard_normal((120, 16))
    np.save(directory / "features.npy", features.astype(np.float32))
    np.save(directory / "queries.npy", centres[:2].astype(np.float32))
    np.save(directory / "owners.npy", np.arange(120) // 4)
    np.savez(directory / "labelled.npz", features=features, labels=np.repeat(np.arange(6), 20))
    (directory / "names.txt").write_text("\n".join(f"photo [{i}].jpg" for i in range(120)) + "\n")
    return directory


@pytest.fixture(scope="module")
def index(folder):
    from suffuse import Params, build

    names = (folder / "names.txt").read_text().splitlines()
    build(np.load(folder / "features.npy"), folder / "ready.index", Params(k=10), names=names)
    return folder / "ready.index"


def test_build_then_search_as_json_lines(suffuse, folder, tmp_path):
    code, out, err = suffuse(
        "build", folder / "features.npy", "-o", tmp_path / "a.index", "--names", folder / "names.txt", "--k", 10
    )
    assert (code, out) == (0, "")
    assert "120 images" in err
    assert "columns" in err
    code, out, _ = suffuse("search", tmp_path / "a.index", folder / "queries.npy", "--top", 5, "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["query"] for line in lines] == [0, 1]
    for line in lines:
        assert len(line["ids"]) == len(line["scores"]) == 5
        assert line["names"] == [f"photo [{id}].jpg" for id in line["ids"]]
        assert line["scores"] == sorted(line["scores"], reverse=True)
    assert {id // 20 for id in lines[0]["ids"]} == {0}
    assert {id // 20 for id in lines[1]["ids"]} == {1}


def test_options_reach_the_index(suffuse, folder, tmp_path):
    arguments = (
        "--k 9 --graph paper --alpha 0.9 --gamma 2 --support features --truncation 50 --keep 30 --whiten 8"
        " --whiten-power 0.5 --values float32 --iterations 7 --tolerance 0.001 --jobs 1 --with-graph"
    )
    code, _, _ = suffuse("build", folder / "features.npy", "-o", tmp_path / "a.index", *arguments.split())
    assert code == 0
    code, out, _ = suffuse("info", tmp_path / "a.index", "--json")
    assert json.loads(out)["params"] == {
        "k": 9, "graph": "paper", "alpha": 0.9, "gamma": 2.0, "support": "features", "truncation": 50, "keep": 30,
        "whiten": 8, "whiten_power": 0.5, "values": "float32", "iterations": 7, "tolerance": 0.001, "pool": "sum",
        "graph_search": "exact", "support_search": "exact", "seed_search": "exact", "probes": 32, "ef": 128,
        "with_graph": True, "with_lists": True,
    }  # fmt: skip


def test_search_as_a_table_shows_rank_id_score_and_name(suffuse, index, folder):
    code, out, err = suffuse("search", index, folder / "queries.npy", "--top", 3)
    assert (code, err) == (0, "")
    assert "query 0" in out
    assert "query 1" in out
    assert "photo [" in out, "names with brackets are no markup"


def test_search_by_plain_knn(suffuse, index, folder):
    _, out, _ = suffuse("search", index, folder / "queries.npy", "--method", "knn", "--json", "--top", 120)
    first = json.loads(out.splitlines()[0])
    features, query = np.load(folder / "features.npy"), np.load(folder / "queries.npy")[0]
    cosines = features @ query / np.linalg.norm(features, axis=1) / np.linalg.norm(query)
    assert first["ids"] == np.argsort(-cosines).tolist()


def test_batches_of_queries_are_numbered_through(suffuse, index, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("suffuse.cli.index._BATCH", 2)
    np.save(tmp_path / "five.npy", np.load(folder / "features.npy")[:5])
    _, out, _ = suffuse("search", index, tmp_path / "five.npy", "--json", "--top", 1)
    assert [json.loads(line)["query"] for line in out.splitlines()] == [0, 1, 2, 3, 4]


def test_regions_are_searched_by_image(suffuse, folder, tmp_path):
    path = tmp_path / "regions.index"
    code, _, err = suffuse("build", folder / "features.npy", "-o", path, "--owners", folder / "owners.npy", "--k", 10)
    assert code == 0
    assert "120 regions of 30 images" in err
    np.save(tmp_path / "query_owners.npy", np.array([0, 0]))
    code, out, _ = suffuse(
        "search", path, folder / "queries.npy", "--owners", tmp_path / "query_owners.npy", "--json", "--top", 30
    )
    (line,) = out.splitlines()
    assert sorted(json.loads(line)["ids"]) == list(range(30))


def test_labels_of_an_npz_are_kept_as_metadata(suffuse, folder, tmp_path):
    from suffuse import Index

    suffuse("build", folder / "labelled.npz", "-o", tmp_path / "a.index", "--k", 10)
    assert Index.open(tmp_path / "a.index").items[25] == {"label": 1}


def test_info_shows_counts_graph_and_sizes(suffuse, index):
    code, out, _ = suffuse("info", index)
    assert code == 0
    for word in ("120", "16 dimensions", "edges", "isolated", "components", "unconverged", "alpha 0.99", "MB"):
        assert word in out
    code, out, _ = suffuse("info", index, "--json")
    content = json.loads(out)
    assert content["counts"]["elements"] == 120
    assert (content["generation"], content["next_id"], content["removed"], content["stale"]) == (1, 120, 0, 0.0)
    assert content["bytes_total"] == sum(content["bytes"].values())


def test_verify_finds_a_changed_byte(suffuse, index, tmp_path):
    import shutil

    code, out, _ = suffuse("verify", index)
    assert code == 0
    assert "sound" in out
    assert "generation 1 with 0 segments" in out
    copy = tmp_path / "copy.index"
    shutil.copytree(index, copy)
    data = bytearray((copy / "codes.npy").read_bytes())
    data[-1] ^= 1
    (copy / "codes.npy").write_bytes(data)
    code, out, err = suffuse("verify", copy)
    assert (code, out) == (1, "")
    assert "codes.npy" in err


def test_an_existing_index_needs_force(suffuse, folder, tmp_path):
    arguments = ("build", folder / "features.npy", "-o", tmp_path / "a.index", "--k", 10)
    assert suffuse(*arguments)[0] == 0
    code, _, err = suffuse(*arguments)
    assert code == 1
    assert "--force" in err
    assert suffuse(*arguments, "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("search", "{index}", "{folder}/missing.npy"), 1, "there is no file"),
        (("search", "{folder}", "{folder}/queries.npy"), 1, "not an index"),
        (("search", "{index}", "{folder}/queries.npy", "--top", "0"), 2, "top must be"),
        (("search", "{index}", "{folder}/queries.npy", "--method", "best"), 2, "best"),
        (("search", "{index}", "{folder}/owners.npy"), 1, "two dimensions"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--k", "0"), 2, "k must be a whole number of at least 2"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--alpha", "1"), 2, "alpha must be"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--k", "many"), 2, "--k"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--whiten", "17"), 1, "more than its 16 dimensions"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--jobs", "0"), 2, "jobs must be"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--owners", "{folder}/features.npy"), 1, "owners"),
        (("build", "{folder}/features.npy", "-o", "{out}", "--names", "{folder}/gone.txt"), 1, "there is no file"),
        (("build", "{folder}/features.npy"), 2, "--output"),
        (("info", "{folder}/nothing"), 1, "there is no index"),
        (("dance",), 2, "dance"),
    ],
)
def test_a_mistake_gets_one_clear_line_and_an_exit_code(suffuse, folder, index, tmp_path, arguments, code, message):
    filled = [a.format(folder=folder, index=index, out=tmp_path / "out.index") for a in arguments]
    found, out, err = suffuse(*filled)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out.index").exists()


def test_a_bad_row_is_named_before_any_answer_is_printed(suffuse, index, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("suffuse.cli.index._BATCH", 2)
    rows = np.load(folder / "features.npy")[:5]
    rows[3, 0] = np.nan
    np.save(tmp_path / "bad.npy", rows)
    code, out, err = suffuse("search", index, tmp_path / "bad.npy", "--json")
    assert (code, out) == (1, "")
    assert "row 3 of bad.npy" in err


def test_help_names_every_verb_and_loads_nothing_heavy():
    program = (
        "import sys; sys.argv = ['suffuse', '--help']\n"
        "from suffuse.cli.app import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'numpy', 'numba', 'faiss', 'scipy', 'h5py', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for verb in ("build", "search", "info", "verify", "demo", "add", "replace", "remove", "compact"):
        assert f" {verb} " in done.stdout


def test_the_module_runs_as_a_program_and_is_silent_when_its_reader_leaves(index, folder, tmp_path):
    np.save(tmp_path / "many.npy", np.tile(np.load(folder / "features.npy"), (20, 1)))
    command = [sys.executable, "-m", "suffuse", "search", str(index), str(tmp_path / "many.npy"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["query"] == 0
        process.stdout.close()
        assert process.stderr.read() == ""


def test_version_is_told(suffuse):
    from suffuse import __version__

    assert suffuse("--version")[:2] == (0, f"suffuse {__version__}\n")
