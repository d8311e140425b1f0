"""Requests counted and timed, in the text format of Prometheus."""

import asyncio
import bisect
import hmac
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffuse.server.models import Limits
from suffuse.server.problems import Problem, answer, problem_of

# Upper ends of the buckets, in seconds: a query takes milliseconds, an upload most of a second.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One histogram of times for each method, route and status."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums: dict[tuple[str, str, int], float] = defaultdict(float)
        self._lock = threading.Lock()
        self.in_flight = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request that has been answered."""
        with self._lock:
            self._counts[method, route, status][bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._sums[method, route, status] += seconds

    def render(self, gauges: dict[str, tuple[str, float]]) -> str:
        """The page that Prometheus reads; `gauges` are name -> (help, value)."""
        with self._lock:
            counts = {key: list(buckets) for key, buckets in self._counts.items()}
            sums = dict(self._sums)
        lines = [
            "# HELP suffuse_requests_total Requests that have been answered.",
            "# TYPE suffuse_requests_total counter",
        ]
        lines += [f"suffuse_requests_total{{{_labels(key)}}} {sum(buckets)}" for key, buckets in sorted(counts.items())]
        lines += [
            "# HELP suffuse_request_seconds Time from the request to the end of the answer.",
            "# TYPE suffuse_request_seconds histogram",
        ]
        for key, buckets in sorted(counts.items()):
            total = 0
            for end, count in zip((*map(str, _BUCKETS), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'suffuse_request_seconds_bucket{{{_labels(key)},le="{end}"}} {total}')
            lines.append(f"suffuse_request_seconds_sum{{{_labels(key)}}} {sums[key]:.6f}")
            lines.append(f"suffuse_request_seconds_count{{{_labels(key)}}} {total}")
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _labels(key: tuple[str, str, int]) -> str:
    method, route, status = key
    return f'method="{method}",route="{route}",status="{status}"'


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


R = TypeVar("R")


class Workers:
    """A pool with a line that is not endless."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._threads = name, threads
        self._pool: ThreadPoolExecutor | None = None
        self._waiting, self.busy, self._lock = waiting, 0, threading.Lock()

    async def run(self, work: Callable[[], R]) -> R:
        """Do the work in a thread; what is given up while it waits is never begun."""
        if self.busy >= self._waiting:
            raise Problem(503, "too many requests at once", "ask again in a moment")
        with self._lock:
            self.busy += 1
        future = self.submit(work)
        # Counted until it ends, even if nobody waits for it any more: a thread cannot be stopped.
        future.add_done_callback(self._ended)
        return await asyncio.wrap_future(future)

    def _ended(self, _: "Future[R]") -> None:
        with self._lock:
            self.busy -= 1

    def submit(self, work: Callable[[], R]) -> "Future[R]":
        """Begin work that nobody waits for yet; after `close` with new threads, as an app can be started again."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"suffuse-{self._name}")
            return self._pool.submit(work)

    def close(self) -> None:
        """Begin nothing more; what somebody waits for has been answered by now."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
