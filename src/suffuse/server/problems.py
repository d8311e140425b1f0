"""Every error of the service in one shape: {"error": {"code", "message", "hint"}}, never a path or a trace."""

import errno
import json
import logging
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from suffuse.errors import ChangeFailed, IndexBusy, IndexProblem, InvalidInput, InvalidParams

logger = logging.getLogger(__name__)

_MESSAGES = {404: "there is nothing at this address", 405: "this address does not take that method"}
CODES = {400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}
CODES |= dict.fromkeys((409, 415, 501), "unsupported")
CODES |= {503: "busy", 504: "timeout", 507: "no_space", 500: "internal"}
# The errors of a disk without room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Of one request: a body can have a thousand errors.
_MOST_COMPLAINTS = 3


class Problem(Exception):
    """The error that a client gets instead of an answer."""

    def __init__(
        self, status: int, message: str, hint: str | None = None, headers: dict[str, str] | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint
        self.headers = {**({"Retry-After": "1"} if status == 503 else {}), **(headers or {})}
        self.code = code or CODES.get(status, CODES[400])

    def to_dict(self) -> dict[str, str | None]:
        """The JSON of the problem."""
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def to_response(self) -> "Json":
        """The HTTP answer."""
        return Json({"error": self.to_dict()}, status_code=self.status, headers=self.headers)


class Busy(Problem):
    """The index is being changed."""

    def __init__(self, message: str) -> None:
        super().__init__(409, message, "try again in a moment", {"Retry-After": "2"}, "busy")


class Json(Response):
    """An answer in JSON; numbers that are not finite become null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        try:
            return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError:  # metadata may hold integers of more than 64 bits
            return json.dumps(content).encode()


def describe_error(error: Exception) -> Problem:
    """The problem that a client sees; the details of unexpected errors go to the log only."""
    match error:
        case Problem():
            return error
        case RequestValidationError() | ValidationError():
            return Problem(422, _join_complaints(error))
        case HTTPException():
            message = _MESSAGES.get(error.status_code, str(error.detail))
            return Problem(error.status_code, message, headers=dict(error.headers or {}))
        case InvalidInput() | InvalidParams():
            return Problem(422, str(error))
        case IndexBusy():
            logger.info("a change has to wait: %s", error)
            return Busy("another process is changing the index")
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
    return Problem(500, "something went wrong in the service; its log says what")


def _join_complaints(error: RequestValidationError | ValidationError) -> str:
    errors, complaints = error.errors(), []
    for one in errors[:_MOST_COMPLAINTS]:
        # Without the input, which can be as long as the body.
        where = ".".join(str(part) for part in one["loc"] if part != "body")[:100]
        complaints.append((where and f"{where}: ") + one["msg"][:200])
    more = len(errors) - len(complaints)
    return "; ".join(complaints) + (f"; and {more} more" if more else "")


async def answer_error(_request: Request, error: Exception) -> Response:
    """Give an error that FastAPI would answer itself this shape; `guard.Guard` answers all others."""
    return describe_error(error).to_response()
