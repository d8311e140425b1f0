"""One build, or one first query, in a process of its own, so that its memory and its cold start are its own.

    python -m benchmarks.worker build FEATURES INDEX PARAMS_JSON
    python -m benchmarks.worker queries INDEX QUERIES
    python -m benchmarks.worker first INDEX QUERIES SEEDS

Each prints one JSON object. `build_in_process` and the like start it and read that.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import peak_memory
from suffuse.core.blas import cores

_TOP = 100


def run(*arguments: str | Path) -> dict[str, Any]:
    """Start a worker, wait for it, and read what it measured."""
    command = [sys.executable, "-m", "benchmarks.worker", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


class StageClock:
    """The progress of a build, as CPU seconds of the whole process for each stage."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def __call__(self, stage: str, _done: int, _total: int) -> None:
        """The first call of a stage is its begin, the last one its end."""
        self.began.setdefault(stage, time.process_time())
        self.ended[stage] = time.process_time()

    @property
    def cpu(self) -> dict[str, float]:
        """CPU seconds by stage."""
        return {stage: self.ended[stage] - began for stage, began in self.began.items()}


def build(features: str, index: str, params: str) -> dict[str, Any]:
    """Build from a file: seconds by stage, CPU seconds, the most memory, bytes by file."""
    from suffuse.core.params import Params
    from suffuse.offline.build import build as build_index
    from suffuse.store.manifest import read_manifest

    idle = peak_memory()  # what the interpreter and the libraries take by themselves
    clock, cpu, wall = StageClock(), time.process_time(), time.perf_counter()
    summary = build_index(features, index, Params(**json.loads(params)), force=True, progress=clock)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "cpu": cpu,
        "wall": wall,
        "stages_wall": summary.seconds,
        "stages_cpu": clock.cpu,
        "peak_memory": peak_memory(),
        "idle_memory": idle,
        "files": {path.name: path.stat().st_size for path in sorted(Path(index).rglob("*")) if path.is_file()},
        "params": read_manifest(index).params.to_dict(),
        "counts": read_manifest(index).counts,
        "graph": read_manifest(index).graph,
        "threads": cores(),
    }


def queries(index: str, file: str) -> dict[str, Any]:
    """Every query one at a time, on one thread, warm: seconds of each with and without the second look, and memory."""
    import numpy as np

    from benchmarks.measure import interleaved_queries, single_thread
    from suffuse.index.index import Index

    opened, rows = Index.open(index), np.load(file)
    with single_thread():
        refined, plain = interleaved_queries(
            len(rows),
            lambda q: opened.search(rows[q : q + 1], top=_TOP),
            lambda q: opened.search(rows[q : q + 1], top=_TOP, refine=0),
        )
    return {"refined": refined.to_dict(), "plain": plain.to_dict(), "peak_memory": peak_memory(), "threads": 1}


def first(index: str, file: str, seeds: str) -> dict[str, Any]:
    """Open an index and answer one query, by seeds that are known, or wholly if there are none."""
    started = time.perf_counter()
    import numpy as np

    from suffuse.core.blas import load_faiss
    from suffuse.index.index import Index

    load_faiss()
    query, known = np.load(file)[:1], None if seeds == "none" else np.load(seeds)
    imported = time.perf_counter()
    opened = Index.open(index)
    ready = time.perf_counter()
    if known is None:
        opened.search(query, top=_TOP, refine=0)
    else:
        opened.combine(known["ids"][:1], known["sims"][:1], top=_TOP, refine=0)
    answered = time.perf_counter()
    return {"imports": imported - started, "open": ready - imported, "query": answered - ready}


def main() -> None:
    """Do what the first argument says."""
    task, *arguments = sys.argv[1:]
    tasks: dict[str, Callable[..., dict[str, Any]]] = {"build": build, "queries": queries, "first": first}
    print(json.dumps(tasks[task](*arguments)))


if __name__ == "__main__":
    main()
