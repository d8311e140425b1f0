"""A soak of a service whose index changes: searches all the time, a writer beside them, and nothing may go wrong.

    python -m benchmarks.soak [--minutes 10] [--connections 16] [-o out/soak.json]

A real service in a process of its own, over 20,000 synthetic images of 128 dimensions. Every connection searches as
soon as it has its answer; every tenth search is an explanation, a page or a look at an item. A writer adds and removes
through the API all the time, now and then through the library in another process, and compacts now and then.

It must end with no error, no hit that was removed before the search was sent, every added image found by its own
vector, and neither memory nor times that grow: both are told minute by minute. Memory is judged by its trend over the
second half, of what the process has for itself (`RssAnon`), beside all that it has mapped (`VmRSS`): pages of the
index's files count there, too, and belong to whoever needs memory.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.research.synthetic import manifold

_TOKEN = "soak"
# What the writer adds at once, and then removes one by one: the index keeps its size.
_BATCH = 8
# Seconds between changes by another process, between compactions, and between two looks or changes.
_ELSEWHERE, _COMPACT, _PAUSE = 40, 60, 0.2
# Seconds after which a connection is not used again: a server closes those that are idle.
_IDLE = 2
_PROGRAM = "import typer; from suffuse.cli.serve import serve; typer.run(serve)"
_OTHER = """
import json, sys
import numpy as np
from suffuse import Index
from suffuse.errors import IndexBusy

rows = np.load(sys.argv[2])
try:
    index = Index.open(sys.argv[1])
    added = index.add(rows, names=[{"name": f"elsewhere {row}"} for row in range(len(rows))]).ids.tolist()
except IndexBusy:
    added = []
print(json.dumps(added))
"""


class Answered(NamedTuple):
    """One request of a searcher."""

    at: float  # seconds since the start, when it was sent
    kind: str
    milliseconds: float


class Memory(NamedTuple):
    """What the service has at a moment."""

    at: float
    resident: float  # MB, with the pages of files that it has mapped
    own: float  # MB


class World:
    """What the writer has done, as far as the service has confirmed it; and what went wrong."""

    def __init__(self, features: NDArray[np.float32], spare: NDArray[np.float32]) -> None:
        self.spare, self.next_spare = spare, 0
        self.alive: dict[int, NDArray[np.float32]] = dict(enumerate(features))
        self.removed: dict[int, float] = {}  # id -> when its removal was confirmed
        self.began = time.perf_counter()
        self.answers: list[Answered] = []
        self.memory: list[Memory] = []
        self.generations: list[tuple[float, int, float]] = []
        self.errors: list[str] = []
        self.counts: Counter[str] = Counter()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def wrong(self, what: str) -> None:
        """Remember what must not happen."""
        self.counts["errors"] += 1
        if len(self.errors) < 100:
            self.errors.append(f"{self.now():.1f} s: {what}")

    def fresh(self, count: int) -> NDArray[np.float32]:
        """Rows that have not been added yet, as far as there are any."""
        at = np.arange(self.next_spare, self.next_spare + count) % len(self.spare)
        self.next_spare += count
        return self.spare[at]


class Client:
    """One connection, raw: a client library takes longer than the service."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._last = 0.0

    async def ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and content of an answer."""
        if self._streams is None or time.perf_counter() > self._last + _IDLE:
            if self._streams is not None:
                self._streams[1].close()
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        body = b"" if content is None else json.dumps(content).encode()
        kind = "" if content is None else "Content-Type: application/json\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {_TOKEN}\r\n{kind}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None
        content = await reader.readexactly(int(length[1]))
        self._last = time.perf_counter()
        return int(answer[9:12]), json.loads(content)


def main() -> None:
    """Build, serve, search and change, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--cache", type=Path, help="where the built index is kept, to be copied by the next run")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/soak.json"))
    options = parser.parse_args()
    made = manifold(2 * options.n, options.dimensions, rng=np.random.default_rng(0)).features
    world = World(made[: options.n], made[options.n :])
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "soak.index"
        if options.cache is None:
            _build(index, made[: options.n])
        else:
            if not options.cache.exists():
                _build(options.cache, made[: options.n])
            shutil.copytree(options.cache, index)
        with _served(index) as (process, host, port):
            world.began = time.perf_counter()
            asyncio.run(_soaked(world, index, process, (host, port), options.connections, 60 * options.minutes))
            ended = process.poll()
        if ended is not None:
            world.wrong(f"the service ended by itself, exit code {ended}")
    result = _result(world)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(
        json.dumps({"options": {name: str(value) for name, value in vars(options).items()}, **result}, indent=2) + "\n"
    )
    _print(result)
    if result["errors"]:
        sys.exit(1)


