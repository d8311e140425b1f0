"""What may happen when foreign bytes are read: a result or an error of Suffuse, in little memory."""

import contextlib
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from suffuse.errors import SuffuseError

# Inputs have some thousand bytes. Readers may unpack 64 MiB of such a file, and work on it in float64.
MOST_MEMORY = 1 << 30
# What may be asked for beyond what the process has, touched or not: scipy asks for 4 GiB if a Matlab file says so.
_MOST_ADDRESSES = 6 << 30


class Absurd(Exception):
    """The input made a reader take, or ask for, far more memory than such an input can need."""


def judge(run: Callable[[bytes], None], data: bytes) -> None:
    """Read one input; whatever must not happen is raised."""
    before = _peak()
    with allowed():
        run(data)
    if (grown := _peak() - before) > MOST_MEMORY:
        raise Absurd(f"{grown >> 20} MiB for an input of {len(data)} bytes")


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Let errors of Suffuse pass, unless they hide that the memory was asked for and refused."""
    try:
        yield
    except SuffuseError as error:
        str(error)
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError) and not _is_parser(cause):
                raise Absurd(f"memory was asked for that is not there: {error}") from error
            cause = cause.__cause__ or cause.__context__


def _is_parser(error: BaseException) -> bool:
    """Whether it is Python's parser, which calls it a lack of memory if brackets are nested too deeply."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).name == "ast.py"


def _peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)


@contextlib.contextmanager
def scarce_memory() -> Iterator[None]:
    """Refuse what is asked for beyond a few GB: otherwise nobody would notice a promise that nobody writes to."""
    statm = Path("/proc/self/statm")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not statm.exists():
        yield
        return
    taken = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MOST_ADDRESSES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def file_of(data: bytes, name: str) -> Iterator[Path]:
    """A file of that name with these bytes, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="suffuse-fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


def with_kind(kind: int, content: bytes) -> bytes:
    """An input of a target that reads several kinds of files: the first byte tells the kind."""
    return bytes([kind]) + content


def kind_of(data: bytes, kinds: int) -> tuple[int, bytes]:
    """The opposite of `with_kind`; any first byte is some kind."""
    return (data[0] % kinds if data else 0), data[1:]
