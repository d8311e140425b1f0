"""Load on a running service: mixed requests from many connections, against the same requests one at a time.

    python -m benchmarks.load [--n 20000] [--requests 10000] [--connections 32]

Three loads: `quarter` and `half`, where requests arrive at random moments at that share of what the service can do, as
people's do; and `full`, where each connection asks again as soon as it has its answer, which shows what the service can
do: there the time of an answer is the number of connections divided by the requests per second, whatever the service.
So with c cores and requests that take the processor all their time, `full` is 32 / c times the lone p50 at best.
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

# How often each kind is asked, in 100 requests.
_MIX = {"search": 30, "knn": 10, "feedback": 15, "explain": 15, "items": 15, "item": 10, "info": 5}
# What the two paced loads ask for, of what `full` reached.
_PACES = (0.25, 0.5)


class Request(NamedTuple):
    """The bytes of one request."""

    kind: str
    data: bytes


class Answered(NamedTuple):
    """What became of a request."""

    kind: str
    status: int
    milliseconds: float


def main() -> None:
    """Build, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000, help="elements of the synthetic index")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--index", type=Path, help="an index that is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index = options.index or _build(Path(folder) / "load.index", options.n, options.dimensions)
        with _served(index) as (host, port):
            asyncio.run(_measure(host, port, options.requests, options.connections))


def _build(path: Path, n: int, dimensions: int) -> Path:
    import suffuse
    from suffuse.research.synthetic import manifold

    features = manifold(n, dimensions, rng=np.random.default_rng(0)).features
    names = [{"name": f"{id % 100:02}/{id}.jpg", "group": f"g{id % 20}", "year": 1990 + id % 30} for id in range(n)]
    suffuse.build(features, path, suffuse.Params(with_graph=True), names=names)
    return path


@contextlib.contextmanager
def _served(index: Path) -> Iterator[tuple[str, int]]:
    """A server in a process of its own."""
    program = "import sys, typer; from suffuse.cli.serve import serve; typer.run(serve)"
    command = [sys.executable, "-c", program, str(index), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"http://([\d.]+):(\d+)/", process.stderr.readline())
            assert found is not None
            yield found[1], int(found[2])
        finally:
            process.terminate()


async def _measure(host: str, port: int, count: int, connections: int) -> None:
    images = json.loads((await _ask_one(host, port, _get("info", "/api/info")))[1])["images"]
    requests = _mixed(np.random.default_rng(1), images, count)
    alone = await _asked(host, port, requests[: max(count // 10, 200)], 1, None)
    full = await _asked(host, port, requests, connections, None)
    quarter, half = [await _asked(host, port, requests, connections, pace * full[1]) for pace in _PACES]
    loads = {"alone": alone, "quarter": quarter, "half": half, "full": full}
    for name, (answers, rate) in loads.items():
        errors = sum(answer.status != 200 for answer in answers)
        print(f"{name}: {len(answers):,} requests, {errors} errors, {rate:,.0f} per second")
    del loads["alone"]
    print(f"\n| request | lone p50 ms | {' | '.join(f'{name} p50 | p99 | p99 / lone p50' for name in loads)} |")
    print(f"|---{(1 + 3 * len(loads)) * '|---:'}|")
    for kind in (*_MIX, "all"):
        base = np.percentile(_times(alone[0], kind), 50)
        cells = [f"{base:.2f}"]
        for answers, _ in loads.values():
            middle, late = np.percentile(_times(answers, kind), [50, 99])
            cells += [f"{middle:.2f}", f"{late:.2f}", f"{late / base:.1f}"]
        print(f"| {kind} | {' | '.join(cells)} |")


def _times(answers: list[Answered], kind: str) -> list[float]:
    return [answer.milliseconds for answer in answers if kind in (answer.kind, "all")]


def _mixed(rng: np.random.Generator, images: int, count: int) -> list[Request]:
    """Requests of all kinds, in random order."""
    kinds = rng.choice(list(_MIX), count, p=np.array(list(_MIX.values())) / 100)
    return [_request(str(kind), [int(id) for id in rng.choice(images, 4, replace=False)]) for kind in kinds]


def _request(kind: str, ids: list[int]) -> Request:
    first, second, third, other = ids
    match kind:
        case "search":
            return _post(kind, {"positive": [first]})
        case "knn":
            return _post(kind, {"positive": [first], "method": "knn", "filter": {"year": {"min": 2000}}})
        case "feedback":
            return _post(kind, {"positive": [first, second], "negative": [third], "method": "diffusion"})
        case "explain":
            return _get(kind, f"/api/explain?query=i:{first}&item={other}")
        case "items":
            return _get(kind, f"/api/items?shuffle={first % 3}&offset={second}")
        case "item":
            return _get(kind, f"/api/items/{first}")
    return _get(kind, "/api/info")


def _get(kind: str, path: str) -> Request:
    return Request(kind, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())


def _post(kind: str, content: dict[str, object]) -> Request:
    body = json.dumps(content)
    head = "POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    return Request(kind, f"{head}{len(body)}\r\n\r\n{body}".encode())


async def _asked(
    host: str, port: int, requests: list[Request], connections: int, rate: float | None
) -> tuple[list[Answered], float]:
    """Ask everything over so many connections; at random moments, `rate` per second, or as fast as answers come.

    Times count from the moment a request was due, so that waiting for a free connection counts.
    """
    gaps = np.zeros(len(requests)) if rate is None else np.random.default_rng(2).exponential(1 / rate, len(requests))
    queue, answers, began = iter(zip(requests, np.cumsum(gaps).tolist(), strict=True)), [], time.perf_counter()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for request, due in queue:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            start = time.perf_counter() if rate is None else began + due
            writer.write(request.data)
            status, _ = await _read(reader)
            answers.append(Answered(request.kind, status, 1000 * (time.perf_counter() - start)))
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return answers, len(answers) / (time.perf_counter() - began)


async def _ask_one(host: str, port: int, request: Request) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request.data)
    answer = await _read(reader)
    writer.close()
    return answer


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer: raw, since a client library takes longer than the service."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    return int(head[9:12]), await reader.readexactly(int(length[1]))


if __name__ == "__main__":
    main()
