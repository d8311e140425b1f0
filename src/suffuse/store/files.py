"""Files that appear whole or not at all, and .npy files as memory maps."""

import contextlib
import ctypes
import hashlib
import io
import json
import math
import mmap
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.errors import IndexBroken

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None
_THREAD = getattr(resource, "RUSAGE_THREAD", 0)

# How a file that is being written ends; one that still does was left behind by a crash.
UNFINISHED = ".tmp"

_HASH_BYTES = 1 << 20

# Put a map at exactly this address; the same number on all systems that `_map_file_into` knows.
_MAP_FIXED = 0x10

# numpy parses headers with `ast`, which is not safe in two threads at once if the garbage collector runs meanwhile:
# SystemError, "AST constructor recursion depth mismatch" (Python 3.11; github.com/python/cpython/issues/106905).
_HEADER_LOCK = threading.Lock()

# Files that are mapped; as long as one is, no other file can have its number.
_MAPS: weakref.WeakValueDictionary[tuple[int, ...], mmap.mmap] = weakref.WeakValueDictionary()
_MAPS_LOCK = threading.Lock()


class Mapped(NamedTuple):
    """A read-only array and the memory map under it, with where the data starts."""

    array: NDArray[Any]
    map: mmap.mmap
    offset: int

    def expect_random_access(self) -> None:
        """Tell the kernel not to read ahead: it would fetch 8 MiB around each column."""
        if hasattr(mmap, "MADV_RANDOM"):
            self.map.madvise(mmap.MADV_RANDOM)

    def will_need(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Tell the kernel to fetch array[start:stop] of each in the background, unless that lies outside."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        advise, entries, size, page = self.map.madvise, self.array.size, self.array.itemsize, mmap.PAGESIZE
        for start, stop in ranges:
            if 0 <= start < stop <= entries:
                first = (self.offset + start * size) // page * page
                with contextlib.suppress(OSError):  # of memory without a file, where the system has no swap
                    advise(mmap.MADV_WILLNEED, first, self.offset + stop * size - first)


def blocks_read() -> int:
    """Blocks that this thread has read from disk so far; always 0 where the system does not tell."""
    return 0 if resource is None else resource.getrusage(_THREAD).ru_inblock


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write beside, flush, rename: a crash leaves the old file or none, never half a one.

    Written by `write`, not through a memory map: on a full disk that is an error, and not a SIGBUS.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with beside.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """A file of parts that follow each other."""
    with written_whole(path) as stream:
        for part in parts:
            stream.write(part)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """One array as a .npy file."""
    write_blocks(path, array.dtype, array.shape, [array])


def write_blocks(path: Path, dtype: DTypeLike, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]]) -> None:
    """A .npy file of that type and shape from blocks that follow each other, never held whole in memory."""
    write_side_by_side({path: (dtype, shape)}, ((block,) for block in blocks))


def write_side_by_side(
    files: Mapping[Path, tuple[DTypeLike, tuple[int, ...]]], blocks: Iterable[Iterable[NDArray[Any]]]
) -> None:
    """Several .npy files of those types and shapes at once: of each tuple of blocks one goes into each file."""
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(written_whole(path)) for path in files]
        types = [dtype for dtype, _ in files.values()]
        for stream, (dtype, shape) in zip(streams, files.values(), strict=True):
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
        for parts in blocks:
            for stream, dtype, part in zip(streams, types, parts, strict=True):
                stream.write(np.ascontiguousarray(part, dtype).data)


def write_json(path: Path, value: Any) -> None:
    """A value as readable JSON with sorted keys, the same bytes for the same value."""
    write_bytes(path, [as_json(value)])


def as_json(value: Any) -> bytes:
    """A value as the bytes of such a file."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"


def sync_directory(path: Path) -> None:
    """Make renames inside the directory durable, where the platform can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _mapped_once(descriptor: int) -> mmap.mmap:
    """A map of an open file: one for all who have that file mapped just now, as each would count as memory."""
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _MAPS_LOCK:
        mapped = _MAPS.get(key)
        if mapped is None:
            mapped = _MAPS[key] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return mapped


