"""The routes of the HTTP API: each reads its request, has the work done in a thread, and answers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, PlainTextResponse, Response

from suffuse.server import models
from suffuse.server.changes import Changes
from suffuse.server.engine import Searching
from suffuse.server.guard import Metrics, Workers, take_time
from suffuse.server.models import SearchRequest
from suffuse.server.pictures import MEDIA_TYPES, Pictures, Thumb
from suffuse.server.problems import Json, Problem
from suffuse.server.queries import Form

# Beside the file an upload has a few numbers.
_REQUEST_BYTES = 1_000_000

R = TypeVar("R")


def service_of(request: Request) -> "Service":
    """The service that a request is for."""
    service: Service = request.app.state.service
    return service


def content_type(request: Request) -> str:
    """The kind of the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def uploaded(request: Request, most: int) -> Form:
    """The JSON and the file of a form."""
    async with request.form(max_files=1, max_fields=4, max_part_size=_REQUEST_BYTES) as form:
        image, text = form.get("image"), form.get("request", "{}")
        if not isinstance(image, UploadFile) or not isinstance(text, str):
            raise Problem(422, "the form needs a file 'image', and may have a text 'request'")
        data = await image.read(most + 1)
    if len(data) > most:
        raise Problem(413, f"the file is longer than {most:,} bytes", "make the picture smaller first")
    return Form(text.encode(), data, image.filename or "")


def schema_body(model: str, beside: str, example: str | None = None) -> dict[str, Any]:
    """The OpenAPI description of a body that is JSON, or a form with a picture and JSON beside it."""
    text: dict[str, Any] = {"type": "string", "description": f"JSON as {beside}."}
    if example is not None:
        text["examples"] = [example]
    form = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": {"type": "string", "format": "binary", "description": "A picture."}, "request": text},
    }
    json = {"$ref": f"#/components/schemas/{model}"}
    content = {"application/json": {"schema": json}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


# How many seconds a browser shows a picture without asking whether it has changed; where pictures can be replaced
# through this service, somebody looks at the new one soon.
_FRESH, _FRESH_IF_CHANGED = "private, max-age=3600", "private, max-age=60"

_ID = Path(ge=0, description="The number of a picture.", examples=[3])
_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    422: {"content": _PROBLEM, "description": "The request cannot be understood."},
    "4XX": {"content": _PROBLEM, "description": "The request cannot be answered."},
    "5XX": {"content": _PROBLEM, "description": "The service is busy, too slow, or broken."},
}
_SEARCH_BODY = schema_body(
    "SearchRequest", "SearchRequest, without vectors and query", '{"top": 24, "box": [0.1, 0.2, 0.6, 0.9]}'
)


class Service:
    """An engine at work: its threads, its metrics, and whether it is warm; and who changes its index.

    `changes` is the writer, or what makes the problem that is told instead.
    """

    def __init__(self, engine: Searching, changes: Changes | Callable[[], Problem]) -> None:
        self.engine, self.changes, self.metrics = engine, changes, Metrics()
        self.searches = Workers("search", engine.threads, engine.limits.waiting)
        self.lookups = Workers("lookup", 2, engine.limits.waiting)
        self.picturing = Workers("picture", 2, engine.limits.waiting)
        self._warming: Future[None] | None = None

    def open(self) -> None:
        """Begin to warm up, and to notice what others do to the index."""
        if isinstance(self.changes, Changes):
            self.changes.open()
        self.warm()
        self.engine.follow()

    def warm(self) -> "Future[None]":
        """Begin to warm up, once."""
        if self._warming is None:
            self._warming = self.searches.submit(self.engine.warm)
        return self._warming

    async def warmed(self) -> None:
        """Wait until the service is warm; raises why it cannot be."""
        if not (warming := self.warm()).done() or warming.exception():
            await asyncio.shield(asyncio.wrap_future(warming))

    async def run(self, work: Callable[[Searching], R], workers: Workers | None = None) -> R:
        """Do the work in a thread when the service is warm; without other workers in one of those that search.

        Pictures have their own, so that searches never wait for them, and so have lookups, which take no time at all.
        """
        await self.warmed()
        return await (workers or self.searches).run(lambda: work(self.engine))

    def close(self) -> None:
        """End what is being done."""
        if isinstance(self.changes, Changes):
            self.changes.close()
        for workers in (self.searches, self.lookups, self.picturing):
            workers.close()
        self.engine.close()


