"""What happens around every route: who may ask, how long and how large a request may be, headers, metrics, threads."""

import asyncio
import bisect
import hmac
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffuse.server.models import Limits
from suffuse.server.problems import Problem, describe_error

R = TypeVar("R")

# Upper ends of the buckets, in seconds: a query takes milliseconds, an upload most of a second.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Addresses that show nothing of the pictures, so that they need no token. The page asks for the token itself.
_OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
_OPEN_BELOW = ("/static/", "/docs/")
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
# Bytes of a multipart body besides the file.
FORM_BYTES = 1_000_000
# The key of a request's scope with the function that ends its time limit.
_TIME = "suffuse.lift_time_limit"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class Metrics:
    """Requests counted and timed, in the text format of Prometheus: a histogram for each method, route and status."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self.in_flight = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request that has been answered."""
        labels = f'method="{method}",route="{route}",status="{status}"'
        with self._lock:
            self._counts[labels][bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._sums[labels] += seconds

    def render(self, gauges: dict[str, tuple[str, float]]) -> str:
        """The text that Prometheus reads; `gauges` are name -> (help, value)."""
        with self._lock:
            counts = sorted((labels, list(buckets)) for labels, buckets in self._counts.items())
            sums = dict(self._sums)
        lines = _declare("suffuse_requests_total", "counter", "Requests that have been answered.")
        lines += [f"suffuse_requests_total{{{labels}}} {sum(buckets)}" for labels, buckets in counts]
        lines += _declare("suffuse_request_seconds", "histogram", "Time from the request to the end of the answer.")
        for labels, buckets in counts:
            for end, total in zip((*map(str, _BUCKETS), "+Inf"), itertools.accumulate(buckets), strict=True):
                lines.append(f'suffuse_request_seconds_bucket{{{labels},le="{end}"}} {total}')
            lines.append(f"suffuse_request_seconds_sum{{{labels}}} {sums[labels]:.6f}")
            lines.append(f"suffuse_request_seconds_count{{{labels}}} {sum(buckets)}")
        for name, (text, value) in gauges.items():
            lines += [*_declare(name, "gauge", text), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _declare(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


@dataclass(kw_only=True)
class Guard:
    """The outermost application: admits a request or refuses it, and adds headers and metrics to every answer."""

    app: ASGIApp = field(kw_only=False)
    limits: Limits
    metrics: Metrics
    token: str | None  # None: everyone who reaches the port
    hosts: Collection[str] | None  # names the service goes by; None: any
    shared: bool  # whether pages of other origins may read answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, limits = time.perf_counter(), 0, self.limits

        async def send_in_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                limit.reschedule(None)  # a client may read a large picture slowly
            await send_with_headers(message)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(MutableHeaders(scope=message))
            await send(message)

        self.metrics.in_flight += 1
        try:
            async with asyncio.timeout(limits.seconds) as limit:
                scope[_TIME] = lambda: limit.reschedule(None)
                self._admit(scope["path"], Headers(scope=scope))
                await self.app(scope, limit_body(receive, scope, limits), send_in_time)
        except Exception as error:
            if status:
                raise  # the answer has begun, and can only be broken off
            problem = describe_error(error)
            if isinstance(error, TimeoutError):
                problem = Problem(504, f"no answer within {limits.seconds:g} seconds", "ask for less")
            await problem.to_response()(scope, receive, send_with_headers)
        finally:
            self.metrics.in_flight -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            # By the pattern of the address: of these there are few.
            route = str(getattr(scope.get("route"), "path", "other"))
            self.metrics.record(method, route, status, time.perf_counter() - began)

    def _admit(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "").lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if self.hosts is not None and name not in self.hosts:
            # A page elsewhere can make its own name point here, and would then read what is meant for this machine.
            raise Problem(400, "this service does not go by that name", "use the address that it was started on")
        if self.token is None or path in _OPEN or path.startswith(_OPEN_BELOW):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Headers are decoded as Latin-1; the comparison takes constant time.
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode()):
            return
        hint = "send the header Authorization: Bearer TOKEN"
        raise Problem(401, "a token is needed", hint, {"WWW-Authenticate": "Bearer"})

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if not self.shared:
            headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")


def lift_time_limit(scope: Scope) -> None:
    """Let a request take as long as it needs: a change that has begun is finished in any case."""
    scope[_TIME]()


def limit_body(receive: Receive, scope: Scope, limits: Limits) -> Receive:
    """`receive` that raises a `Problem` as soon as the body of a request is too long."""
    headers = Headers(scope=scope)
    upload = headers.get("content-type", "").startswith("multipart/form-data")
    # Changes may have longer JSON; without a token no request gets so far.
    change = scope.get("method") in ("POST", "PUT") and scope.get("path", "").startswith("/api/items")
    most = limits.upload_bytes + FORM_BYTES if upload else limits.change_bytes if change else limits.json_bytes
    announced, total = headers.get("content-length", ""), 0

    async def count() -> Message:
        nonlocal total
        if not announced.isdecimal() or int(announced) <= most:
            message = await receive()
            total += len(message.get("body", b""))
            if total <= most:
                return message
        # The rest of the body is not read, so the connection cannot be used again.
        raise Problem(413, f"the body is longer than {most:,} bytes", "send less at a time", {"Connection": "close"})

    return count


class Workers:
    """A pool of threads whose queue has an end."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._threads = name, threads
        self._pool: ThreadPoolExecutor | None = None
        self._waiting, self.busy, self._lock = waiting, 0, threading.Lock()

    async def run(self, work: Callable[[], R]) -> R:
        """Do the work in a thread; work that is cancelled while it waits is never begun."""
        if self.busy >= self._waiting:
            raise Problem(503, "too many requests at once", "ask again in a moment")
        with self._lock:
            self.busy += 1
        future = self.submit(work)
        # Counted until it ends, even if nobody waits for it any more: a thread cannot be stopped.
        future.add_done_callback(self._count_down)
        return await asyncio.wrap_future(future)

    def _count_down(self, _: "Future[R]") -> None:
        with self._lock:
            self.busy -= 1

    def submit(self, work: Callable[[], R]) -> "Future[R]":
        """Begin work that nobody waits for yet; after `close` in new threads, as an app can be started again."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"suffuse-{self._name}")
            return self._pool.submit(work)

    def close(self) -> None:
        """Begin nothing more."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
