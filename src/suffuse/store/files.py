"""Files that appear whole or not at all, .npy files as memory maps, and checksums of what is read of them."""

import contextlib
import ctypes
import functools
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.core import Damaged
from suffuse.core.kernels.checksums import PAGE, UNCHECKED, first_damaged_span, sum_pages
from suffuse.errors import IndexBroken

P = ParamSpec("P")
R = TypeVar("R")

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None
_THREAD = getattr(resource, "RUSAGE_THREAD", 0)

# How a file that is being written ends; one that still does was left behind by a crash.
UNFINISHED = ".tmp"

# The checksums of all other files of an index.
CHECKSUMS_FILE = "pages.npy"

_HASH_BYTES = 1 << 20

# Put a map at exactly this address; the same number on all systems that `_map_file_into` knows.
_MAP_FIXED = 0x10

# numpy parses headers with `ast`, which is not safe in two threads at once if the garbage collector runs meanwhile:
# SystemError, "AST constructor recursion depth mismatch" (Python 3.11; github.com/python/cpython/issues/106905).
_HEADER_LOCK = threading.Lock()

# Files that are mapped; as long as one is, no other file can have its number.
_MAPS: weakref.WeakValueDictionary[tuple[int, ...], mmap.mmap] = weakref.WeakValueDictionary()
_MAPS_LOCK = threading.Lock()
# For each map: which of its blocks were found sound.
_SOUND: weakref.WeakKeyDictionary[mmap.mmap, NDArray[np.uint8]] = weakref.WeakKeyDictionary()