def make_router() -> APIRouter:
    """All endpoints but the page."""
    router = APIRouter(responses=_PROBLEMS)
    add_change_routes(router)
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


async def _healthz() -> Response:
    """Whether the service is alive."""
    return Json({"status": "ok"})


async def _readyz(request: Request) -> Response:
    """Whether the service is warm, so that the first request is as fast as the others, and its index can be read."""
    service = service_of(request)
    if not (warming := service.warm()).done():
        raise Problem(503, "the service is warming up", "ask again in a moment")
    warming.result()
    await service.run(lambda engine: engine.check(), service.lookups)
    return Json({"status": "ok"})


async def _metrics(request: Request) -> Response:
    """Counts and times of requests, in the text format of Prometheus."""
    service = service_of(request)
    generation, images, stale = service.engine.summary()
    gauges: dict[str, tuple[str, float]] = {
        "suffuse_requests_in_flight": ("Requests that have no answer yet.", service.metrics.in_flight),
        "suffuse_searches_waiting": ("Searches in work or in line.", service.searches.busy),
        "suffuse_pictures_waiting": ("Pictures in work or in line.", service.picturing.busy),
        "suffuse_queries_remembered": ("Queries that are kept.", len(service.engine.queries)),
        "suffuse_images": ("Pictures in the index.", images),
        "suffuse_generation": ("The generation of the index, which goes up with every change.", generation),
        "suffuse_stale_share": ("The share of columns that wait for a compaction.", stale),
    }
    text = service.metrics.render(gauges)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _info(request: Request) -> Response:
    """What the index holds, what can be done with it, and the limits."""
    service = service_of(request)
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
    service = service_of(request)
    return await service.run(lambda engine: Json(engine.listed(offset, limit, q, shuffle)), service.lookups)


async def _item(request: Request, id: Annotated[int, _ID]) -> Response:
    """One picture: its name and its metadata."""
    service = service_of(request)
    return await service.run(lambda engine: Json(engine.item(id)), service.lookups)


async def _image(request: Request, id: Annotated[int, _ID]) -> Response:
    """The file of a picture, as it is."""
    service = service_of(request)
    path = await service.run(lambda engine: _pictures(engine).path(engine.item(id)["name"]), service.picturing)
    headers = {"Cache-Control": _freshness(service)}
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix.lower()], headers=headers)


async def _thumb(
    request: Request,
    id: Annotated[int, _ID],
    size: Annotated[int, Query(ge=16, le=1024, description="The longer side, in pixels.")] = 320,
) -> Response:
    """A small JPEG of a picture, turned upright."""

    def make(engine: Searching) -> Thumb:
        return _pictures(engine).thumb(engine.item(id)["name"], size)

    service = service_of(request)
    thumb = await service.run(make, service.picturing)
    headers = {"ETag": thumb.etag, "Cache-Control": _freshness(service)}
    if thumb.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(thumb.data, media_type="image/jpeg", headers=headers)


async def _search(request: Request) -> Response:
    """Search by pictures of the index, wanted and not, by vectors, by an uploaded picture, or by a part of one."""
    service, kind = service_of(request), content_type(request)
    if kind == "application/json":
        body = await request.body()
        if b'"box"' in body:
            return await service.run(lambda engine: _searched(engine, body, None), service.picturing)
        return await service.run(lambda engine: _searched(engine, body, None))
    if kind == "multipart/form-data":
        form = await uploaded(request, service.engine.limits.upload_bytes)
        return await service.run(lambda engine: _searched(engine, form.text, form.image), service.picturing)
    raise Problem(415, "a search takes application/json or multipart/form-data", "set the Content-Type")


async def _explain(
    request: Request,
    query: Annotated[str, Query(max_length=4000, description="The query of an answer.", examples=["i:3,8,-5"])],
    item: Annotated[int, Query(ge=0, description="The hit to explain.", examples=[17])],
    seeds: Annotated[int, Query(ge=1, le=1000, description="As in the search.")] = 10,
) -> Response:
    """Why a picture was found: what each seed gave to its score, and the strongest chain of pictures to it."""
    return await service_of(request).run(lambda engine: Json(engine.explain(query, item, seeds)))