def map_file(path: Path) -> mmap.mmap:
    """A read-only map of a file that is not empty; one that cannot be mapped is an `IndexBroken` that names it."""
    try:
        with path.open("rb") as stream:
            return _mapped_once(stream.fileno())
    except (OSError, ValueError) as error:  # a ValueError if it is empty
        raise IndexBroken(f"{path.name} cannot be read: {error}; copy or build the index again") from error


def map_array(path: Path) -> Mapped:
    """Open a .npy file as a read-only memory map; anything odd about it is an `IndexBroken` that names it."""
    try:
        with path.open("rb") as stream:
            dtype, shape, offset = _read_header(stream, os.fstat(stream.fileno()).st_size, path.name)
            mapped = _mapped_once(stream.fileno())
            return Mapped(np.frombuffer(mapped, dtype, math.prod(shape), offset).reshape(shape), mapped, offset)
    except FileNotFoundError as error:
        raise IndexBroken(f"{path.name} is missing; copy or build the index again") from error
    except (OSError, ValueError) as error:
        raise IndexBroken(f"{path.name} cannot be read: {error}; copy or build the index again") from error


def parse_array(data: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of a .npy file, without a copy; as strict as `map_array`."""
    dtype, shape, offset = _read_header(io.BytesIO(data), len(data), name)
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


def _read_header(stream: BinaryIO, size: int, name: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type and shape of a .npy file of `size` bytes, and where its data starts; such as Suffuse writes, or an error."""
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise IndexBroken(f"{name} has .npy version {version}, expected (1, 0); build the index again")
        with _HEADER_LOCK:
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except IndexBroken:
        raise
    except Exception as error:
        # numpy reads a header as a piece of Python: a damaged one fails in most ways that Python knows.
        raise IndexBroken(f"{name} cannot be read: {error}; copy or build the index again") from error
    if dtype.hasobject or not dtype.isnative or fortran_order or min(shape, default=0) < 0:
        raise IndexBroken(
            f"{name} holds {dtype} of shape {shape} in an order that Suffuse never writes; build the index again"
        )
    expected = stream.tell() + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise IndexBroken(f"{name} has {size} bytes, its header promises {expected}; copy or build the index again")
    return dtype, shape, stream.tell()


def map_extended(path: Path, more: NDArray[Any]) -> Mapped:
    """The array of a .npy file with `more` rows behind it, as one array.

    Kernels want one array, and to copy a large file for a few rows would take its size in memory. So the file is mapped
    into the beginning of a free range of addresses, and the rows are written behind it: into the rest of its last page,
    which is then this process's own, and into the free memory that follows.
    """
    mapped = map_array(path)
    if not len(more):
        return mapped
    end = mapped.offset + mapped.array.nbytes
    together = mmap.mmap(-1, end + more.nbytes)
    room = np.frombuffer(together, np.uint8)
    if not _map_file_into(room, path, end):
        room[:end] = np.frombuffer(mapped.map, np.uint8, end)
    room[end:] = np.ascontiguousarray(more, mapped.array.dtype).reshape(-1).view(np.uint8)
    array = room[mapped.offset :].view(mapped.array.dtype).reshape(-1, *mapped.array.shape[1:])
    array.flags.writeable = False
    return Mapped(array, together, mapped.offset)


def _map_file_into(room: NDArray[np.uint8], path: Path, size: int) -> bool:
    """Map the first bytes of a file over those of `room`, as private pages; False where we do not know how to.

    Python's mmap cannot be told an address.
    """
    if sys.platform not in ("linux", "darwin"):
        return False
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    address, protection = room.ctypes.data, mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size < size:
            return False  # a forced build has put another file there
        found = call(address, size, protection, mmap.MAP_PRIVATE | _MAP_FIXED, stream.fileno(), 0)
    return bool(found == address)
