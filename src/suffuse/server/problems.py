"""Every error of the service in one shape: {"error": {"code", "message", "hint"}}, never a path or a trace."""

import errno
import json
import logging
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from suffuse.errors import ChangeFailed, IndexBusy, IndexProblem, InvalidInput, InvalidParams

logger = logging.getLogger(__name__)

_CODES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "invalid_request",
    409: "unsupported",
    413: "too_large",
    415: "unsupported",
    500: "internal",
    501: "unsupported",
    503: "busy",
    504: "timeout",
    507: "no_space",
}
# What it is called that there is no room for a change.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Seconds after which whoever finds the index being changed should ask again.
_BUSY_SECONDS = "2"
_INTERNAL = "something went wrong in the service; its log says what"
# Complaints of one request that are told: a body can be wrong in a thousand places.
_MOST_COMPLAINTS = 3


class Problem(Exception):
    """What a request gets instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.hint, self.headers = status, message, hint, headers
        self.code = code or _CODES.get(status, "invalid_request")

    def told(self) -> dict[str, str | None]:
        """What a client reads."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def busy(message: str) -> Problem:
    """The index is being changed."""
    return Problem(409, message, "try again in a moment", {"Retry-After": _BUSY_SECONDS}, "busy")


class Json(Response):
    """An answer written by orjson; numbers that are not finite become null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes."""
        try:
            return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError:  # whole numbers of more than 64 bits, which somebody's metadata may hold
            return json.dumps(content).encode()


def answer(problem: Problem) -> Json:
    """The one shape of all errors."""
    headers = dict(problem.headers or {})
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", "1")
    return Json({"error": problem.told()}, status_code=problem.status, headers=headers)


def problem_of(error: Exception) -> Problem:
    """Any error as what the client is told."""
    match error:
        case Problem():
            return error
        case RequestValidationError() | ValidationError():
            return Problem(422, _complaints(error))
        case HTTPException():
            headers = dict(error.headers) if error.headers else None
            return Problem(error.status_code, _described(error.status_code, str(error.detail)), headers=headers)
        case InvalidInput() | InvalidParams():
            return Problem(422, str(error))
        case IndexBusy():
            logger.info("a change has to wait: %s", error)
            return busy("another process is changing the index")
        case ChangeFailed():
            logger.error("a change failed: %s", error)
            hint = "the log of the service says why"
            if "as it was before" not in str(error):
                return Problem(503, "the change is made, but may be lost if the power fails now", hint)
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
                return Problem(507, "the disk is full; the index is as it was before", "make room, then try again")
            return Problem(503, "the index cannot be written; it is as it was before", hint)
        case IndexProblem():
            # Its message may hold a path.
            logger.error("the index cannot be used: %s", error)
            return Problem(500, "the index is damaged", "run suffuse verify on it")
    logger.error("a request failed", exc_info=error)
    return Problem(500, _INTERNAL)


def _complaints(error: RequestValidationError | ValidationError) -> str:
    told = []
    errors = error.errors()
    for one in errors[:_MOST_COMPLAINTS]:
        # Input is not told back: it can be as long as the body.
        where = ".".join(str(part) for part in one["loc"] if part != "body")[:100]
        told.append(f"{where}: {one['msg'][:200]}" if where else one["msg"][:200])
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _described(status: int, detail: str) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return "there is nothing at this address"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return "this address does not take that method"
    return detail


def install(app: FastAPI) -> None:
    """Make every error of the app's routes an answer of this shape."""

    async def handle(_request: Request, error: Exception) -> Response:
        return answer(problem_of(error))

    for kind in (
        Problem,
        RequestValidationError,
        ValidationError,
        HTTPException,
        InvalidInput,
        InvalidParams,
        IndexProblem,
        ChangeFailed,
    ):
        app.add_exception_handler(kind, handle)
