"""One writer of an index at a time; and what an earlier writer left behind."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from suffuse.errors import IndexBusy
from suffuse.store.files import UNFINISHED, lock_file
from suffuse.store.manifest import ARRAY_TYPES, ITEMS_FILE, Manifest

LOCK = "writer.lock"
# Where the next base is made.
COMPACTING = "compacting"


@contextlib.contextmanager
def lock_writer(directory: Path) -> Iterator[None]:
    """Hold the lock of an index; another writer is told whose it is.

    The system takes the lock from a process that ends, however it ends. The file stays, and names the last owner.
    """
    with keep_writers_out(directory), contextlib.ExitStack() as stack:
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        stack.callback(os.close, descriptor)
        _lock_or_name_owner(descriptor, directory)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield


@contextlib.contextmanager
def keep_writers_out(directory: Path) -> Iterator[None]:
    """Keep writers from an index without leaving anything in it: what replaces an index as a whole needs that.

    The directory itself is locked. Where a file system cannot do that (NFS), the file that writers lock is, if any is
    there.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        yield
        return
    with contextlib.ExitStack() as stack:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        try:
            _lock_or_name_owner(descriptor, directory)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                file = os.open(directory / LOCK, os.O_RDWR)
                stack.callback(os.close, file)
                _lock_or_name_owner(file, directory)
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise IndexBusy(f"another process has just replaced {directory}; try again")
        yield


def _lock_or_name_owner(descriptor: int, directory: Path) -> None:
    if not lock_file(descriptor):
        owner = ""
        with contextlib.suppress(OSError):
            owner = (directory / LOCK).read_text(errors="replace").strip()
        raise IndexBusy(f"process {owner or 'unknown'} is changing {directory}; try again when it is done")


def remove_leftovers(directory: Path, manifest: Manifest) -> None:
    """Remove the files of other generations, and what a writer that was killed left.

    Readers that have them open keep them. What cannot be removed now is no reason to fail: the next writer tries again.
    """
    used = {segment["name"] for segment in manifest.segments} | {manifest.base}
    for path in directory.iterdir():
        old_base = manifest.base and (path.name in ARRAY_TYPES or path.name == ITEMS_FILE)
        kinds = path.name.startswith(("base-", "segment-")) or path.name.endswith(UNFINISHED) or path.name == COMPACTING
        if old_base or (kinds and path.name not in used):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
