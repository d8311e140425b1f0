"""What it costs to change an index, and what a change that is fast loses until the index is compacted.

    python -m benchmarks.living quality [--data ../shared/data] [--batches 10] [--orders 6]
    python -m benchmarks.living cost [--n 100000] [--dimensions 512]

`quality`: Oxford5k, built from 90% of the images and grown to all of them in batches; mAP of the full build, of the
grown index, and after `compact`. Whitening is learned on all images beforehand, so that nothing but growth differs. All
that in several random orders of the images, from `--seed` on, where 0 is the order of the files: it is luck which
images come late, and which columns share their supports.
`cost`: CPU and wall seconds of adding 1, 100 and 1,000 elements, of removing 100, and of compacting, as shares of what
a build takes, all in one run; synthetic features.
"""

import argparse
import functools
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import markdown
from suffuse import Index, Params, build
from suffuse.core.features import apply_whitening, learn_whitening, unit_rows
from suffuse.research.datasets import read_folder
from suffuse.research.evaluation import mean_average_precision
from suffuse.research.synthetic import manifold
from suffuse.store.files import write_json

_FIRST = 0.9
_SETTINGS: dict[str, float | None] = {"as they are": None, "512, power 0.5": 0.5, "512, full": 1.0}


def main() -> None:
    """Measure, write raw results, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("quality", "cost"))
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.what == "cost":
        rows = cost(options.n, options.dimensions, options.seed)
    elif not (folder := options.data / "oxford5k").is_dir():
        print(f"no data at {folder}: nothing measured")
        return
    else:
        seeds = range(options.seed, options.seed + options.orders)
        rows = over_orders([quality(folder, options.batches, seed) for seed in seeds])
    write_json(options.output / f"living-{options.what}.json", rows)
    print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> str:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    shown = ([_shown(row.get(head, "")) for head in heads] for row in rows)
    return markdown(heads, shown)


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def quality(folder: Path, batches: int, seed: int) -> list[dict[str, Any]]:
    """mAP of a full build, of one that was grown, and after compaction, for three whitenings."""
    dataset = read_folder(folder)
    count = len(dataset.features)
    order = np.random.default_rng(seed).permutation(count) if seed else np.arange(count)
    first = round(_FIRST * len(order))
    rows = []
    for name, power in _SETTINGS.items():
        features, queries = _whitened(dataset.features, dataset.queries, power)
        features = features[order]

        def evaluated(index: Index, refine: int | None, asked: NDArray[Any] = queries) -> float:
            ranking = order[index.search(asked, top=len(index), refine=refine).ids]
            return 100 * mean_average_precision(ranking, dataset.protocols["classic"], dataset.kind).mean

        with tempfile.TemporaryDirectory() as work:
            build(features, Path(work) / "full", Params())
            build(features[:first], Path(work) / "grown", Params())
            full, grown = (Index.open(Path(work) / kind) for kind in ("full", "grown"))
            for batch in np.array_split(features[first:], batches):
                summary = grown.add(batch)
            for look, refine in (("graph", 0), ("refined", None)):
                row: dict[str, Any] = {"features": name, "method": look, "full": evaluated(full, refine)}
                rows.append(row | {"grown": evaluated(grown, refine), "stale": summary.stale})
            grown.compact()
            for row, refine in zip(rows[-2:], (0, None), strict=True):
                row["compacted"] = evaluated(grown, refine)
                row["loss"] = row["full"] - row["grown"]
                print(seed, row, flush=True)
    return rows


def over_orders(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The mean of each number over all orders, how much the full build varies, and the loss of each order."""
    rows = []
    for same in zip(*runs, strict=True):
        row = dict(same[0])
        for number in ("full", "grown", "stale", "compacted", "loss"):
            row[number] = float(np.mean([one[number] for one in same]))
        row["full, deviation"] = float(np.std([one["full"] for one in same]))
        rows.append(row | {"losses": ", ".join(f"{one['loss']:.2f}" for one in same)})
    return rows


def _whitened(features: NDArray[Any], queries: NDArray[Any], power: float | None) -> tuple[NDArray[Any], NDArray[Any]]:
    if power is None:
        return features, queries
    whitening = learn_whitening(features, "features", 512, power)
    gallery, asked = (apply_whitening(unit_rows(rows, "rows"), whitening, "rows") for rows in (features, queries))
    return gallery, asked


# How often each change is made: it takes a second or two, and so does what else goes on in a machine.
_REPETITIONS = 3


def cost(n: int, dimensions: int, seed: int) -> list[dict[str, Any]]:
    """Seconds of each kind of change, the median of several, as shares of those of builds before and after them."""
    features = manifold(n + 1000, dimensions, rng=np.random.default_rng(seed)).features

    def adding(count: int) -> Callable[[Index], Any]:
        return lambda index: index.add(features[n : n + count])

    changes = {f"add {count:,}": adding(count) for count in (1, 100, 1000)}
    changes["remove 100"] = lambda index: index.remove(np.arange(100))
    taken: dict[str, list[tuple[float, float]]] = {what: [] for what in ("build", *changes, "compact")}
    summaries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "cost.index"
        _warm(Path(work) / "warm.index", dimensions)
        taken["build"].append(_timed(lambda: build(features[:n], path, Params()))[0])
        for repetition in range(_REPETITIONS):
            for what, change in changes.items():
                copy = Path(work) / f"{repetition} {what}"
                # Links: a change never writes to a file that is there.
                shutil.copytree(path, copy, copy_function=os.link)
                index = Index.open(copy)
                seconds, summaries[what] = _timed(functools.partial(change, index))
                taken[what].append(seconds)
            index.add(features[n:])
            taken["compact"].append(_timed(index.compact)[0])
        taken["build"].append(_timed(lambda: build(features[:n], Path(work) / "again.index", Params()))[0])
    print(taken)
    return [_row(what, times, taken["build"], summaries.get(what)) for what, times in taken.items()]


def _timed(work: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Wall and CPU seconds, and what came of it."""
    wall, cpu = time.perf_counter(), _cpu()
    result = work()
    return (time.perf_counter() - wall, _cpu() - cpu), result


def _row(
    what: str, times: list[tuple[float, float]], builds: list[tuple[float, float]], summary: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {"change": what}
    seconds, whole = np.median(times, axis=0), np.mean(builds, axis=0)
    for place, kind in enumerate(("wall", "CPU")):
        row |= {f"{kind} s": float(seconds[place]), f"% of build, {kind}": float(100 * seconds[place] / whole[place])}
    return row if summary is None else row | {"solved": summary.solved, "stale": summary.stale}


def _warm(path: Path, dimensions: int) -> None:
    """Load every kernel, which is no part of what is measured."""
    features = manifold(600, dimensions, rng=np.random.default_rng(0)).features
    build(features[:500], path, Params())
    index = Index.open(path)
    index.add(features[500:])
    index.remove([0])
    index.compact()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
