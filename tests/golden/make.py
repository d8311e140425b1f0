"""Write the golden indexes of format version 1: run once, never again; later versions must read what is here.

    python tests/golden/make.py

A new format version gets files of its own beside these, by a copy of this script.
"""

import json
import sys
from pathlib import Path

import numpy as np

import suffuse

HERE = Path(__file__).parent
VERSION = 1

sys.path.insert(0, str(HERE.parent))
from data import clusters  # noqa: E402

SEARCHES = ({"top": 8, "seeds": 5}, {"top": 8, "method": "knn"}, {"top": 12, "seeds": 1})


def main():
    """Build both indexes, and note what they find."""
    rng = np.random.default_rng(1)
    features, queries = clusters(rng, 40, 8, spread=0.8), clusters(rng, 6, 8, spread=2.0)
    np.save(HERE / "queries.npy", queries)
    names = [{"name": f"photo {id} — Zürich", "year": 1990 + id} for id in range(16)]
    regional = suffuse.Params(k=8, truncation=30, keep=12, whiten=6, whiten_power=0.5)
    plain = suffuse.Params(k=6, truncation=20, keep=10, support="features", values="float32")
    suffuse.build(features, HERE / f"version-{VERSION}.index", regional, owners=np.arange(40) % 16, names=names)
    suffuse.build(features, HERE / f"version-{VERSION}-plain.index", plain)
    expected = []
    for name, params in ((f"version-{VERSION}.index", regional), (f"version-{VERSION}-plain.index", plain)):
        index = suffuse.Index.open(HERE / name)
        # Queries of two regions each for the regional index.
        owners = [0, 0, 1, 1, 2, 2] if index.owners is not None else None
        for search in SEARCHES:
            hits = index.search(queries, **search, owners=None if owners is None else np.array(owners))
            check_no_ties(hits.scores)
            expected.append(
                {
                    "index": name,
                    "params": params.to_dict(),
                    "name_of_3": index.items.name(3),
                    "search": search,
                    "owners": owners,
                    "ids": hits.ids.tolist(),
                    "scores": [[float(f"{score:.7g}") for score in row] for row in hits.scores],
                }
            )
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def check_no_ties(scores):
    """Rounding on another machine must not exchange two hits; hits that diffusion did not reach have the score 0."""
    gaps = scores[:, :-1] - scores[:, 1:]
    assert ((gaps > 1e-4 * np.abs(scores[:, :-1])) | (scores[:, 1:] == 0)).all(), gaps.min()


if __name__ == "__main__":
    main()
