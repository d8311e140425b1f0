"""What this process may use of the machine."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def cores() -> int:
    """Processors that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_every_core(work: Callable[[int, int], T], count: int, step: int = 1) -> list[T]:
    """work(start, stop) of equal parts of 0..count, one for each core, in threads; parts begin at multiples of `step`.

    What they return is in the order of the parts. For work that leaves the GIL alone.
    """
    each = max(-(-count // (cores() * step)), 1) * step
    starts = range(0, count, each)
    with ThreadPoolExecutor(max(len(starts), 1)) as pool:
        return list(pool.map(lambda start: work(start, min(start + each, count)), starts))


def in_blocks(work: Callable[[int, int], T], count: int, block: int) -> list[T]:
    """The same in blocks of this size, of which no core has more than one at a time; an empty one of nothing."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda start: work(start, min(start + block, count)), range(0, max(count, 1), block)))
