"""The directory beside a future index: what an interrupted build left, a lock, and the name at the end."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suffuse.errors import IndexExists, IndexProblem, InvalidInput
from suffuse.offline.tasks import plan_difference
from suffuse.store.files import UNFINISHED, sync_directory, write_json
from suffuse.store.locks import undisturbed
from suffuse.store.manifest import read_manifest

logger = logging.getLogger(__name__)

# The directories of a build (`blocks`).
_PARTS = ("index", "search", "pairs", "neighbors", "lists", "edges", "graph", "drafts", "draft", "columns")


def work_path(final: Path) -> Path:
    """Where an index is built."""
    return final.with_name(final.name + ".building")


def _replaced_path(final: Path) -> Path:
    return final.with_name(final.name + ".replaced")


def remove(path: Path) -> None:
    """Remove a directory with all it holds, if it is there; of a link to one, only the link."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _bring_back(final: Path) -> None:
    """If a forced build ended between its two renames, give the old index its name again."""
    if not os.path.lexists(final) and os.path.lexists(_replaced_path(final)):
        _replaced_path(final).rename(final)


def refuse_overwriting(final: Path, force: bool) -> None:
    """Raise if there is something at the place of the future index that must not be replaced."""
    if not final.name or final.name in (".", ".."):
        raise InvalidInput(f"{str(final)!r} is no name for an index; give a path such as photos.index")
    if not os.path.lexists(final):
        return
    if not force:
        raise IndexExists(f"{final} exists already; choose another name, or replace it with --force (force=True)")
    try:
        read_manifest(final)
    except IndexProblem as error:
        raise IndexExists(f"{final} exists and is not a sound index, so it is not replaced: {error}") from error
    with undisturbed(final):
        pass  # better refused now than after a long build


@contextlib.contextmanager
def working_directory(final: Path, plan: dict[str, Any], force: bool) -> Iterator[Path]:
    """The directory beside the index, with what an interrupted build of the same plan left; locked meanwhile."""
    work = work_path(final).absolute()  # workers may have another current directory
    work.mkdir(parents=True, exist_ok=True)
    with _lock(work):
        _bring_back(final)
        refuse_overwriting(final, force)  # again: another build may have ended before this one had the lock
        plan_path = work / "plan.json"
        if plan_path.exists() and (changed := plan_difference(plan_path, plan)):
            logger.warning("%s holds an unfinished build with other %s: starting anew", work.name, changed)
            plan_path.unlink()
        if plan_path.exists() and not (work / "index").exists():
            plan_path.unlink()  # that build got as far as its name: lists and graph went along
        if not plan_path.exists():
            for name in _PARTS:
                remove(work / name)
            write_json(plan_path, plan)
        (work / "index").mkdir(exist_ok=True)
        for left_behind in work.glob(f"**/.*{UNFINISHED}"):
            left_behind.unlink(missing_ok=True)
        yield work


@contextlib.contextmanager
def _lock(work: Path) -> Iterator[None]:
    """Let one process at a time build an index; the lock goes with its process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (work / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IndexExists(f"another process is building in {work}; wait for it, or choose another name") from None
        yield


def publish(work: Path, final: Path, force: bool) -> None:
    """Give the finished directory its name; an index that it replaces stays until that is done."""
    refuse_overwriting(final, force)  # again: a build takes long, and something may have appeared there
    replaced = _replaced_path(final)
    with contextlib.ExitStack() as stack:
        if os.path.lexists(final):
            # Else a writer that began before would write its manifest into the new index.
            stack.enter_context(undisturbed(final))
            remove(replaced)
            final.rename(replaced)
        try:
            (work / "index").rename(final)
        except BaseException:
            _bring_back(final)
            raise
        sync_directory(final.parent)
        # The index is whole: what cannot be removed now is no reason to fail, and the next build removes it.
        with contextlib.suppress(OSError):
            remove(replaced)
            (work / "plan.json").unlink()  # first, so that nobody resumes a build that is half removed
            shutil.rmtree(work)
