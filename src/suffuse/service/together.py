"""Similarities for several searches at once: what is asked for while one scan runs is answered together by the next.

A scan of few vectors is bound by memory, so that eight searches together take little longer than two of them alone, and
nobody waits for others to come: a search that is alone begins at once.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffuse.neighbors import Features
from suffuse.similar import Scan

# Vectors of one scan; more would not be read any faster.
_MOST = 32


@dataclass(eq=False)
class _Asked:
    rows: Features
    woken: threading.Event = field(default_factory=threading.Event)
    sims: NDArray[np.float32] | None = None
    error: BaseException | None = None


class Together:
    """A scan that many threads may call; each gets what it would have got alone, to the bit."""

    def __init__(self, scan: Scan) -> None:
        self._scan, self._lock = scan, threading.Lock()
        self._waiting: list[_Asked] = []
        self._busy = False

    def __call__(self, rows: Features) -> NDArray[np.float32]:
        """Similarities of rows (m, d) to all elements."""
        own = _Asked(rows)
        with self._lock:
            self._waiting.append(own)
            leads, self._busy = not self._busy, True
        if not leads:
            own.woken.wait()
        if own.sims is None and own.error is None:
            self._lead()  # from now on at the head of the line
        if own.error is not None:
            raise own.error
        assert own.sims is not None
        return own.sims

    def _lead(self) -> None:
        """Scan for all who wait, and have the first of those who came meanwhile go on."""
        with self._lock:
            batch = self._next_batch()
        try:
            sims, first = self._scan(np.concatenate([asked.rows for asked in batch])), 0
            for asked in batch:
                asked.sims, first = sims[first : first + len(asked.rows)], first + len(asked.rows)
        except BaseException as error:
            for asked in batch:
                asked.error = error
        finally:
            with self._lock:
                self._busy = bool(self._waiting)
                heir = self._waiting[0] if self._waiting else None
            for asked in batch if heir is None else (*batch, heir):
                asked.woken.set()

    def _next_batch(self) -> list[_Asked]:
        """Take those from the head of the line whose vectors fit into one scan."""
        count, rows = 0, 0
        for asked in self._waiting:
            if count and rows + len(asked.rows) > _MOST:
                break
            count, rows = count + 1, rows + len(asked.rows)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch
