"""The contract of the HTTP service over little generated pictures: for the browser tests, and to look at the page.

`python tests/page_stub.py` serves it on port 8123. Nothing is computed that matters: pictures lie on three rings,
"k-NN" ranks by distance in the plane, "diffusion" by the way along a ring. Every answer is the same on every run.
"""

import dataclasses
import functools
import io
import json
import math
import random
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from PIL import Image, ImageDraw

PAGE = Path(__file__).parents[2] / "src" / "suffuse" / "server" / "page"
RINGS, ON_RING = 3, 40
SHAPES = ("circle", "square", "triangle")
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\' & \u202e.jpg'
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclasses.dataclass
class Stub:
    """What the stub pretends to be; tests change it between requests."""

    pictures: bool = True
    upload: bool = True
    token: str | None = None
    images: int = RINGS * ON_RING
    upload_bytes: int = 200_000
    failures: dict[str, tuple[int, str, str]] = dataclasses.field(default_factory=dict)
    searches: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    remembered: dict[str, int] = dataclasses.field(default_factory=dict)


class Refused(Exception):
    """An error in the service's one shape."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None) -> None:
        self.status, self.body = status, {"error": {"code": code, "message": message, "hint": hint}}


def create_stub(stub: Stub) -> FastAPI:
    """The service's routes over the stub's pictures."""
    app = FastAPI()

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse(error.body, error.status)

    @app.middleware("http")
    async def guard(request: Request, go_on: Any) -> Response:
        path = request.url.path
        if stub.token and path.startswith("/api") and request.headers.get("authorization") != f"Bearer {stub.token}":
            error = Refused(401, "unauthorized", "this service needs a token")
            return JSONResponse(error.body, error.status)
        for part, (status, code, message) in stub.failures.items():
            if path.startswith(part):
                return JSONResponse(Refused(status, code, message, "a hint from the server").body, status)
        response = await go_on(request)
        response.headers["content-security-policy"] = POLICY
        response.headers["cache-control"] = "no-cache"
        return response

    @app.get("/")
    def start() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/static/{name}")
    def static(name: str) -> FileResponse:
        return FileResponse(PAGE / name)

    @app.get("/api/info")
    def info() -> dict[str, Any]:
        return {
            "name": "rings.index", "images": stub.images, "elements": stub.images, "dimensions": 2, "params": {},
            "methods": ["diffusion", "knn"], "regional": False, "pictures": stub.pictures, "upload": stub.upload,
            "explain": True, "chain": True,
            "metadata": {
                "shape": {"type": "string", "values": list(SHAPES)},
                "place": {"type": "string", "values": [f"place {number}" for number in range(12)]},
                "angle": {"type": "number", "min": 0, "max": 351},
                "even": {"type": "boolean", "values": [True, False]},
            },
            "limits": {"top": 1000, "seeds": 1000, "positive": 100, "negative": 100, "vectors": 100,
                       "upload_bytes": stub.upload_bytes, "pixels": 100_000_000},
            "version": "0.1.0",
        }  # fmt: skip

    @app.get("/api/items")
    def items(offset: int = 0, limit: int = 60, shuffle: int | None = None, q: str = "") -> dict[str, Any]:
        ids = [id for id in range(stub.images) if q.lower() in name_of(id).lower()]
        if shuffle is not None:
            random.Random(shuffle).shuffle(ids)
        page = [item_of(id, stub) for id in ids[offset : offset + limit]]
        return {"total": len(ids), "offset": offset, "items": page}

    @app.get("/api/items/{id}")
    def item(id: int) -> dict[str, Any]:
        if not 0 <= id < stub.images:
            raise Refused(404, "not_found", f"there is no item {id}", f"ids go from 0 to {stub.images - 1}")
        return item_of(id, stub)

    @app.get("/api/items/{id}/image")
    @app.get("/api/items/{id}/thumb")
    def picture(id: int, size: int = 160) -> Response:
        return Response(draw(id, min(size, 320)), media_type="image/png")

    @app.post("/api/search")
    async def search(request: Request) -> dict[str, Any]:
        if request.headers["content-type"].startswith("multipart/"):
            async with request.form() as form:
                wanted = json.loads(str(form["request"]))
                picture = await form["image"].read()  # type: ignore[union-attr]
            try:
                with Image.open(io.BytesIO(picture)) as opened:
                    name = f"q-{len(stub.remembered)}{opened.width}x{opened.height}"
            except OSError:
                raise Refused(415, "unsupported", "the upload is not a picture that can be read") from None
            stub.remembered[name] = 5
            stub.searches.append({**wanted, "uploaded": len(picture)})
        else:
            wanted = await request.json()
            stub.searches.append(wanted)
            name = wanted.get("query")
        if name and name not in stub.remembered:
            raise Refused(404, "not_found", "this query is not remembered any more", "upload the picture again")
        positive, negative = wanted.get("positive", []), wanted.get("negative", [])
        sources = ([stub.remembered[name]] if name else []) + positive
        if not sources or not all(0 <= id < stub.images for id in sources + negative):
            raise Refused(404, "not_found", f"there is no item {sources}", f"ids go from 0 to {stub.images - 1}")
        if "box" in wanted and not name:
            name = f"q-box{len(stub.remembered)}"
            stub.remembered[name] = sources[0]
        return answer(wanted, name, sources, stub, asked=[*positive, *negative])

    @app.get("/api/explain")
    def explain(query: str, item: int, seeds: int = 10) -> dict[str, Any]:
        source = stub.remembered[query] if query.startswith("q-") else int(query[2:].split(",")[0])
        return explanation(source, item, stub)

    return app


def name_of(id: int) -> str:
    """The name of an item; that of item 7 is hostile."""
    return HOSTILE if id == 7 else f"{SHAPES[id // ON_RING % RINGS]}/{id % ON_RING:03d}.png"


def item_of(id: int, stub: Stub) -> dict[str, Any]:
    """One item as the contract has it."""
    shape, place = SHAPES[id // ON_RING % RINGS], id % ON_RING
    metadata = {"shape": shape, "place": f"place {place % 12}", "angle": place * 9, "even": place % 2 == 0}
    image, thumb = (f"/api/items/{id}/image", f"/api/items/{id}/thumb") if stub.pictures else (None, None)
    return {"id": id, "name": name_of(id), "metadata": metadata, "image": image, "thumb": thumb}


@functools.cache
def draw(id: int, size: int) -> bytes:
    """A shape that turns and changes its colour along the ring."""
    turn = id % ON_RING / ON_RING
    picture = Image.new("HSV", (size, size * 3 // 4), (int(turn * 255), 45, 235))
    pen, x, y, radius = ImageDraw.Draw(picture), size / 2, size * 3 / 8, size * 0.26
    colour = (int(turn * 255), 190, 170)
    if id // ON_RING % RINGS == 0:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        pen.line(
            (x, y, x + radius * math.cos(turn * 6.28), y + radius * math.sin(turn * 6.28)), "white", size // 40 + 1
        )
    else:
        sides = 4 if id // ON_RING % RINGS == 1 else 3
        pen.regular_polygon((x, y, radius), sides, rotation=int(turn * 360), fill=colour)
    written = io.BytesIO()
    picture.convert("RGB").save(written, "PNG")
    return written.getvalue()


def distances(source: int, id: int) -> tuple[float, float]:
    """How far apart two pictures are in the plane, and along a ring."""
    ring, other = source // ON_RING, id // ON_RING
    turn = 2 * math.pi * (source % ON_RING - id % ON_RING) / ON_RING
    apart = abs((turn + math.pi) % (2 * math.pi) - math.pi)
    r, s = 1 + 0.12 * ring, 1 + 0.12 * other
    return math.sqrt(max(0.0, r * r + s * s - 2 * r * s * math.cos(turn))), apart + 3 * abs(ring - other)


def keeps(item: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether an item's metadata passes a filter."""
    for field, value in wanted.items():
        found = item["metadata"].get(field)
        if isinstance(value, dict):
            if not value.get("min", -math.inf) <= found <= value.get("max", math.inf):
                return False
        elif found not in (value if isinstance(value, list) else [value]):
            return False
    return True