def report_damage(function: Callable[P, R]) -> Callable[P, R]:
    """Word damage that a function finds as `IndexBroken`, with what to do about it."""

    @functools.wraps(function)
    def report(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Damaged as error:
            raise IndexBroken(f"{error}; copy or build the index again") from error

    return report


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
def write_whole(path: Path) -> Iterator[BinaryIO]:
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
    with write_whole(path) as stream:
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
        streams = [stack.enter_context(write_whole(path)) for path in files]
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


def lock_file(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or directory until it is closed, or its process ends; False if somebody else has the lock.

    Where the system has no such locks (Windows), everybody has it.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


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
    """A read-only map of a file that is not empty; one that cannot be mapped is `Damaged`, which names it."""
    try:
        with path.open("rb") as stream:
            return _mapped_once(stream.fileno())
    except (OSError, ValueError) as error:  # a ValueError if it is empty
        raise Damaged(f"{path.name} cannot be read: {error}") from error


def map_array(path: Path) -> Mapped:
    """Open a .npy file as a read-only memory map; anything odd about it is `Damaged`, which names it."""
    try:
        with path.open("rb") as stream:
            dtype, shape, offset = _read_header(stream, os.fstat(stream.fileno()).st_size, path.name)
            mapped = _mapped_once(stream.fileno())
            return Mapped(np.frombuffer(mapped, dtype, math.prod(shape), offset).reshape(shape), mapped, offset)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read: {error}") from error


def parse_array(data: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of a .npy file, without a copy; as strict as `map_array`."""
    dtype, shape, offset = _read_header(io.BytesIO(data), len(data), name)
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


def _read_header(stream: BinaryIO, size: int, name: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type and shape of a .npy file of `size` bytes, and where its data starts; such as Suffuse writes, or an error."""
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise Damaged(f"{name} has .npy version {version}, expected (1, 0)")
        with _HEADER_LOCK:
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except Damaged:
        raise
    except Exception as error:
        # numpy reads a header as a piece of Python: a damaged one fails in most ways that Python knows.
        raise Damaged(f"{name} cannot be read: {error}") from error
    if dtype.hasobject or not dtype.isnative or fortran_order or min(shape, default=0) < 0:
        raise Damaged(f"{name} holds {dtype} of shape {shape} in an order that Suffuse never writes")
    expected = stream.tell() + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise Damaged(f"{name} has {size} bytes, its header promises {expected}")
    return dtype, shape, stream.tell()


def map_extended(path: Path, more: NDArray[Any]) -> Mapped:
    """The array of a .npy file with `more` rows behind it, as one array.

    Kernels, faiss and BLAS want one array: a base and a delta would be a branch in every inner loop, and a copy of a
    large file would take its size in memory. So the file is mapped into the beginning of a free range of addresses, and
    the rows are written behind it: into the rest of its last page, which is then this process's own, and further on.
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


class Checksums:
    """The checksums of the blocks of one file: a block is checked when it is first read.

    To hash a large file takes as long as to read it, so opening an index does not. A block that was found sound is not
    looked at again while the file stays mapped, by this generation or the next one. A file without checksums, of an
    older index, is taken for sound.
    """

    def __init__(self, name: str, item_bytes: int = 1, kernel: tuple[Any, ...] = UNCHECKED) -> None:
        """`kernel` is what `kernels.checksums` takes; an item, or a row, of the array has so many bytes."""
        self.kernel = kernel
        self.complete = not len(kernel[2])  # whether nothing is left to be checked
        self._name, self._item_bytes = name, item_bytes

    @classmethod
    def of(cls, name: str, map: mmap.mmap, offset: int, item_bytes: int, sums: NDArray[np.uint64]) -> "Checksums":
        """Those of a file that is mapped."""
        if len(sums) != _count(len(map)):
            raise Damaged(f"{name} has {len(map)} bytes, which its checksums do not fit")
        sound = _SOUND.get(map)
        if sound is None or len(sound) != len(sums):
            sound = _SOUND[map] = np.zeros(len(sums), np.uint8)
        return cls(name, item_bytes, (*_bytes_and_words(map), sums, sound, offset))

    def check_whole(self) -> None:
        """Raise if anything in the file is not what was written."""
        if not self.complete:
            self.check_spans(np.array([0]), np.array([len(self.kernel[0]) // self._item_bytes + 1]))
            self.complete = True

    def check_rows(self, ids: NDArray[np.integer]) -> None:
        """Raise if rows of the array are not what was written; those that lie behind the file are of no concern."""
        rows = np.ascontiguousarray(ids, np.int64)
        self.check_spans(rows, rows + 1)

    def check_spans(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Raise if items of the array, from each start to its stop, are not what was written."""
        if not self.complete:
            self._raise_at(first_damaged_span(self.kernel, self._item_bytes, starts, stops), starts)

    def _raise_at(self, found: int, what: NDArray[np.integer]) -> None:
        if found >= 0:
            raise Damaged(f"{self._name} was changed or damaged, near row {what[found]}")


def _bytes_and_words(map: mmap.mmap) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    return np.frombuffer(map, np.uint8), np.frombuffer(map, "<u4", len(map) // 4)


def _count(size: int) -> int:
    return -(-size // PAGE)


def sum_files(paths: Iterable[Path]) -> NDArray[np.uint64]:
    """The checksums of all blocks of these files, one file after the other."""
    return np.concatenate([np.empty(0, np.uint64), *map(_sums_of_file, paths)])


def _sums_of_file(path: Path) -> NDArray[np.uint64]:
    size = path.stat().st_size
    sums = np.empty(_count(size), np.uint64)
    if size:
        sum_pages(*_bytes_and_words(map_file(path)), sums)
    return sums


def split_checksums(sums: NDArray[np.uint64], files: Mapping[str, Mapping[str, Any]]) -> dict[str, NDArray[np.uint64]]:
    """The checksums of each file that a manifest describes, in the order of their names, but for those of pages.npy."""
    sizes = {name: _count(files[name]["bytes"]) for name in sorted(files) if name != CHECKSUMS_FILE}
    if sum(sizes.values()) != len(sums):
        raise Damaged(f"{CHECKSUMS_FILE} holds {len(sums)} checksums, the files have {sum(sizes.values())} blocks")
    ends = np.cumsum(list(sizes.values()))
    return {name: sums[end - count : end] for (name, count), end in zip(sizes.items(), ends.tolist(), strict=True)}
