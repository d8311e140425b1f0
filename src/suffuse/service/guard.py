"""What happens to every request around its route: host, token, size of the body, time, headers, metrics.

Plain ASGI, since it sees every byte that comes in and every header that goes out.
"""

import asyncio
import hmac
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffuse.service.limits import Limits
from suffuse.service.metrics import Metrics
from suffuse.service.problems import Problem, answer, problem_of

# Addresses that tell nothing about the pictures, so that anyone may ask. The page asks for the token itself.
_OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
_OPEN_BELOW = ("/static/", "/docs/")
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
# What a multipart body has besides the file.
_ENVELOPE = 1_000_000
# Where requests that change something have longer JSON. Whoever has no token never gets so far.
_CHANGED, _CHANGING = "/api/items", ("POST", "PUT")
# Under which a request finds what ends its time limit.
_TIME = "suffuse.take_time"

_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Whom the service answers, and how much it takes."""

    limits: Limits
    token: str | None  # None: everyone who reaches the port
    hosts: Collection[str] | None  # names the service goes by; None: any
    shared: bool  # whether pages of other origins may read answers


class Guard:
    """The outermost application: lets a request in or answers itself, and adds to every answer what all have."""

    def __init__(self, app: ASGIApp, rules: Rules, metrics: Metrics) -> None:
        self._app, self._rules, self._metrics = app, rules, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_in_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                limit.reschedule(None)  # a slow reader of a large picture may take its time
            await send_with_headers(message)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._complete(MutableHeaders(scope=message))
            await send(message)

        self._metrics.in_flight += 1
        try:
            async with asyncio.timeout(self._rules.limits.seconds) as limit:
                scope[_TIME] = lambda: limit.reschedule(None)
                await self._admitted(scope, _counted(receive, scope, self._rules.limits), send_in_time)
        except Exception as error:
            if status:
                raise  # the answer has begun: nothing but to break it off
            problem = problem_of(error)
            if isinstance(error, TimeoutError):
                problem = Problem(504, f"no answer within {self._rules.limits.seconds:g} seconds", "ask for less")
            await answer(problem)(scope, receive, send_with_headers)
        finally:
            self._metrics.in_flight -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.record(method, _route(scope), status, time.perf_counter() - began)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """What a request gets that does not come in."""
        rules, path = self._rules, scope["path"]
        if rules.hosts is not None and _host(headers) not in rules.hosts:
            # A page elsewhere can make its own name point here, and would then read what is meant for this machine.
            return answer(
                Problem(400, "this service does not go by that name", "use the address that it was started on")
            )
        if rules.token is None or path in _OPEN or path.startswith(_OPEN_BELOW):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), rules.token):
            return None
        hint = "send the header Authorization: Bearer TOKEN"
        return answer(Problem(401, "a token is needed", hint, {"WWW-Authenticate": "Bearer"}))

    def _complete(self, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if not self._rules.shared:
            headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")


def take_time(scope: Scope) -> None:
    """Let a request take as long as it does: what it has begun to write would be finished anyway."""
    scope[_TIME]()


def _counted(receive: Receive, scope: Scope, limits: Limits) -> Receive:
    """`receive` that ends a request whose body is too long, as soon as it is."""
    headers = Headers(scope=scope)
    upload = headers.get("content-type", "").startswith("multipart/form-data")
    changing = scope.get("method") in _CHANGING and scope.get("path", "").startswith(_CHANGED)
    most = limits.upload_bytes + _ENVELOPE if upload else limits.change_bytes if changing else limits.json_bytes
    told, total = headers.get("content-length", ""), 0

    async def counted() -> Message:
        nonlocal total
        if told.isdecimal() and int(told) > most:
            raise _too_long(most)
        message = await receive()
        if message["type"] == "http.request":
            total += len(message.get("body", b""))
            if total > most:
                raise _too_long(most)
        return message

    return counted


def _too_long(most: int) -> Problem:
    # What is still on its way is not read, so the connection cannot be used again.
    return Problem(413, f"the body is longer than {most:,} bytes", "send less at a time", {"Connection": "close"})


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _same(given: str, expected: str) -> bool:
    """Compared in a time that does not tell how much of it is right; `given` are the bytes of a header."""
    return hmac.compare_digest(given.encode("latin-1"), expected.encode())


def _route(scope: Scope) -> str:
    """The pattern of the address, so that there are few of them."""
    return str(getattr(scope.get("route"), "path", "other"))
