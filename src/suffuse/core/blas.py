"""What this process may use of the machine: its cores, and BLAS with the kernels and threads that fit."""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# OpenBLAS kernels without AVX2: what the faiss wheel falls back to on a CPU that it does not know.
_SLOW_ARCHITECTURES = frozenset({"Prescott", "Core2", "Katmai", "Penryn", "Dunnington", "Nehalem", "Atom", "Generic"})


def cores() -> int:
    """Processors that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_every_core(work: Callable[[int, int], T], count: int, step: int = 1) -> list[T]:
    """work(start, stop) of equal parts of 0..count, one for each core, in threads; parts begin at multiples of `step`.

    What they return is in the order of the parts. For work that leaves the GIL alone.
    """
    return in_blocks(work, count, max(-(-count // (cores() * step)), 1) * step) if count else []


def in_blocks(work: Callable[[int, int], T], count: int, block: int) -> list[T]:
    """The same in blocks of this size, of which no core has more than one at a time; an empty one of nothing."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda start: work(start, min(start + block, count)), range(0, max(count, 1), block)))


@functools.cache
def load_faiss() -> Any:
    """Import faiss with the BLAS kernel that this CPU deserves, and warn where that did not work.

    The OpenBLAS inside the faiss wheel does not know new CPUs and falls back to SSE3, five times slower. It
    reads OPENBLAS_CORETYPE once, when it is loaded; the variable is set for that moment only, and a
    user's own setting is left alone.
    """
    variable = "OPENBLAS_CORETYPE"
    chosen = _blas_core_type()
    set_here = chosen is not None and variable not in os.environ and "faiss" not in sys.modules
    if set_here:
        os.environ[variable] = str(chosen)
    try:
        import faiss
    finally:
        if set_here:
            os.environ.pop(variable, None)  # another thread may have been as early
    if (architecture := blas_architecture()) in _SLOW_ARCHITECTURES and chosen is not None:
        logger.warning(
            "faiss uses the slow BLAS kernel %s on a CPU that can do %s; import suffuse before faiss, or set %s=%s",
            architecture, chosen, variable, chosen,
        )  # fmt: skip
    return faiss


def blas_architecture() -> str | None:
    """The CPU kernel in use by the OpenBLAS inside the faiss wheel; None where faiss brings another BLAS."""
    from threadpoolctl import threadpool_info

    for library in threadpool_info():
        if library.get("internal_api") == "openblas" and "faiss" in library["filepath"]:
            return str(library.get("architecture"))
    return None


def _blas_core_type() -> str | None:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return "SkylakeX"
    return "Haswell" if features.get("avx2") else None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let searches of the calling thread use one thread: the caller runs several of them at once.

    faiss's number of threads is the calling thread's own. That of numpy's BLAS is the whole process's: it is one until
    the last of those who asked for it is done.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with _BLAS_LIMIT:
            yield
    finally:
        faiss.omp_set_num_threads(before)


class _BlasLimit:
    """One thread for BLAS while anybody is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limits = _blas_libraries().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limits is not None:
                self._limits.restore_original_limits()


_BLAS_LIMIT = _BlasLimit()


@functools.cache
def _blas_libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