def answer(
    wanted: dict[str, Any], name: str | None, sources: list[int], stub: Stub, asked: list[int]
) -> dict[str, Any]:
    """Both rankings, each hit with its rank in the other."""
    negative = wanted.get("negative", [])
    everything = [item_of(id, stub) for id in range(stub.images) if id not in asked]
    kept = [item for item in everything if keeps(item, wanted.get("filter", {}))]
    scores: list[dict[int, float]] = []
    for which in (0, 1):
        near = {
            item["id"]: sum(math.exp(-distances(source, item["id"])[which]) for source in sources) / len(sources)
            - sum(math.exp(-2 * distances(source, item["id"])[which]) for source in negative)
            for item in kept
        }
        scores.append(dict(sorted(near.items(), key=lambda pair: (-round(pair[1], 9), pair[0]))))
    ranks = [{id: rank for rank, id in enumerate(ranking, 1)} for ranking in scores]
    items = {item["id"]: item for item in kept}

    def hits(which: int) -> list[dict[str, Any]]:
        best = list(scores[which])[: wanted["top"]]
        return [
            {**items[id], "score": scores[which][id], "rank": ranks[which][id], "other_rank": ranks[1 - which][id]}
            for id in best
        ]

    signed = [*wanted.get("positive", []), *(f"-{id}" for id in negative)]
    return {
        "query": name or "i:" + ",".join(map(str, signed)),
        "took_ms": 3.21,
        "results": {"diffusion": {"took_ms": 1.9, "hits": hits(1)}, "knn": {"took_ms": 0.84, "hits": hits(0)}},
    }


def explanation(source: int, id: int, stub: Stub) -> dict[str, Any]:
    """A chain along the ring, and seeds whose shares sum to 1; pictures on another ring are not reached by a chain."""
    ring = source // ON_RING * ON_RING
    seeds = [ring + (source + step) % ON_RING for step in (1, -1, 2, -2, 3, -3, 4)]
    shares = [0.42, 0.25, 0.15, 0.1, 0.06, 0.04, -0.02]
    contributions = [
        {
            "seed": item_of(seed, stub),
            "similarity": 0.9,
            "weight": 0.7,
            "entry": 0.02,
            "amount": share / 50,
            "share": share,
        }
        for seed, share in zip(seeds, shares, strict=True)
    ]
    found = {"item": item_of(id, stub), "score": 0.02, "contributions": contributions}
    if id // ON_RING != source // ON_RING:
        return {**found, "chain": None, "chain_missing": "no chain of neighbours leads here"}
    steps = (id - source) % ON_RING
    way = range(1, steps + 1) if steps <= ON_RING // 2 else range(-1, steps - ON_RING - 1, -1)
    nodes = [item_of(ring + (source + step) % ON_RING, stub) for step in way][-6:]
    weights = [0.5 - 0.05 * place for place in range(len(nodes) - 1)]
    strength = 0.73 * math.prod(weights)
    return {
        **found,
        "chain": {"nodes": nodes, "steps": weights, "start": 0.73, "strength": strength},
        "chain_missing": None,
    }


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(create_stub(Stub()), port=8123, ws="none")
