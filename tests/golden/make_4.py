"""Write the golden indexes of format version 4: run once, never again; later versions must read what is here.

    python tests/golden/make_4.py

A new format version gets files of its own beside these, by a copy of this script. The queries are those of version 1.
"""

import json
import sys
from pathlib import Path

import numpy as np

import suffuse

HERE = Path(__file__).parent

sys.path.insert(0, str(HERE.parents[1]))
from tests.support.data import clusters  # noqa: E402

SEARCHES = (
    {"top": 8, "seeds": 5, "refine": 0},
    {"top": 8, "method": "knn"},
    {"top": 6, "seeds": 3, "refine": 12},
    {"top": 100, "seeds": 2, "refine": 0},  # as far as districts reach, and on by cosine
)


def main():
    """Build both indexes, change them, and note what they find."""
    rng = np.random.default_rng(10)
    features, queries = clusters(rng, 44, 8, spread=0.9), np.load(HERE / "queries.npy")
    names = [{"name": f"photo {id} — Zürich", "year": 1990 + id} for id in range(16)]
    regional = suffuse.Params(k=5, truncation=30, keep=10, whiten=6, whiten_power=0.5)
    images = suffuse.Params(k=5, truncation=40, keep=26)  # more entries than the head holds
    owners = np.arange(40) % 14
    suffuse.build(features[:40], HERE / "version-4.index", regional, owners=owners, names=names[:14])
    with_segment = suffuse.Index.open(HERE / "version-4.index")
    with_segment.add(features[40:], owners=np.array([0, 1, 0, 1]), names=names[14:])
    with_segment.remove([5])
    suffuse.build(features[:34], HERE / "version-4-images.index", images)
    compacted = suffuse.Index.open(HERE / "version-4-images.index")
    compacted.remove([2, 9])
    compacted.compact()  # a base of its own, with ids.npy
    compacted.replace([4, 11], features[34:36])  # and a segment over it
    (HERE / "version-4.index" / "writer.lock").unlink()
    (HERE / "version-4-images.index" / "writer.lock").unlink()
    expected = []
    for name, params in (("version-4.index", regional), ("version-4-images.index", images)):
        index = suffuse.Index.open(HERE / name)
        # Queries of two regions each for the regional index.
        owners = [0, 0, 1, 1, 2, 2] if index.owners is not None else None
        for search in SEARCHES:
            hits = index.search(queries, **search, owners=None if owners is None else np.array(owners))
            check_no_ties(hits.scores)
            expected.append(
                {
                    "index": name,
                    "version": 4,
                    "params": params.to_dict(),
                    "name_of_3": index.items.name(3),
                    "search": search,
                    "owners": owners,
                    "ids": hits.ids.tolist(),
                    "scores": [[float(f"{score:.7g}") for score in row] for row in hits.scores],
                }
            )
    (HERE / "expected-4.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def check_no_ties(scores):
    """Rounding on another machine must not exchange two hits; those of the same districts have the same score."""
    gaps = scores[:, :-1] - scores[:, 1:]
    assert ((gaps > 1e-5 * np.abs(scores[:, :-1])) | (gaps == 0)).all(), gaps.min()


if __name__ == "__main__":
    main()
