"""Oxford5k with the official protocol: mAP of k-NN, AQE and both supports, for three whitenings, beside time.

    python -m benchmarks.oxford -o out/bench [--data ../shared/data]

Raw results go to oxford.json, the table to stdout.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse import Index, Params, build
from suffuse.arrays import write_json
from suffuse.baselines import average_query_expansion
from suffuse.evaluation import average_precision

WHITENINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "512, power 0.5": {"whiten": 512, "whiten_power": 0.5},
    "512, full": {"whiten": 512, "whiten_power": 1.0},
}
SUPPORTS: dict[str, dict[str, Any]] = {
    "features": {"support": "features", "keep": 1000},
    "graph": {"support": "graph"},
}

Ranking = Callable[[int], NDArray[np.integer]]


def main() -> None:
    """Measure, write raw results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    folder = options.data / "oxford5k"
    if not folder.is_dir():
        print(f"no data at {folder}: nothing measured")
        return
    options.output.mkdir(parents=True, exist_ok=True)
    results = measure(folder)
    write_json(options.output / "oxford.json", results)
    print("| features | method | mAP | ms per query, one at a time | offline seconds | MB on disk |")
    print("|---|---|---|---|---|---|")
    for r in results:
        print(
            f"| {r['whitening']} | {r['method']} | {r['map']:.2f} | {r['milliseconds']:.2f}"
            f" | {r['offline_seconds']:.1f} | {r['megabytes']:.1f} |"
        )


def measure(folder: Path) -> list[dict[str, Any]]:
    """One row for each whitening and method."""
    truth = json.loads((folder / "ground_truth.json").read_bytes())["queries"]
    queries = np.load(folder / "queries_rmac.npy")
    rows: list[dict[str, Any]] = []
    for whitening, parameters in WHITENINGS.items():
        with tempfile.TemporaryDirectory() as directory:
            for support, choice in SUPPORTS.items():
                path = Path(directory) / support
                summary = build(folder / "gallery_rmac.npy", path, Params(**parameters, **choice))
                index = Index.open(path)

                def add(method: str, search: Ranking, seconds: float = 0.0, size: int = 0, w: str = whitening) -> None:
                    rows.append({"whitening": w, "method": method, "offline_seconds": seconds, "megabytes": size / 1e6})
                    rows[-1] |= {"map": score(search(len(truth)), truth), "milliseconds": per_query(search, len(truth))}

                if support == "features":
                    add("knn", lambda m, i=index: i.search(queries[:m], len(i) if m > 1 else 10, method="knn").ids)  # type: ignore[misc]
                    add("aqe", lambda m, i=index: aqe(i, queries[:m]))  # type: ignore[misc]
                add(
                    support,
                    lambda m, i=index: i.search(queries[:m], len(i) if m > 1 else 10).ids,  # type: ignore[misc]
                    sum(summary.seconds.values()),
                    summary.bytes,
                )
    return rows


def aqe(index: Index, queries: NDArray[Any]) -> NDArray[np.integer]:
    """Average query expansion with ten neighbours; ten hits for a single query, else the full ranking."""
    top = len(index) if len(queries) > 1 else 10
    return average_query_expansion(index.prepare(queries), index.features, top).ids


def score(rankings: NDArray[np.integer], truth: list[dict[str, Any]]) -> float:
    """Official mAP in per cent."""
    pairs = zip(rankings, truth, strict=True)
    return 100 * float(np.mean([average_precision(r, np.array(t["ok"]), np.array(t["junk"])) for r, t in pairs]))


def per_query(search: Ranking, repeats: int) -> float:
    """Median milliseconds of one query on its own, top 10."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        search(1)
        times.append((time.perf_counter() - started) * 1000)
    return float(np.median(times))


if __name__ == "__main__":
    main()
