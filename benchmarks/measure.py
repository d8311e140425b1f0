"""How benchmarks time things and say what they found: interleaved repetitions, memory, rows of a table."""

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from suffuse.core.blas import cores, one_thread


class Times(NamedTuple):
    """Seconds of each repetition of one piece of work."""

    cpu: NDArray[np.float64]
    wall: NDArray[np.float64]

    @property
    def typical_cpu(self) -> float:
        """The median: a repetition that the machine disturbed does not count."""
        return float(np.median(self.cpu))

    @property
    def typical_wall(self) -> float:
        """The median of the wall clock."""
        return float(np.median(self.wall))

    def to_dict(self) -> dict[str, list[float]]:
        """Plain values for JSON."""
        return {"cpu": self.cpu.tolist(), "wall": self.wall.tolist()}


def interleaved(repetitions: int, *pieces: Callable[[], Any]) -> list[Times]:
    """Time pieces of work in turn, so that what disturbs the machine disturbs all of them; each runs once before.

    CPU seconds are those of the whole process, so a piece may use threads.
    """
    for piece in pieces:
        piece()  # the first run loads kernels and touches the data
    taken = np.empty((repetitions, len(pieces), 2))
    for repetition in range(repetitions):
        order = range(len(pieces)) if repetition % 2 == 0 else reversed(range(len(pieces)))
        for place in order:
            cpu, wall = time.process_time(), time.perf_counter()
            pieces[place]()
            taken[repetition, place] = time.process_time() - cpu, time.perf_counter() - wall
    return [Times(taken[:, place, 0], taken[:, place, 1]) for place in range(len(pieces))]


def interleaved_queries(count: int, *answers: Callable[[int], Any]) -> list[Times]:
    """Time ways to answer query q = 0..count, in turn for each query; CPU seconds are those of this thread."""
    for answer in answers:
        answer(0)
    taken = np.empty((count, len(answers), 2))
    for q in range(count):
        order = range(len(answers)) if q % 2 == 0 else reversed(range(len(answers)))
        for place in order:
            cpu, wall = time.thread_time(), time.perf_counter()
            answers[place](q)
            taken[q, place] = time.thread_time() - cpu, time.perf_counter() - wall
    return [Times(taken[:, place, 0], taken[:, place, 1]) for place in range(len(answers))]


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """One thread for everything: faiss, and the BLAS of numpy and scipy, whose helpers `thread_time` would not see."""
    with threadpool_limits(1), one_thread():
        yield


def peak_memory() -> int:
    """The most bytes this process has had resident, mapped files included.

    VmHWM, since ru_maxrss also counts what the parent held when it started this process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM; this measurement needs Linux")


def machine() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {"cores": cores(), "python": platform.python_version(), "load": round(load, 2), "numpy": np.__version__}


Verdict = Literal["aim", "met", "missed", "not available", "-"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bar: what was measured, what it is held against, and whether that was reached."""

    key: str  # for --only
    what: str
    value: float | None = None  # None: not available
    unit: str = "x"
    bar: float | None = None  # None: for information only
    aim: float | None = None
    at_least: bool = False  # more is better
    sound: bool = True  # whether the quality is what it must be; speed without it is a miss
    ours: str = ""
    reference: str = ""
    quality: str = ""
    threads: str = "1"
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """aim, met or missed."""
        if self.value is None:
            return "not available"
        if self.bar is None or self.aim is None:
            return "-"
        if not self.sound:
            return "missed"
        sign = 1 if self.at_least else -1
        if sign * self.value >= sign * self.aim:
            return "aim"
        return "met" if sign * self.value >= sign * self.bar else "missed"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """A short time in words."""
    return f"{number(1000 * seconds)} ms"


def bars_table(rows: Iterable[Row]) -> str:
    """All bars as Markdown."""
    lines = []
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        found = "-" if row.value is None else f"{number(row.value)} {row.unit}"
        bar, aim = (f"{sign} {number(limit)} {row.unit}" if limit is not None else "" for limit in (row.bar, row.aim))
        lines.append((row.what, found, bar, aim, row.verdict, row.ours, row.reference, row.quality, row.threads))
    heads = ("what", "found", "bar", "aim", "verdict", "ours", "reference", "quality", "threads")
    return markdown(heads, lines)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    ruler = "|" + "---|" * len(heads)
    return "\n".join(["| " + " | ".join(heads) + " |", ruler, *("| " + " | ".join(line) + " |" for line in lines)])
