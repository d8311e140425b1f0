"""The routes of the HTTP API: each reads its request, has the work done in a thread, and answers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, PlainTextResponse, Response

from suffuse.index.writer import Mode
from suffuse.server import models
from suffuse.server.changes import Changes
from suffuse.server.engine import Engine, View
from suffuse.server.guard import FORM_BYTES, Metrics, Workers, lift_time_limit
from suffuse.server.models import SearchRequest
from suffuse.server.pictures import MEDIA_TYPES, Pictures
from suffuse.server.problems import Json, Problem
from suffuse.server.queries import Form

R = TypeVar("R")

# How many seconds a browser shows a picture without asking whether it has changed; where pictures can be replaced
# through this service, somebody looks at the new one soon.
_FRESH, _FRESH_IF_CHANGED = "private, max-age=3600", "private, max-age=60"


class Service:
    """An engine at work: its threads, its metrics, whether it is warm, and the writer of its index.

    Without `changes` the service takes none, and `refusal` is the status, message and hint that says so.
    """

    def __init__(self, engine: Engine, changes: Changes | None, refusal: tuple[int, str, str] | None = None) -> None:
        self.engine, self.changes, self._refusal, self.metrics = engine, changes, refusal, Metrics()
        # Pictures have threads of their own, so that searches never wait for them, and so have lookups, which are fast.
        self.searches = Workers("search", engine.threads, engine.limits.waiting)
        self.lookups = Workers("lookup", 2, engine.limits.waiting)
        self.picturing = Workers("picture", 2, engine.limits.waiting)
        self.freshness = _FRESH if changes is None else _FRESH_IF_CHANGED
        self._warming: Future[None] | None = None

    def open(self) -> None:
        """Begin to warm up, and to follow what other processes do to the index."""
        if self.changes is not None:
            self.changes.open()
        self.warm()
        self.engine.follow()

    def warm(self) -> "Future[None]":
        """Begin to warm up, once."""
        if self._warming is None:
            self._warming = self.searches.submit(self.engine.warm)
        return self._warming

    async def wait_until_warm(self) -> None:
        """Wait until the service is warm; raises the error if it cannot be."""
        if not (warming := self.warm()).done() or warming.exception():
            await asyncio.shield(asyncio.wrap_future(warming))

    async def run(self, work: Callable[[View], R], workers: Workers | None = None) -> R:
        """Do the work in a thread when the service is warm; without other workers in one of those that search."""

        def work_on_view() -> R:
            with self.engine.open_view() as view:
                return work(view)

        await self.wait_until_warm()
        return await (workers or self.searches).run(work_on_view)

    def require_changes(self) -> Changes:
        """The writer, if this service takes changes."""
        if self._refusal is not None:
            raise Problem(*self._refusal)
        assert self.changes is not None
        return self.changes

    def close(self) -> None:
        """End the work."""
        if self.changes is not None:
            self.changes.close()
        for workers in (self.searches, self.lookups, self.picturing):
            workers.close()
        self.engine.close()


async def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _describe(answer: type[BaseModel], tag: str, status: int = 200, *, body: str = "", **text: Any) -> dict[str, Any]:
    """The OpenAPI description of a route: its answer, and a body that is JSON, or a form with a picture and JSON."""
    described = {"responses": {status: {"model": answer}}, "status_code": status, "tags": [tag]}
    if not body:
        return described
    properties = {
        "image": {"type": "string", "format": "binary", "description": "A picture."},
        "request": {"type": "string", "description": "JSON as About.", **text},
    }
    form = {"type": "object", "required": ["image"], "properties": properties}
    json = {"$ref": f"#/components/schemas/{body}"}
    content = {"application/json": {"schema": json}, "multipart/form-data": {"schema": form}}
    return {**described, "openapi_extra": {"requestBody": {"required": True, "content": content}}}


_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
_PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}, "description": "The picture."}}
_ServiceOf = Annotated[Service, Depends(_get_service)]
_Id = Annotated[int, Path(ge=0, description="The id of a picture.", examples=[3])]
_Mode = Annotated[Mode, Query(description="fast: distant columns go stale. exact: as if built from all pictures.")]
router = APIRouter(
    default_response_class=Json,
    responses={
        422: {"content": _PROBLEM, "description": "The request cannot be understood."},
        "4XX": {"content": _PROBLEM, "description": "The request cannot be answered."},
        "5XX": {"content": _PROBLEM, "description": "The service is busy, too slow, or broken."},
    },
)


@router.post("/api/items", **_describe(models.ChangeAnswer, "changes", 201, body="AddRequest"))
async def _add(request: Request, service: _ServiceOf, mode: _Mode = "fast") -> Response:
    """Add pictures by their vectors, or one that is uploaded; searches find them when the answer comes."""
    answer = await _change(request, service, None, mode)
    headers = {"Location": f"/api/items/{answer['ids'][0]}"} if len(answer["ids"]) == 1 else None
    return Json(answer, status_code=201, headers=headers)


@router.put("/api/items/{id}", **_describe(models.ChangeAnswer, "changes", body="ReplaceRequest"))
async def _replace(request: Request, service: _ServiceOf, id: _Id, mode: _Mode = "fast") -> Response:
    """Replace a picture by other vectors, or by one that is uploaded; it keeps its id."""
    return Json(await _change(request, service, id, mode))


@router.delete("/api/items/{id}", **_describe(models.ChangeAnswer, "changes"))
async def _remove(request: Request, service: _ServiceOf, id: _Id, mode: _Mode = "fast") -> Response:
    """Remove a picture: no search finds it when the answer comes. Its file stays, and its id is never reused."""
    changes = service.require_changes()
    await service.wait_until_warm()
    lift_time_limit(request.scope)
    return Json(await changes.run(lambda: changes.remove(id, mode)))


@router.post("/api/compact", **_describe(models.ChangesAnswer, "changes", 202))
async def _compact(service: _ServiceOf) -> Response:
    """Begin to make the index as if it were built from its pictures; /api/changes has the progress."""
    changes = service.require_changes()
    await service.wait_until_warm()
    changes.compact()
    return Json(_describe_changes(service), status_code=202)


@router.get("/api/changes", **_describe(models.ChangesAnswer, "changes"))
async def _changes(service: _ServiceOf) -> Response:
    """The generation that is served, and the changes in work."""
    return Json(_describe_changes(service))


@router.post(
    "/api/search",
    **_describe(
        models.SearchAnswer, "search", body="SearchRequest",
        description="JSON as SearchRequest, without vectors and query.",
        examples=['{"top": 24, "box": [0.1, 0.2, 0.6, 0.9]}'],
    ),
)  # fmt: skip
async def _search(request: Request, service: _ServiceOf) -> Response:
    """Search by pictures of the index, wanted and not, by vectors, by an uploaded picture, or by a part of one."""
    form = await _read_body(request, service, "search")
    decodes = form.image is not None or b'"box"' in form.text
    return await service.run(
        lambda view: Json(view.search(SearchRequest.model_validate_json(form.text), form.image)),
        service.picturing if decodes else service.searches,
    )


@router.get("/api/explain", **_describe(models.ExplainAnswer, "search"))
async def _explain(
    service: _ServiceOf,
    query: Annotated[str, Query(max_length=4000, description="The query of an answer.", examples=["i:3,8,-5"])],
    item: Annotated[int, Query(ge=0, description="The hit to explain.", examples=[17])],
    seeds: Annotated[int, Query(ge=1, le=1000, description="As in the search.")] = 10,
) -> Response:
    """Why a picture was found: what each seed contributes to its score, and the strongest chain of pictures to it."""
    return await service.run(lambda view: Json(view.explain(query, item, seeds)))


@router.get("/api/info", **_describe(models.Info, "pictures"))
async def _info(service: _ServiceOf) -> Response:
    """What the index holds, what can be done with it, and the limits."""
    return await service.run(lambda view: Json(view.describe()), service.lookups)


@router.get("/api/items", **_describe(models.Page, "pictures"))
async def _items(
    service: _ServiceOf,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 60,
    shuffle: Annotated[
        int | None, Query(ge=0, le=2**53, description="In a random order, the same for the same number.", examples=[7])
    ] = None,
    q: Annotated[str, Query(max_length=200, description="Only names that contain this.", examples=["oxford"])] = "",
) -> Response:
    """Some of the pictures, and how many there are."""
    return await service.run(lambda view: Json(view.list_items(offset, limit, q, shuffle)), service.lookups)


@router.get("/api/items/{id}", **_describe(models.Item, "pictures"))
async def _item(service: _ServiceOf, id: _Id) -> Response:
    """One picture: its name and its metadata."""
    return await service.run(lambda view: Json(view.read_item(id)), service.lookups)


@router.get("/healthz", **_describe(models.Status, "service"))
async def _healthz() -> Response:
    """Liveness."""
    return Json({"status": "ok"})


@router.get("/readyz", **_describe(models.Status, "service"))
async def _readyz(service: _ServiceOf) -> Response:
    """Readiness: the service is warm, so that the first request is as fast as the others, and can read its index."""
    if not (warming := service.warm()).done():
        raise Problem(503, "the service is warming up", "ask again in a moment")
    warming.result()
    await service.run(lambda _: None, service.lookups)
    return Json({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse, tags=["service"])
async def _metrics(service: _ServiceOf) -> Response:
    """Counts and times of requests, in the text format of Prometheus."""
    generation, images, stale = service.engine.summarize()
    gauges: dict[str, tuple[str, float]] = {
        "suffuse_requests_in_flight": ("Requests that have no answer yet.", service.metrics.in_flight),
        "suffuse_searches_waiting": ("Searches in work or in line.", service.searches.busy),
        "suffuse_pictures_waiting": ("Pictures in work or in line.", service.picturing.busy),
        "suffuse_queries_remembered": ("Queries that are kept.", len(service.engine.queries)),
        "suffuse_images": ("Pictures in the index.", images),
        "suffuse_generation": ("The generation of the index, which goes up with every change.", generation),
        "suffuse_stale_share": ("The share of columns that wait for a compaction.", stale),
    }
    return PlainTextResponse(service.metrics.render(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/api/items/{id}/image", responses=_PICTURE, response_class=Response, tags=["pictures"])
async def _image(service: _ServiceOf, id: _Id) -> Response:
    """The file of a picture, as it is."""
    path = await service.run(lambda view: _get_pictures(view).find(view.read_item(id)["name"]), service.picturing)
    headers = {"Cache-Control": service.freshness}
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix.lower()], headers=headers)


@router.get("/api/items/{id}/thumb", responses=_PICTURE, response_class=Response, tags=["pictures"])
async def _thumb(
    request: Request,
    service: _ServiceOf,
    id: _Id,
    size: Annotated[int, Query(ge=16, le=1024, description="The longer side, in pixels.")] = 320,
) -> Response:
    """A small JPEG of a picture, turned upright."""
    thumb = await service.run(
        lambda view: _get_pictures(view).make_thumb(view.read_item(id)["name"], size), service.picturing
    )
    headers = {"ETag": thumb.etag, "Cache-Control": service.freshness}
    if thumb.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(thumb.data, media_type="image/jpeg", headers=headers)


def _get_pictures(view: View) -> Pictures:
    if view.engine.pictures is None:
        raise Problem(404, "this index is served without pictures", "start the service with a folder of pictures")
    return view.engine.pictures


def _describe_changes(service: Service) -> dict[str, Any]:
    idle = {"changing": 0, "compacting": False, "progress": None, "last_error": None}
    work = idle if service.changes is None else service.changes.describe()
    return {"enabled": service.changes is not None, **service.engine.summarize()._asdict(), **work}


async def _change(request: Request, service: Service, id: int | None, mode: Mode) -> dict[str, Any]:
    changes = service.require_changes()
    form = await _read_body(request, service, "change")
    if form.image is not None:
        changes.check()
        upload = await service.run(lambda _: changes.read_form(form), service.picturing)
        lift_time_limit(request.scope)
        return await changes.run(lambda: changes.upload(id, upload, mode))
    await service.wait_until_warm()
    lift_time_limit(request.scope)
    if id is None:
        return await changes.run(lambda: changes.add(form.text, mode))
    return await changes.run(lambda: changes.replace(id, form.text, mode))


async def _read_body(request: Request, service: Service, purpose: str) -> Form:
    """The JSON of a request, with the file beside it where the body is a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return Form(await request.body())
    if kind != "multipart/form-data":
        raise Problem(415, f"a {purpose} takes application/json or multipart/form-data", "set the Content-Type")
    most = service.engine.limits.upload_bytes
    async with request.form(max_files=1, max_fields=4, max_part_size=FORM_BYTES) as form:
        image, text = form.get("image"), form.get("request", "{}")
        if not isinstance(image, UploadFile) or not isinstance(text, str):
            raise Problem(422, "the form needs a file 'image', and may have a text 'request'")
        data = await image.read(most + 1)
    if len(data) > most:
        raise Problem(413, f"the file is longer than {most:,} bytes", "make the picture smaller first")
    return Form(text.encode(), data, image.filename or "")