def _build(path: Path, features: NDArray[np.float32]) -> None:
    import suffuse

    names = [{"name": f"{id % 100:02}/{id}.jpg", "year": 1990 + id % 30} for id in range(len(features))]
    suffuse.build(features, path, suffuse.Params(with_graph=True), names=names)


@contextlib.contextmanager
def _served(index: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """A service in a process of its own; what it says goes to a file, since nobody reads a pipe all the time."""
    command = [sys.executable, "-c", _PROGRAM, str(index), "--port", "0"]
    environment, log = {**os.environ, "SUFFUSE_TOKEN": _TOKEN}, index.parent / "service.log"
    with log.open("w") as stream, subprocess.Popen(command, stderr=stream, env=environment) as process:
        try:
            while not (found := re.search(r"http://([\d.]+):(\d+)/", log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield process, found[1], int(found[2])
        finally:
            process.terminate()
            process.wait()
            print(log.read_text()[-5000:], file=sys.stderr)


async def _soaked(
    world: World, index: Path, process: subprocess.Popen[bytes], address: tuple[str, int], connections: int, end: float
) -> None:
    await Client(*address).ask("GET", "/api/info")  # waits until it is warm
    world.began = time.perf_counter()
    searchers = [_search(world, Client(*address), number, end) for number in range(connections)]
    await asyncio.gather(
        *searchers, _change(world, Client(*address), index, end), _watch(world, Client(*address), process.pid, end)
    )


async def _search(world: World, client: Client, number: int, end: float) -> None:
    rng = np.random.default_rng(number)
    while world.now() < end:
        kind = str(rng.choice(["vector", "items", "explain", "page", "item"], p=[0.5, 0.4, 0.04, 0.03, 0.03]))
        try:
            await _ask_once(world, client, kind, rng)
        except (OSError, EOFError, AssertionError, ValueError) as error:
            world.wrong(f"{kind}: the connection broke: {error!r}")
            return


async def _ask_once(world: World, client: Client, kind: str, rng: np.random.Generator) -> None:
    known = list(world.alive)
    first, second = (known[place] for place in rng.integers(0, len(known), 2))
    method, path, content = _request(kind, first, second, world.alive[first], rng)
    sent = world.now()
    status, answer = await client.ask(method, path, content)
    world.answers.append(Answered(sent, kind, 1000 * (world.now() - sent)))
    # What was removed meanwhile may be told to be missing.
    gone = first not in world.alive or second not in world.alive
    if status != 200:
        if not (gone and status in (404, 422)):
            world.wrong(f"{kind} {path} was answered by {status}: {json.dumps(answer)[:300]}")
        return
    if kind in ("vector", "items"):
        hits = [hit["id"] for result in answer["results"].values() for hit in result["hits"]]
        for id in hits:
            if world.removed.get(id, np.inf) < sent:
                world.wrong(f"{id} was found, although it had been removed before")
    if kind == "vector" and not gone:
        found = [hit["id"] for hit in answer["results"]["knn"]["hits"]]
        world.counts["own vectors"] += 1
        if first not in found[:3]:
            world.wrong(f"{first} was not found by its own vector, but {found[:3]}")


def _request(
    kind: str, first: int, second: int, vector: NDArray[np.float32], rng: np.random.Generator
) -> tuple[str, str, Any]:
    match kind:
        case "vector":
            return "POST", "/api/search", {"vectors": [vector.tolist()]}
        case "items":
            return "POST", "/api/search", {"positive": [first], "filter": {"year": {"min": 1990}}}
        case "explain":
            return "GET", f"/api/explain?query=i:{first}&item={second}", None
        case "page":
            return "GET", f"/api/items?shuffle={first % 3}&offset={int(rng.integers(0, 1000))}", None
    return "GET", f"/api/items/{first}", None


async def _change(world: World, client: Client, index: Path, end: float) -> None:
    rng, size = np.random.default_rng(99), len(world.alive)
    elsewhere, compact = _ELSEWHERE / 2, float(_COMPACT)
    while world.now() < end:
        if world.now() > compact:
            await _compact(world, client)
            compact = world.now() + _COMPACT
        elif world.now() > elsewhere:
            await _add_elsewhere(world, index)
            elsewhere = world.now() + _ELSEWHERE
        elif len(world.alive) < size + _BATCH:
            await _add(world, client)
        else:
            await _remove(world, client, int(rng.choice(list(world.alive))))
        await asyncio.sleep(_PAUSE)


async def _add(world: World, client: Client) -> None:
    rows = world.fresh(_BATCH)
    request = {"vectors": rows.tolist(), "metadata": [{"year": 2000 + row % 20} for row in range(len(rows))]}
    status, answer = await client.ask("POST", "/api/items", request)
    if status == 409:
        world.counts["told to wait"] += 1
    elif status != 201:
        world.wrong(f"an addition was answered by {status}: {json.dumps(answer)[:300]}")
    else:
        world.counts["added"] += len(rows)
        world.alive.update(zip(answer["ids"], rows, strict=True))


async def _remove(world: World, client: Client, id: int) -> None:
    status, answer = await client.ask("DELETE", f"/api/items/{id}")
    if status == 409:
        world.counts["told to wait"] += 1
    elif status != 200:
        world.wrong(f"the removal of {id} was answered by {status}: {json.dumps(answer)[:300]}")
    else:
        world.counts["removed"] += 1
        world.removed[id] = world.now()
        del world.alive[id]


async def _add_elsewhere(world: World, index: Path) -> None:
    """Another process changes the index; the service must notice by itself."""
    rows = world.fresh(_BATCH)
    file = index.parent / "rows.npy"
    np.save(file, rows)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OTHER, str(index), str(file), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode:
        world.wrong(f"another process could not add: exit code {process.returncode}")
        return
    await asyncio.sleep(3)  # the service looks every second
    ids = json.loads(told)
    world.counts["added elsewhere"] += len(ids)
    world.alive.update(zip(ids, rows, strict=False))


async def _compact(world: World, client: Client) -> None:
    status, answer = await client.ask("POST", "/api/compact")
    if status != 202:
        world.wrong(f"a compaction was answered by {status}: {json.dumps(answer)[:300]}")
        return
    while answer["compacting"]:
        await asyncio.sleep(_PAUSE)
        status, answer = await client.ask("GET", "/api/changes")
    if answer["last_error"] is not None:
        world.wrong(f"a compaction failed: {answer['last_error']}")
    world.counts["compactions"] += 1


async def _watch(world: World, client: Client, pid: int, end: float) -> None:
    """Look at the memory of the service, and at its generation."""
    while world.now() < end:
        status = Path(f"/proc/{pid}/status").read_text()
        resident, own = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "RssAnon"))
        world.memory.append(Memory(world.now(), resident, own))
        _, changes = await client.ask("GET", "/api/changes")
        world.generations.append((world.now(), changes["generation"], changes["stale"]))
        await asyncio.sleep(1)


def _result(world: World) -> dict[str, Any]:
    whole = int(world.memory[-1].at // 60) + 1
    minutes = []
    for minute in range(whole):
        times = [one.milliseconds for one in world.answers if one.at // 60 == minute]
        memory = [one for one in world.memory if one.at // 60 == minute]
        told = [one for one in world.generations if one[0] // 60 == minute]
        if not times or not memory or not told:
            continue
        middle, late = np.percentile(times, [50, 99]).tolist()
        minutes.append(
            {
                "minute": minute + 1,
                "requests": len(times),
                "p50": middle,
                "p99": late,
                "resident": float(np.median([one.resident for one in memory])),
                "own": float(np.median([one.own for one in memory])),
                "own_most": max(one.own for one in memory),
                "generation": told[-1][1],
                "stale": told[-1][2],
            }
        )
    half = [one for one in world.memory if one.at >= world.memory[-1].at / 2]
    trends = {
        name: float(np.polyfit([one.at / 60 for one in half], [getattr(one, name) for one in half], 1)[0])
        for name in ("resident", "own")
    }
    return {
        "requests": len(world.answers),
        "errors": world.counts["errors"],
        "told": world.errors,
        "counts": dict(world.counts),
        "trend_mb_per_minute": trends,
        "minutes": minutes,
        "memory": [one._asdict() for one in world.memory],
    }


def _print(result: dict[str, Any]) -> None:
    print("\n| minute | requests | p50 ms | p99 ms | resident MB | own MB | own, most | generation | stale |")
    print(f"|---{8 * '|---:'}|")
    for row in result["minutes"]:
        print(
            f"| {row['minute']} | {row['requests']:,} | {row['p50']:.1f} | {row['p99']:.1f} | {row['resident']:.0f} |"
            f" {row['own']:.0f} | {row['own_most']:.0f} | {row['generation']} | {row['stale']:.1%} |"
        )
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(result["counts"].items()))
    trends = result["trend_mb_per_minute"]
    print(f"\n{result['requests']:,} requests, {result['errors']} errors; {counts}")
    print(f"memory in the second half: {trends['own']:+.2f} MB/min own, {trends['resident']:+.2f} MB/min resident")
    for line in result["told"][:20]:
        print(line)


if __name__ == "__main__":
    main()
