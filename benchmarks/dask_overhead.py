"""What a Dask cluster costs: the same build by 2 threads of one process, and by 2 workers of a local cluster.

    python -m benchmarks.dask_overhead [--n 70000] [--repetitions 1]

Both use 2 cores. n = 70000 is fashion70k, any other n synthetic. Each build is a process of its own, timed from start
to end, children included (on Linux), and in turn with the other one; the result goes to OUTPUT/dask_overhead.json.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Nothing heavy: the workers of a local cluster import this module, too.
BAR = 1.15
FASHION = 70_000
_WORKERS = 2
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Time both kinds of builds and compare the indexes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--n", type=int, default=FASHION)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("KIND", "FEATURES", "INDEX"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(build(*options.child)))
        return
    if options.n == FASHION and not (options.data / "fashion70k.npz").is_file():
        sys.exit(f"no fashion70k at {options.data}; give another --n, or --data")
    work = options.output / "dask_overhead"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    features = _features(options.n, options.data, work)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_WORKERS])  # for all children
    if sys.platform == "linux":
        # The process that workers are forked from outlives its parent: it becomes our child, and its time is counted.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runs: dict[str, list[dict[str, Any]]] = {"threads": [], "dask": []}
    for repetition in range(options.repetitions):
        for kind in sorted(runs, reverse=repetition % 2 == 0):
            print(f"building by {kind} ...", file=sys.stderr, flush=True)
            runs[kind].append(_timed(kind, features, work / f"{kind}.index"))
    same = _same(work / "threads.index", work / "dask.index")
    _report(options, runs, same)
    shutil.rmtree(work)


def _features(n: int, data: Path, work: Path) -> Path:
    if n == FASHION:
        return data / "fashion70k.npz"
    import numpy as np

    from suffuse.research.synthetic import manifold
    from suffuse.store.files import write_array

    write_array(work / "features.npy", manifold(n, 512, rng=np.random.default_rng(0)).features)
    return work / "features.npy"


def _timed(kind: str, features: Path, index: Path) -> dict[str, Any]:
    """A build in a process: seconds of the whole, CPU seconds of it and its children, and what it says of itself."""
    command = [sys.executable, "-m", "benchmarks.dask_overhead", "--child", kind, str(features), str(index)]
    before, load, started = resource.getrusage(resource.RUSAGE_CHILDREN), os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - started
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu, "load before": load, **json.loads(done.stdout.splitlines()[-1])}


def build(kind: str, features: str, index: str) -> dict[str, Any]:
    """Build by threads, or on a local cluster: seconds of the call and of its stages."""
    from suffuse.offline.cluster import client_of

    cluster = client_of(f"local:{_WORKERS}") if kind == "dask" else contextlib.nullcontext()
    with cluster as client:
        from suffuse.offline.build import build as build_index

        started = time.perf_counter()
        jobs = _WORKERS if client is None else None
        summary = build_index(features, index, executor=client, jobs=jobs, force=True)
        return {"build": time.perf_counter() - started, "stages": summary.seconds}


def _same(one: Path, other: Path) -> bool:
    """Whether two directories hold the same files with the same bytes."""
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def _report(options: argparse.Namespace, runs: dict[str, list[dict[str, Any]]], same: bool) -> None:
    from benchmarks.measure import machine, markdown
    from suffuse.store.files import write_json

    # The best repetition: what disturbs a build on a shared machine only ever adds.
    best = {kind: min(found, key=lambda run: run["wall"]) for kind, found in runs.items()}
    ratios = {what: best["dask"][what] / best["threads"][what] for what in ("wall", "build", "cpu")}
    heads = ["", "whole process, s", "build() alone, s", "CPU, s", "stages, s"]
    lines = [
        [
            kind,
            *(f"{run[what]:.1f}" for what in ("wall", "build", "cpu")),
            ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in run["stages"].items()),
        ]
        for kind, run in best.items()
    ]
    lines.append(["ratio", *(f"{ratio:.3f}" for ratio in ratios.values()), ""])
    print(markdown(heads, lines))
    print(f"\nn = {options.n:,}, {_WORKERS} cores, load {os.getloadavg()[0]:.1f}; bar: at most {BAR} of the wall time")
    print("the two indexes are identical" if same else "THE TWO INDEXES DIFFER")
    write_json(
        options.output / "dask_overhead.json",
        {"n": options.n, "runs": runs, "ratios": ratios, "identical": same, "machine": machine()},
    )
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
