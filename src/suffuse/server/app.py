"""The application: routes, the page, the API's documentation, and the guard around them all."""

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from suffuse import __version__, images
from suffuse.errors import InvalidInput, MissingExtra, SuffuseError
from suffuse.images import Extractor
from suffuse.index.snapshot import Snapshot
from suffuse.server.changes import Changes
from suffuse.server.engine import Engine, IndexEngine
from suffuse.server.guard import Guard
from suffuse.server.models import About, AddRequest, Limits, ProblemAnswer, ReplaceRequest, SearchRequest
from suffuse.server.pictures import Pictures
from suffuse.server.problems import answer_error
from suffuse.server.queries import Queries
from suffuse.server.routes import Service, router

logger = logging.getLogger(__name__)

_PAGE, _DOCS = Path(__file__).parent / "page", Path(__file__).parent / "docs"
# Swagger's style sheet has pictures in it, and it writes style attributes.
_DOCS_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


def create_app(
    index_path: str | Path,
    *,
    token: str | None = None,
    read_only: bool = False,
    cors: Sequence[str] = (),
    hosts: Collection[str] | None = None,
    limits: Limits | None = None,
    image_root: str | Path | None = None,
    extractor: Extractor | None = None,
    title: str = "Suffuse",
    schema: str = "suffuse",
) -> FastAPI:
    """The service over one index: a directory, or the URL of a database that it was exported to.

    token       what every request must show, and what allows changes; None for everyone, and no changes
    read_only   allow no changes to those who have the token, either
    cors        origins whose pages may read answers, such as https://example.org
    hosts       names in the Host header that are answered; None for any
    image_root  the folder below which the items' names are paths; by default the one the index was made from
    extractor   the model for uploads; by default the one the index was made with, which a database does not know
    schema      where the index is in a database
    """
    limits = limits or Limits()
    if image_root is not None and not Path(image_root).is_dir():
        raise InvalidInput(f"there is no folder {image_root}; give the one that the items' names lie in")
    if str(index_path).startswith(("postgresql://", "postgres://")):
        if importlib.util.find_spec("psycopg") is None:
            raise MissingExtra("psycopg", "postgres")
        from suffuse.server.database import DatabaseEngine

        engine: Engine = DatabaseEngine(str(index_path), schema, _make_queries({}, image_root, extractor, limits))
    else:
        index = Snapshot.open(index_path)
        queries = _make_queries(index.manifest.pictures or {}, image_root, extractor, limits)
        engine = IndexEngine(Path(index_path), index, queries)
    service = _make_service(engine, has_token=token is not None, read_only=read_only)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.open()
        yield
        service.close()

    app = FastAPI(
        title=title, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
        exception_handlers={HTTPException: answer_error, RequestValidationError: answer_error},
        description="Re-rank image search by diffusion on the k-NN graph: search, feedback, and explanations of hits.",
    )  # fmt: skip
    app.state.service = service
    app.include_router(router)
    _add_documentation(app, secured=token is not None)
    if (_PAGE / "index.html").is_file():
        _add_file(app, "/", _PAGE / "index.html", {"Cache-Control": "no-cache"})
        app.mount("/static", StaticFiles(directory=_PAGE))
    app.add_middleware(Guard, limits=limits, metrics=service.metrics, token=token, hosts=hosts, shared=bool(cors))
    if cors:
        # Around the guard: a browser asks whether it may before it shows the token.
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors), allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type"], max_age=600,
        )  # fmt: skip
    return app


def _make_queries(
    known: dict[str, Any], image_root: str | Path | None, extractor: Extractor | None, limits: Limits
) -> Queries:
    """Queries with the folder of the pictures and the model that are given, else with those that the index knows."""
    folder = image_root or known.get("root")
    root = None if folder is None else Path(folder)
    if root is not None and not root.is_dir():
        logger.warning("there is no folder %s any more: served without pictures; start with where they are", root)
        root = None
    if extractor is None and known.get("extractor"):
        try:
            extractor = images.extractor_from(known["extractor"])
        except (ImportError, SuffuseError) as error:
            logger.warning("pictures cannot be uploaded: %s", error)
    return Queries(None if root is None else Pictures(root, limits), extractor, limits)


def _make_service(engine: Engine, *, has_token: bool, read_only: bool) -> Service:
    """The service with a writer, or with the reason why it takes no changes."""
    if not isinstance(engine, IndexEngine):
        refusal = 501, "an index in a database is not changed here", "change the index itself, then export it again"
    elif not has_token:
        hint = "start the service with a token in SUFFUSE_TOKEN, then send Authorization: Bearer TOKEN"
        refusal = 403, "this service takes no changes, as it has no token", hint
    elif read_only:
        refusal = 403, "this service takes no changes", "start one that is not read-only"
    else:
        return Service(engine, Changes(engine))
    return Service(engine, None, refusal)


def _add_documentation(app: FastAPI, *, secured: bool) -> None:
    """/docs, with the files of an installed package, so that it works without the internet."""
    generate = app.openapi

    def describe() -> dict[str, Any]:
        schema = generate()
        for model in (SearchRequest, AddRequest, ReplaceRequest, About, ProblemAnswer):
            described = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema["components"]["schemas"] |= {**described.pop("$defs", {}), model.__name__: described}
        if secured:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        return schema

    app.openapi = describe  # type: ignore[method-assign]
    swagger = importlib.util.find_spec("fastapi_offline")
    if swagger is not None and swagger.origin is not None:
        headers = {"Content-Security-Policy": _DOCS_POLICY, "Cache-Control": "no-store"}
        _add_file(app, "/docs", _DOCS / "index.html", headers)
        _add_file(app, "/docs/start.js", _DOCS / "start.js", {"Cache-Control": "no-store"})
        app.mount("/docs/files", StaticFiles(directory=Path(swagger.origin).parent / "static"))


def _add_file(app: FastAPI, address: str, file: Path, headers: dict[str, str]) -> None:
    async def send() -> Response:
        return FileResponse(file, headers=headers)

    app.add_api_route(address, send, include_in_schema=False)
