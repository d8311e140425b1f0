"""Every bar of speed and size in one run, each against its reference in the same run.

    python -m benchmarks.bars [-o out/bench] [--data ../shared/data] [--n 100000 | --quick] [--only solve,supports]

Raw results go to bars.json, the table to stdout. Features, k-NN lists and indexes are kept in OUTPUT/cache; times that
a ratio needs are measured anew in each run. `--only` takes the keys of `BARS`; rows of other bars that an earlier run
with the same n left in bars.json stay there, with the time of that run.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import offline_bars, online_bars, start_bars
from benchmarks.measure import Row, bars_table, machine
from benchmarks.subjects import Bench, code_state
from suffuse.store.files import write_json

BARS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "solve": offline_bars.solve,
    "supports": offline_bars.supports,
    "graph": offline_bars.graph,
    "build": offline_bars.build,
    "fashion": offline_bars.fashion,
    "combine": online_bars.combine,
    "query": online_bars.query,
    "hnsw": online_bars.hnsw,
    "online": online_bars.online,
    "disk": start_bars.disk,
    "cold": start_bars.cold,
    "start": start_bars.start,
}
_QUICK = 20_000


def main() -> None:
    """Measure, write raw results after each bar, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--n", type=int, default=100_000, help="elements of the synthetic set")
    parser.add_argument("--quick", action="store_true", help=f"n = {_QUICK}, and no fashion70k unless --only names it")
    parser.add_argument("--only", default="", help=f"some of {','.join(BARS)}")
    options = parser.parse_args()
    keys = (
        options.only.split(",") if options.only else [key for key in BARS if not (options.quick and key == "fashion")]
    )
    if unknown := [key for key in keys if key not in BARS]:
        parser.error(f"there is no bar {unknown[0]!r}; known are: {', '.join(BARS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    bench = Bench(n=_QUICK if options.quick else options.n, data=options.data, output=options.output)
    rows = run(bench, keys)
    print(f"\nn = {bench.n:,}; {machine()}\n")
    print(bars_table(rows))
    judged = [row.verdict for row in rows if row.verdict != "-"]
    reached = sum(verdict in ("aim", "met") for verdict in judged)
    print(f"\n{reached} of {len(judged)} reached; raw results in {options.output / 'bars.json'}")


def run(bench: Bench, keys: list[str]) -> list[Row]:
    """Measure these bars; bars.json is whole after each, so that a run that is cut short was not for nothing."""
    path = bench.output / "bars.json"
    kept: list[dict[str, Any]] = []
    if path.exists():
        kept = [row for row in json.loads(path.read_bytes())["rows"] if row["n"] == bench.n and row["key"] not in keys]
    rows: list[Row] = []
    code = code_state()
    for key in keys:
        print(f"measuring {key} ...", file=sys.stderr, flush=True)
        found = list(BARS[key](bench))
        rows += found
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        kept += [{**row.to_dict(), "n": bench.n, "when": when, "machine": machine(), "code": code} for row in found]
        write_json(path, {"rows": kept})
    if code_state() != code:
        # This process runs the old code, the processes it started the new one.
        print("the code changed during this run: do not trust what it measured", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
