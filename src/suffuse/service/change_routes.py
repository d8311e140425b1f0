"""The endpoints that change the index, for whoever has the token, and the one that tells what is being changed."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from suffuse.service import models
from suffuse.service.changing import Changes
from suffuse.service.guard import take_time
from suffuse.service.problems import Json, Problem
from suffuse.service.requests import content_type, schema_body, service_of, uploaded

Mode = Annotated[
    Literal["fast", "exact"],
    Query(description="fast: what is further away waits for a compaction. exact: as if built from all pictures."),
]
_ID = Path(ge=0, description="The number of a picture.", examples=[3])


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
