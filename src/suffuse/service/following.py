"""A thread that looks now and then whether another process has changed the index."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from suffuse.errors import SuffuseError
from suffuse.manifest import MANIFEST

logger = logging.getLogger(__name__)


class Follower:
    """Calls `refresh` when the manifest is another file; what it raises is logged once, and tried again."""

    def __init__(self, index: Path, refresh: Callable[[], object], seconds: float) -> None:
        self._manifest, self._refresh, self._seconds = index / MANIFEST, refresh, seconds
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, unless it has begun."""
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._ended,), name="suffuse-follow", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        if self._thread is not None and self._ended is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _run(self, ended: threading.Event) -> None:
        # None at first: it may have changed between the opening of the index and now.
        seen = told = None
        while not ended.wait(self._seconds):
            now = self._signature()
            if now is None or now == seen:
                continue
            try:
                self._refresh()
                seen = now
            except (SuffuseError, OSError) as error:
                if now != told:
                    logger.warning("the index changed, and cannot be read; the old one is served on: %s", error)
                told = now
            except Exception:
                logger.exception("the index changed, and cannot be served; the old one is served on")
                seen = now

    def _signature(self) -> tuple[int, int, int] | None:
        """What is another for every manifest that is written; None while there is none."""
        with contextlib.suppress(OSError):
            found = self._manifest.stat()
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None
