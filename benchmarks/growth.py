"""How builds and queries grow with n: seconds by stage, memory, bytes, query times, and the exponent of each.

    python -m benchmarks.growth [--n 5000,20000,70000,100000,300000,1000000] [--graph-search hnsw] [--keep 500] ...
    python -m benchmarks.growth --only 100000
    python -m benchmarks.growth --table

Each n is measured in processes of its own and leaves a JSON file in OUTPUT/growth, so that runs can be made one at a
time; the table is made of all that are there. n = 70000 is fashion70k, all others are synthetic, of 512 dimensions up
to 100,000 elements and of 128 above, unless --dimensions says otherwise. Every parameter of an index is an option.
"""

import argparse
import dataclasses
import json
import math
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import worker
from benchmarks.measure import machine, markdown, number
from benchmarks.subjects import column_bytes
from suffuse.core.params import Params
from suffuse.offline.tasks import STAGES
from suffuse.research.synthetic import manifold
from suffuse.store.files import write_array, write_json

SIZES = (5000, 20_000, 70_000, 100_000, 300_000, 1_000_000)
FASHION = 70_000
_QUERIES = 200
# Up to here features have 512 dimensions, above 128, so that a million of them fit.
_WIDE = 100_000


def main() -> None:
    """Measure what is asked for, then print the table of all that is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--n", default=",".join(map(str, SIZES)), help="sizes, separated by commas")
    parser.add_argument("--only", type=int, help="one size")
    parser.add_argument("--dimensions", type=int, help="of synthetic features")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table")
    parser.add_argument("--leave", action="store_true", help="keep features and index of each n")
    _add_params(parser)
    options = parser.parse_args()
    folder = options.output / "growth"
    folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        params = Params(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Params)})
        for n in [options.only] if options.only else [int(size) for size in options.n.split(",")]:
            dimensions = options.dimensions or (512 if n <= _WIDE else 128)
            measure(folder, options.data, n, dimensions, params, leave=options.leave)
    runs = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    print(growth_table(runs))
    print()
    print(exponent_table(runs))


def _add_params(parser: argparse.ArgumentParser) -> None:
    """An option for each parameter, with its default."""
    for field in dataclasses.fields(Params):
        # `whiten` is None by default: a number all the same.
        kind: Any = int if field.default is None else type(field.default)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=argparse.SUPPRESS
        )


def measure(folder: Path, data: Path, n: int, dimensions: int, params: Params, *, leave: bool = False) -> None:
    """Build and query n elements in processes of their own; the result goes to a file of the folder."""
    is_fashion = n == FASHION
    if is_fashion and not (data / "fashion70k.npz").is_file():
        print(f"no fashion70k at {data}: n = {n} is left out", file=sys.stderr)
        return
    name, work = "fashion70k" if is_fashion else "synthetic", folder / f"work-{n}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    features = data / "fashion70k.npz" if is_fashion else work / "features.npy"
    print(f"measuring n = {n:,} ...", file=sys.stderr, flush=True)
    if is_fashion:
        rows = np.load(features)["features"]
        dimensions, asked = rows.shape[1], rows[:: len(rows) // _QUERIES][:_QUERIES]
    else:
        made = manifold(n + _QUERIES, dimensions, rng=np.random.default_rng(0)).features
        write_array(features, made[:n])
        asked = made[n:]
        del made
    write_array(work / "queries.npy", np.ascontiguousarray(asked))
    built = worker.run("build", features, work / "x.index", json.dumps(params.to_dict()))
    asked_ = worker.run("queries", work / "x.index", work / "queries.npy")
    changed = {name: value for name, value in params.to_dict().items() if value != Params().to_dict()[name]}
    result = {
        "n": n, "dimensions": dimensions, "set": name, "changed": changed,
        "params": params.to_dict(), "build": built, "queries": asked_, "machine": machine(),
    }  # fmt: skip
    words = "-".join([name, str(n), str(dimensions), *(f"{key}={changed[key]}" for key in sorted(changed))])
    write_json(folder / f"{words}.json", result)
    if not leave:
        shutil.rmtree(work)


def quantities(run: dict[str, Any]) -> dict[str, float]:
    """What grows: CPU seconds by stage and in all, memory, bytes, query times."""
    built, asked = run["build"], run["queries"]
    # In the order of the work; JSON has sorted them by name.
    stages = sorted(built["stages_cpu"], key=STAGES.index)
    return {
        **{f"{stage}, CPU s": built["stages_cpu"][stage] for stage in stages},
        "build, CPU s": built["cpu"],
        "build, wall s": built["wall"],
        "memory, GB": built["peak_memory"] / 1e9,
        "beyond its start, GB": (built["peak_memory"] - built["idle_memory"]) / 1e9,
        "columns, MB": column_bytes(built["files"]) / 1e6,
        "index, MB": sum(built["files"].values()) / 1e6,
        "query p50, ms": 1000 * float(np.percentile(asked["refined"]["wall"], 50)),
        "query p99, ms": 1000 * float(np.percentile(asked["refined"]["wall"], 99)),
        "p50 without second look, ms": 1000 * float(np.percentile(asked["plain"]["wall"], 50)),
    }


def kind(run: dict[str, Any]) -> str:
    """Runs of one kind differ in n alone."""
    changed = ", ".join(f"{name} {run['changed'][name]}" for name in sorted(run["changed"]))
    return f"{run['set']}, d={run['dimensions']}" + (f", {changed}" if changed else "")


def growth_table(runs: list[dict[str, Any]]) -> str:
    """A line for each run."""
    runs = sorted(runs, key=lambda run: (run["n"], kind(run)))
    figures = [quantities(run) for run in runs]
    heads = list(dict.fromkeys(name for found in figures for name in found))
    lines = [
        [f"{run['n']:,}", kind(run), *(number(found.get(head)) for head in heads)]
        for run, found in zip(runs, figures, strict=True)
    ]
    return markdown(["n", "what", *heads], lines)


def exponent_table(runs: list[dict[str, Any]]) -> str:
    """A line for each kind with at least two sizes: the exponent b of a n^b, by least squares of the logarithms."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[kind(run)].append(run)
    fits = {}
    for words, members in groups.items():
        figures = [quantities(run) for run in members]
        sizes = [run["n"] for run in members]
        if len(set(sizes)) > 1:
            shared = [name for name in figures[0] if all(name in found for found in figures)]
            fits[f"{words}: {', '.join(f'{n:,}' for n in sorted(sizes))}"] = {
                name: exponent(sizes, [found[name] for found in figures]) for name in shared
            }
    heads = list(dict.fromkeys(name for fit in fits.values() for name in fit))
    lines = [[words, *(f"{fit[head]:.2f}" if head in fit else "-" for head in heads)] for words, fit in fits.items()]
    return markdown(["exponent of n", *heads], lines)


def exponent(sizes: list[int], values: list[float]) -> float:
    """b of the line log v = a + b log n that fits best."""
    if min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


if __name__ == "__main__":
    main()
