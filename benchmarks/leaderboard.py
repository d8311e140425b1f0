"""Every set and every method in one table, with the defaults: large classes, few pictures of a thing, text.

    python -m benchmarks.leaderboard [-o out/bench] [--data ../shared/data] [--only oxford,few] [--methods knn,paper]

Small sets are drawn from the others: Oxford5k with five pictures of each landmark (six draws), coil20 with 5 and 9
views of an object, caltech101 with 4 and 8 pictures of a class, usps with 30 of a digit, fashion70k with 30 (three
draws each); the queries are others. Raw results go to leaderboard.json, the table to stdout.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import markdown
from suffuse.core.params import Params
from suffuse.research.comparison import compare
from suffuse.research.datasets import Dataset, assemble, read_class_set, read_folder, read_truth
from suffuse.research.evaluation import judge, judge_classes
from suffuse.research.methods import Setting, Workshop
from suffuse.store.files import write_json

WHITENINGS = {"as is": (None, 1.0), "0.5": (512, 0.5), "full": (512, 1.0)}
# Queries that are held out of a class set, at most, as `suffuse evaluate` does; of a small set, how many are drawn.
_HELD_OUT, _DRAWN = 500, 300
_FEW, _FEW_DRAWS, _DRAWS = 5, 6, 3
SMALL = {"coil20": (5, 9), "caltech101_rmac": (4, 8), "usps": (30,), "fashion70k": (30,)}

# A name, the data, and the parameters on top of the defaults.
Subject = tuple[str, Dataset, dict[str, Any]]


def oxford(data: Path) -> Iterator[Subject]:
    """The official protocol and the revisited one."""
    for revisited in (False, True):
        dataset = read_folder(data / "oxford5k", revisited)._replace(regional=None)
        for name, (whiten, power) in WHITENINGS.items():
            yield (
                f"{'revisited' if revisited else 'oxford5k'}, {name}",
                dataset,
                {"whiten": whiten, "whiten_power": power},
            )


def few(data: Path) -> Iterator[Subject]:
    """Oxford5k with five pictures of each landmark; the rest of the gallery stays."""
    dataset = read_folder(data / "oxford5k")._replace(regional=None)
    for draw in range(_FEW_DRAWS):
        left = leave_few(dataset, _FEW, np.random.default_rng(draw))
        for name, (whiten, power) in WHITENINGS.items():
            yield f"oxford5k, 5 each, {name}", left, {"whiten": whiten, "whiten_power": power}


def leave_few(dataset: Dataset, count: int, rng: np.random.Generator) -> Dataset:
    """A data set with `count` of the positives of each landmark; queries of one landmark begin with its name."""
    (protocol,) = dataset.protocols.values()
    landmarks = {
        name.rsplit("_", 1)[0]: judged.positives for name, judged in zip(dataset.query_names, protocol, strict=True)
    }
    kept = np.ones(len(dataset.features), bool)
    for positives in landmarks.values():
        kept[rng.permutation(positives)[count:]] = False
    row = np.cumsum(kept) - 1
    judged = [judge(row[one.positives[kept[one.positives]]], row[one.junk[kept[one.junk]]]) for one in protocol]
    names = [name for name, stays in zip(dataset.image_names, kept, strict=True) if stays]
    return dataset._replace(features=dataset.features[kept], protocols={"classic": judged}, image_names=names)


def classes(data: Path) -> Iterator[Subject]:
    """Whole class sets."""
    for name in ("coil20", "usps", "caltech101_rmac", "fashion70k"):
        path = data / f"{name}.npz"
        count = min(_HELD_OUT, len(np.load(path)["labels"]) // 10)
        yield name, read_class_set(path, count, np.random.default_rng(0)), {}


def small(data: Path) -> Iterator[Subject]:
    """Few elements of each class."""
    for name, sizes in SMALL.items():
        held = np.load(data / f"{name}.npz")
        for size in sizes:
            for draw in range(_DRAWS):
                rng = np.random.default_rng(draw)
                yield f"{name}, {size} each", draw_few(name, held["features"], held["labels"], size, rng), {}


def draw_few(name: str, features: NDArray[Any], labels: NDArray[Any], size: int, rng: np.random.Generator) -> Dataset:
    """`size` elements of each class as the gallery, and others as queries."""
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels), np.int64)  # of each element within its class
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    gallery, queries = np.flatnonzero(rank < size), order[rank[order] >= size][:_DRAWN]
    judged = judge_classes(labels[gallery], labels[queries])
    named, asked = ([str(i) for i in rows] for rows in (gallery, queries))
    return Dataset(name, features[gallery], features[queries], {"classes": judged}, "classes", named, asked)


def text(data: Path) -> Iterator[Subject]:
    """Sentence vectors."""
    for name in ("cisi", "cranfield"):
        folder = data / "text" / name
        rows = np.load(folder / "gallery.npy"), np.load(folder / "queries.npy")
        yield name, assemble(name, *rows, read_truth(folder / "ground_truth.json")), {}


KINDS: dict[str, Callable[[Path], Iterator[Subject]]] = {
    "oxford": oxford, "few": few, "classes": classes, "small": small, "text": text,
}  # fmt: skip


def main() -> None:
    """Measure, write raw results after each set, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--methods", default="knn,paper,graph,refined")
    options = parser.parse_args()
    if not (options.data / "oxford5k").is_dir():
        parser.exit(1, f"there is no data at {options.data}\n")
    options.output.mkdir(parents=True, exist_ok=True)
    methods, rows = options.methods.split(","), list[dict[str, Any]]()
    for kind in options.only.split(","):
        for name, dataset, params in KINDS[kind](options.data):
            with tempfile.TemporaryDirectory() as folder:
                shop = Workshop(dataset, Setting(params=replace(Params(), **params)), Path(folder))
                results = compare(shop, methods)
            for protocol in dataset.protocols:
                scores = {result.method: result.quality[protocol] for result in results}
                rows.append({"kind": kind, "set": name, "protocol": protocol, "n": len(dataset.features), **scores})
                print(rows[-1], flush=True)
            write_json(options.output / "leaderboard.json", rows)
    print(table(rows, methods))


def table(rows: list[dict[str, Any]], methods: list[str]) -> str:
    """The mean over draws of each set."""
    names = dict.fromkeys((row["set"], row["protocol"]) for row in rows)
    shown = []
    for name, protocol in names:
        same = [row for row in rows if (row["set"], row["protocol"]) == (name, protocol)]
        means = [f"{np.mean([row[method] for row in same]):.1f}" for method in methods]
        shown.append([name if protocol in ("classic", "classes") else f"{name}, {protocol}", str(same[0]["n"]), *means])
    return markdown(["set", "images", *methods], shown)


if __name__ == "__main__":
    main()
