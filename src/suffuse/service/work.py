"""Work in threads, so that the event loop never waits: searches, lookups and pictures each in a pool of their own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from suffuse.service.problems import Problem

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
