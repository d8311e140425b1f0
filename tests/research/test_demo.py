"""The demo runs the main job on real data, and diffusion wins."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from suffuse import Index
from suffuse.errors import MissingExtra
from suffuse.research import demo


def test_the_demo_builds_searches_and_draws(tmp_path):
    results = demo.run(tmp_path)
    plain, expanded, paper, ours, refined = (result.mean_average_precision for result in results)
    assert 64 < plain < 70
    assert plain + 3 < expanded
    assert expanded + 8 < paper
    assert paper + 2 < ours
    assert ours >= 85
    assert refined >= 85
    assert Index.open(tmp_path / "digits-paper.index").params.graph == "paper"
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert [row["method"] for row in json.loads((tmp_path / "digits.json").read_text())] == [r.method for r in results]
    index = Index.open(tmp_path / "digits.index")
    assert index.items[3]["label"] == demo.load_digits().labels[3]
    # What the page shows: a picture for every digit, and the graph for chains.
    assert index.graph is not None
    with Image.open(Path(index.manifest.pictures["root"]) / index.items.name(3)) as picture:
        dark = 255.0 - np.asarray(picture.resize((8, 8), Image.Resampling.BOX))
    assert np.corrcoef(dark.ravel(), demo.load_digits().gallery[3])[0, 1] > 0.95
    demo.run(tmp_path)  # again into the same folder


def test_queries_are_not_in_the_gallery():
    digits = demo.load_digits()
    assert len(digits.queries) == 200
    assert len(digits.gallery) + len(digits.queries) == 1797
    assert len(np.unique(np.concatenate([digits.gallery, digits.queries]), axis=0)) == 1797


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[demo\]'"):
        demo.load_digits()
