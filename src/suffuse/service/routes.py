"""The endpoints: each reads a request, has a thread do the work, and writes the answer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, PlainTextResponse, Response

from suffuse.service import models
from suffuse.service.interface import Searching
from suffuse.service.metrics import Metrics
from suffuse.service.models import SearchRequest
from suffuse.service.pictures import MEDIA_TYPES, Pictures, Thumb
from suffuse.service.problems import Json, Problem
from suffuse.service.work import Workers

R = TypeVar("R")

# How long a browser shows a picture without asking whether it has changed.
_FRESH = "private, max-age=3600"
# Beside the file an upload has a few numbers.
_REQUEST_BYTES = 1_000_000
_ID = Path(ge=0, description="The number of a picture.", examples=[3])
_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    422: {"content": _PROBLEM, "description": "The request cannot be understood."},
    "4XX": {"content": _PROBLEM, "description": "The request cannot be answered."},
    "5XX": {"content": _PROBLEM, "description": "The service is busy, too slow, or broken."},
}
_SEARCH_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/SearchRequest"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "string", "format": "binary", "description": "A picture to search by."},
                        "request": {
                            "type": "string",
                            "description": "The same as JSON, without vectors and query.",
                            "examples": ['{"top": 24, "box": [0.1, 0.2, 0.6, 0.9]}'],
                        },
                    },
                }
            },
        },
    }
}


class Service:
    """An engine at work: its threads, its metrics, and whether it is warm."""

    def __init__(self, engine: Searching) -> None:
        self.engine, self.metrics = engine, Metrics()
        self.searches = Workers("search", engine.threads, engine.limits.waiting)
        self.lookups = Workers("lookup", 2, engine.limits.waiting)
        self.picturing = Workers("picture", 2, engine.limits.waiting)
        self._warming: Future[None] | None = None

    def warm(self) -> "Future[None]":
        """Begin to warm up, once."""
        if self._warming is None:
            self._warming = self.searches.submit(self.engine.warm)
        return self._warming

    async def run(self, work: Callable[[Searching], R], workers: Workers | None = None) -> R:
        """Do the work in a thread when the service is warm; without other workers in one of those that search.

        Pictures have their own, so that searches never wait for them, and so have lookups, which take no time at all.
        """
        if not (warming := self.warm()).done() or warming.exception():
            await asyncio.shield(asyncio.wrap_future(warming))
        return await (workers or self.searches).run(lambda: work(self.engine))

    def close(self) -> None:
        """End what is being done."""
        for workers in (self.searches, self.lookups, self.picturing):
            workers.close()
        self.engine.close()


def make_router() -> APIRouter:
    """All endpoints but the page."""
    router = APIRouter(responses=_PROBLEMS)
    router.add_api_route(
        "/api/search", _search, methods=["POST"], responses={200: {"model": models.SearchAnswer}}, response_class=Json,
        openapi_extra=_SEARCH_BODY, tags=["search"],
    )  # fmt: skip
    for path, endpoint, model, tag in (
        ("/api/explain", _explain, models.ExplainAnswer, "search"),
        ("/api/info", _info, models.Info, "pictures"),
        ("/api/items", _items, models.Page, "pictures"),
        ("/api/items/{id}", _item, models.Item, "pictures"),
        ("/healthz", _healthz, models.Status, "service"),
        ("/readyz", _readyz, models.Status, "service"),
    ):
        router.add_api_route(path, endpoint, responses={200: {"model": model}}, response_class=Json, tags=[tag])
    router.add_api_route("/metrics", _metrics, response_class=PlainTextResponse, tags=["service"])
    for name, endpoint in (("image", _image), ("thumb", _thumb)):
        shown: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}, "description": "The picture."}}
        address = f"/api/items/{{id}}/{name}"
        router.add_api_route(address, endpoint, responses=shown, response_class=Response, tags=["pictures"])
    return router


def _of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _healthz() -> Response:
    """Whether the service is alive."""
    return Json({"status": "ok"})


async def _readyz(request: Request) -> Response:
    """Whether the service is warm, so that the first request is as fast as the others, and its index can be read."""
    service = _of(request)
    if not (warming := service.warm()).done():
        raise Problem(503, "the service is warming up", "ask again in a moment")
    warming.result()
    await service.run(lambda engine: engine.check(), service.lookups)
    return Json({"status": "ok"})


async def _metrics(request: Request) -> Response:
    """Counts and times of requests, in the text format of Prometheus."""
    service = _of(request)
    gauges: dict[str, tuple[str, float]] = {
        "suffuse_requests_in_flight": ("Requests that have no answer yet.", service.metrics.in_flight),
        "suffuse_searches_waiting": ("Searches in work or in line.", service.searches.busy),
        "suffuse_pictures_waiting": ("Pictures in work or in line.", service.picturing.busy),
        "suffuse_queries_remembered": ("Queries that are kept.", len(service.engine.queries)),
        "suffuse_images": ("Pictures in the index.", len(service.engine)),
    }
    text = service.metrics.render(gauges)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _info(request: Request) -> Response:
    """What the index holds, what can be done with it, and the limits."""
    service = _of(request)
    return await service.run(lambda engine: Json(engine.info()), service.lookups)


async def _items(
    request: Request,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 60,
    shuffle: Annotated[
        int | None, Query(ge=0, le=2**53, description="In a random order, the same for the same number.", examples=[7])
    ] = None,
    q: Annotated[str, Query(max_length=200, description="Only names that contain this.", examples=["oxford"])] = "",
) -> Response:
    """Pictures of the index, page by page."""
    service = _of(request)
    return await service.run(lambda engine: Json(engine.listed(offset, limit, q, shuffle)), service.lookups)


async def _item(request: Request, id: Annotated[int, _ID]) -> Response:
    """One picture: its name and its metadata."""
    service = _of(request)
    return await service.run(lambda engine: Json(engine.item(id)), service.lookups)


async def _image(request: Request, id: Annotated[int, _ID]) -> Response:
    """The file of a picture, as it is."""
    service = _of(request)
    path = await service.run(lambda engine: _pictures(engine).path(engine.item(id)["name"]), service.picturing)
    headers = {"Cache-Control": _FRESH}
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix.lower()], headers=headers)


async def _thumb(
    request: Request,
    id: Annotated[int, _ID],
    size: Annotated[int, Query(ge=16, le=1024, description="The longer side, in pixels.")] = 320,
) -> Response:
    """A small JPEG of a picture, turned upright."""

    def make(engine: Searching) -> Thumb:
        return _pictures(engine).thumb(engine.item(id)["name"], size)

    service = _of(request)
    thumb = await service.run(make, service.picturing)
    headers = {"ETag": thumb.etag, "Cache-Control": _FRESH}
    if thumb.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(thumb.data, media_type="image/jpeg", headers=headers)


async def _search(request: Request) -> Response:
    """Search by pictures of the index, wanted and not, by vectors, by an uploaded picture, or by a part of one."""
    service, kind = _of(request), request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        body = await request.body()
        if b'"box"' in body:
            return await service.run(lambda engine: _searched(engine, body, None), service.picturing)
        return await service.run(lambda engine: _searched(engine, body, None))
    if kind == "multipart/form-data":
        text, image = await _uploaded(request, service.engine.limits.upload_bytes)
        return await service.run(lambda engine: _searched(engine, text, image), service.picturing)
    raise Problem(415, "a search takes application/json or multipart/form-data", "set the Content-Type")


async def _explain(
    request: Request,
    query: Annotated[str, Query(max_length=4000, description="The query of an answer.", examples=["i:3,8,-5"])],
    item: Annotated[int, Query(ge=0, description="The hit to explain.", examples=[17])],
    seeds: Annotated[int, Query(ge=1, le=1000, description="As in the search.")] = 10,
) -> Response:
    """Why a picture was found: what each seed gave to its score, and the strongest chain of pictures to it."""
    return await _of(request).run(lambda engine: Json(engine.explain(query, item, seeds)))


def _searched(engine: Searching, body: bytes, image: bytes | None) -> Json:
    return Json(engine.search(SearchRequest.model_validate_json(body), image))


async def _uploaded(request: Request, most: int) -> tuple[bytes, bytes]:
    """The JSON and the file of a form."""
    async with request.form(max_files=1, max_fields=4, max_part_size=_REQUEST_BYTES) as form:
        image, text = form.get("image"), form.get("request", "{}")
        if not isinstance(image, UploadFile) or not isinstance(text, str):
            raise Problem(422, "the form needs a file 'image', and may have a text 'request'")
        data = await image.read(most + 1)
    if len(data) > most:
        raise Problem(413, f"the file is longer than {most:,} bytes", "make the picture smaller first")
    return text.encode(), data


def _pictures(engine: Searching) -> Pictures:
    if engine.pictures is None:
        raise Problem(404, "this index is served without pictures", "give their folder by --images")
    return engine.pictures
