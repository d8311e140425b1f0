"""Oxford5k with the official protocol: every method of `METHODS` for three whitenings, quality beside time.

    python -m benchmarks.oxford -o out/bench [--data ../shared/data]

Raw results go to oxford.json, the table to stdout. Times are of one query at a time on one thread.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from suffuse.core.params import Params
from suffuse.research.comparison import compare
from suffuse.research.datasets import read_folder
from suffuse.research.methods import Setting, Workshop
from suffuse.store.files import write_json

METHODS = ("knn", "aqe", "online", "online-early", "online-late", "paper", "graph", "refined")
WHITENINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "512, power 0.5": {"whiten": 512, "whiten_power": 0.5},
    "512, full": {"whiten": 512, "whiten_power": 1.0},
}


def main() -> None:
    """Measure, write raw results, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    folder = options.data / "oxford5k"
    if not folder.is_dir():
        print(f"no data at {folder}: nothing measured")
        return
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for whitening, parameters in WHITENINGS.items():
        with tempfile.TemporaryDirectory() as indexes:
            dataset = read_folder(folder)
            shop = Workshop(dataset, Setting(params=Params(**parameters)), Path(indexes))
            rows += [{"whitening": whitening, **result._asdict()} for result in compare(shop, METHODS)]
    write_json(options.output / "oxford.json", rows)
    print("| features | method | mAP | ms per query | offline seconds | bytes per image |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['whitening']} | {row['method']} | {row['quality']['classic']:.2f} | {row['milliseconds']:.2f}"
            f" | {row['offline_seconds']:.1f} | {row['bytes_per_image']:.0f} |"
        )


if __name__ == "__main__":
    main()