def _searched(engine: Searching, body: bytes, image: bytes | None) -> Json:
    return Json(engine.search(SearchRequest.model_validate_json(body), image))


def _pictures(engine: Searching) -> Pictures:
    if engine.pictures is None:
        raise Problem(404, "this index is served without pictures", "give their folder by --images")
    return engine.pictures


def _freshness(service: Service) -> str:
    return _FRESH_IF_CHANGED if isinstance(service.changes, Changes) else _FRESH


Mode = Annotated[
    Literal["fast", "exact"],
    Query(description="fast: what is further away waits for a compaction. exact: as if built from all pictures."),
]


def add_change_routes(router: APIRouter) -> None:
    """Add, replace, remove, compact, and how it goes."""
    answer: dict[int | str, dict[str, Any]] = {200: {"model": models.ChangeAnswer}}
    for path, endpoint, method, body, status in (
        ("/api/items", _add, "POST", "AddRequest", 201),
        ("/api/items/{id}", _replace, "PUT", "ReplaceRequest", 200),
        ("/api/items/{id}", _remove, "DELETE", None, 200),
    ):
        router.add_api_route(
            path, endpoint, methods=[method], responses={status: answer[200]}, status_code=status,
            response_class=Json, openapi_extra=None if body is None else schema_body(body, "About"), tags=["changes"],
        )  # fmt: skip
    told: dict[str, Any] = {"model": models.ChangesAnswer}
    router.add_api_route(
        "/api/compact", _compact, methods=["POST"], responses={202: told}, status_code=202, response_class=Json,
        tags=["changes"],
    )  # fmt: skip
    router.add_api_route("/api/changes", _changes, responses={200: told}, response_class=Json, tags=["changes"])


async def _add(request: Request, mode: Mode = "fast") -> Response:
    """Add pictures by their vectors, or one that is uploaded; when the answer comes, searches find them."""
    answer = await _changed(request, None, mode)
    headers = {"Location": f"/api/items/{answer['ids'][0]}"} if len(answer["ids"]) == 1 else None
    return Json(answer, status_code=201, headers=headers)


async def _replace(request: Request, id: Annotated[int, _ID], mode: Mode = "fast") -> Response:
    """Replace a picture by other vectors, or by one that is uploaded; it keeps its id."""
    return Json(await _changed(request, id, mode))


async def _remove(request: Request, id: Annotated[int, _ID], mode: Mode = "fast") -> Response:
    """Remove a picture: when the answer comes, no search finds it. Its file stays, and its id is never given again."""
    changes = _allowed(request)
    await service_of(request).warmed()
    take_time(request.scope)
    return Json(await changes.run(lambda writer: writer.remove(id, mode)))


async def _compact(request: Request) -> Response:
    """Begin to make the index as if it were built from its pictures; /api/changes tells how far that is."""
    changes = _allowed(request)
    await service_of(request).warmed()
    changes.compact()
    return Json(_status(request), status_code=202)


async def _changes(request: Request) -> Response:
    """The generation that is served, and what is being changed."""
    return Json(_status(request))


def _status(request: Request) -> dict[str, Any]:
    service = service_of(request)
    doing = {"changing": 0, "compacting": False, "progress": None, "last_error": None}
    if isinstance(service.changes, Changes):
        doing = service.changes.status()
    enabled = isinstance(service.changes, Changes)
    return {"enabled": enabled, **service.engine.summary()._asdict(), **doing}


def _allowed(request: Request) -> Changes:
    changes = service_of(request).changes
    if isinstance(changes, Changes):
        return changes
    raise changes()


async def _changed(request: Request, id: int | None, mode: Literal["fast", "exact"]) -> dict[str, Any]:
    changes, service, kind = _allowed(request), service_of(request), content_type(request)
    if kind == "application/json":
        body = await request.body()
        await service.warmed()
        take_time(request.scope)
        if id is None:
            return await changes.run(lambda writer: writer.add(body, mode))
        return await changes.run(lambda writer: writer.replace(id, body, mode))
    if kind == "multipart/form-data":
        form = await uploaded(request, service.engine.limits.upload_bytes)
        changes.check()
        upload = await service.run(lambda _: changes.read(form), service.picturing)
        take_time(request.scope)
        return await changes.run(lambda writer: writer.upload(id, upload, mode))
    raise Problem(415, "a change takes application/json or multipart/form-data", "set the Content-Type")
