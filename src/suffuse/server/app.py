"""The application: endpoints, the page, its documentation, and the guard around them all."""

import contextlib
import functools
import importlib.util
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from suffuse import __version__
from suffuse.errors import InvalidInput, MissingExtra, SuffuseError
from suffuse.index.online import Generation
from suffuse.server import problems
from suffuse.server.changes import Changes, refusal
from suffuse.server.engine import Engine, Searching
from suffuse.server.guard import Guard, Rules
from suffuse.server.models import About, AddRequest, Limits, ProblemAnswer, ReplaceRequest, SearchRequest
from suffuse.server.queries import Extractor
from suffuse.server.routes import Service, make_router

logger = logging.getLogger(__name__)

_PAGE = Path(__file__).parent / "page"
_DOCS = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Suffuse: the API</title>
<link rel="stylesheet" href="docs/files/swagger-ui.css">
<link rel="icon" href="docs/files/favicon.png">
</head>
<body>
<div id="docs"></div>
<script src="docs/files/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_DOCS_START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null});\n'
# Its style sheet has pictures in it, and it writes style attributes.
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
    image_root  the folder of the pictures that the items' names lie in; by default the one the index was made from
    extractor   the model for uploads; by default the one the index was made with, which a database does not know
    schema      where the index is in a database
    """
    limits = limits or Limits()
    if image_root is not None and not Path(image_root).is_dir():
        raise InvalidInput(f"there is no folder {image_root}; give the one that the items' names lie in")
    if is_database(index_path):
        if importlib.util.find_spec("psycopg") is None:
            raise MissingExtra("psycopg", "postgres")
        from suffuse.server.database import DatabaseEngine

        root = None if image_root is None else Path(image_root)
        engine: Searching = DatabaseEngine(str(index_path), schema, image_root=root, extractor=extractor, limits=limits)
    else:
        index = Generation.open(index_path)
        root, extractor = _resolved(index, image_root, extractor)
        engine = Engine(Path(index_path), index, image_root=root, extractor=extractor, limits=limits)
    if isinstance(engine, Engine) and token is not None and not read_only:
        service = Service(engine, Changes(engine))
    else:
        in_database = not isinstance(engine, Engine)
        refused = functools.partial(
            refusal, has_token=token is not None, read_only=read_only, in_database=in_database
        )  # fmt: skip
        service = Service(engine, refused)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.open()
        yield
        service.close()

    app = FastAPI(
        title=title, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
        description="Find images the way diffusion does: search, feedback, and why a picture was found.",
    )  # fmt: skip
    app.state.service = service
    app.include_router(make_router())
    _add_documentation(app, secured=token is not None)
    if (_PAGE / "index.html").is_file():
        _add_page(app)
    problems.install(app)
    app.add_middleware(
        Guard, rules=Rules(limits=limits, token=token, hosts=hosts, shared=bool(cors)), metrics=service.metrics
    )
    if cors:
        # Around the guard: a browser asks whether it may before it shows the token.
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors), allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type"], max_age=600,
        )  # fmt: skip
    return app


def is_database(index: str | Path) -> bool:
    """Whether this is the URL of a database, and no directory."""
    return str(index).startswith(("postgresql://", "postgres://"))


def _resolved(
    index: Generation, image_root: str | Path | None, extractor: Extractor | None
) -> tuple[Path | None, Extractor | None]:
    """Where the pictures are and what makes vectors of them, as told or as the index says."""
    pictures = index.manifest.pictures or {}
    root = image_root or pictures.get("root")
    root = None if root is None else Path(root)
    if root is not None and not root.is_dir():
        logger.warning("there is no folder %s any more: served without pictures; give the folder by --images", root)
        root = None
    if extractor is None and pictures.get("extractor"):
        try:
            from suffuse.images import extractor_from

            extractor = extractor_from(pictures["extractor"])
        except (ImportError, SuffuseError) as error:
            logger.warning("pictures cannot be uploaded: %s", error)
    return root, extractor


def _add_documentation(app: FastAPI, *, secured: bool) -> None:
    """/docs, with the files of an installed package, so that it works without the internet."""
    generated = app.openapi

    def described() -> dict[str, Any]:
        schema = generated()
        for model in (SearchRequest, AddRequest, ReplaceRequest, About, ProblemAnswer):
            described_model = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema["components"]["schemas"] |= {**described_model.pop("$defs", {}), model.__name__: described_model}
        if secured:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        return schema

    app.openapi = described  # type: ignore[method-assign]
    found = importlib.util.find_spec("fastapi_offline")
    if found is None or found.origin is None:
        return
    headers = {"Content-Security-Policy": _DOCS_POLICY}

    async def docs() -> Response:
        return HTMLResponse(_DOCS, headers=headers)

    async def docs_start() -> Response:
        return Response(_DOCS_START, media_type="text/javascript")

    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/docs/start.js", docs_start, include_in_schema=False)
    app.mount("/docs/files", StaticFiles(directory=Path(found.origin).parent / "static"))


def _add_page(app: FastAPI) -> None:
    async def page() -> Response:
        return FileResponse(_PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    app.add_api_route("/", page, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=_PAGE))
