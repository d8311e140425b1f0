"""One writer at a time: the lock of an index that is being changed, and what an earlier writer left behind."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from suffuse.arrays import UNFINISHED
from suffuse.errors import IndexBusy
from suffuse.manifest import ARRAY_TYPES, ITEMS_FILE, Manifest

LOCK = "writer.lock"
# Where the next base is made.
COMPACTING = "compacting"


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Hold the lock of an index; another writer is told whose it is.

    The system takes the lock from a process that ends, however it ends. The file stays, and names the last owner.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            raise IndexBusy(
                f"process {owner or 'unknown'} is changing {directory}; try again when it is done"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


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
