"""suffuse bench: what an index costs on this machine, of somebody's features or of the synthetic set."""

import json

import numpy as np
import pytest

from suffuse.research import bench
from suffuse.research.synthetic import manifold

SMALL = ("-k", 10, "--truncation", 60, "--keep", 30, "--queries", 20)
WAYS = ("k-NN alone", "whole query", "whole query, second look", "diffusion part", "online diffusion")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "my [features].npy"
    np.save(path, manifold(300, 16, rng=np.random.default_rng(0)).features)
    return path


def test_the_synthetic_set_is_measured_where_there_are_no_features(suffuse, tmp_path):
    code, out, err = suffuse("bench", "--n", 400, "--dimensions", 24, *SMALL, "--json", tmp_path / "out.json")
    assert code == 0
    assert "Traceback" not in err
    for words in (
        "synthetic set",
        "380 elements of 24 dimensions",
        "columns",
        "bytes per image",
        "isolated",
        "µs",
        *WAYS,
    ):
        assert words in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["elements"], found["dimensions"], found["queries"]) == (380, 24, 20)
    assert found["params"]["k"] == 10
    assert set(found["latency"]) == set(WAYS)
    assert all(0 < way["p50"] <= way["p99"] for way in found["latency"].values())
    assert found["bytes"]["features.npy"] > 380 * 24 * 4
    assert sum(found["seconds"].values()) > 0
    assert found["threads"] >= 1
    assert found["cpu"]


def test_features_of_a_file_are_measured_without_online_diffusion_if_so_wished(suffuse, file):
    code, out, _ = suffuse("bench", file, *SMALL, "--no-online", "--jobs", 1)
    assert code == 0
    assert "my [features].npy" in out, "names with brackets are no markup"
    assert "280 elements of 16 dimensions" in out
    assert "on 1 thread" in out
    assert "online diffusion" not in out


def test_a_part_of_the_features_can_be_measured(suffuse, file):
    code, out, _ = suffuse("bench", file, "--n", 120, *SMALL, "--no-online")
    assert code == 0
    assert "108 elements" in out, "a tenth at most are queries"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{file}.gone",), 1, "there is no file"),
        (("--n", "0"), 2, "n must be a whole number of at least 1"),
        (("--n", "19"), 1, "at least 20 are needed"),
        (("--n", "100", "--k", "1"), 2, "k must be"),
        (("--n", "100", "--seeds", "0"), 2, "seeds must be"),
        (("--n", "100", "--dimensions", "0"), 2, "dimensions must be"),
        (("--n", "100", "--jobs", "0"), 2, "jobs must be"),
        (("{file}", "--whiten", "17"), 1, "more than its 16 dimensions"),
        (("--n", "100", "--json", "{file}/nowhere/out.json"), 1, "there is no directory"),
    ],
)
def test_a_mistake_gets_one_clear_line(suffuse, file, arguments, code, message):
    found, out, err = suffuse("bench", *(argument.format(file=file) for argument in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_result_that_cannot_be_written_is_one_clear_line(suffuse, tmp_path):
    code, _, err = suffuse("bench", "--n", 60, "--dimensions", 8, *SMALL, "--no-online", "--json", tmp_path)
    assert code == 1
    assert "cannot be written" in err


def test_a_machine_that_does_not_name_its_processor_is_named_by_its_kind(monkeypatch):
    assert bench.name_cpu()
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: (_ for _ in ()).throw(FileNotFoundError()))
    assert bench.name_cpu()
