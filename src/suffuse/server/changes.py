"""Changes of the index that is served: one at a time, in a thread of its own, seen by searches when they are done."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.index import writer as living
from suffuse.index.writer import Addition, ChangeSummary, Mode
from suffuse.server.engine import Engine
from suffuse.server.guard import Workers
from suffuse.server.models import About, AddRequest, ReplaceRequest
from suffuse.server.pictures import Saved, save
from suffuse.server.problems import Problem, busy, problem_of
from suffuse.server.queries import Form, matrix
from suffuse.store.manifest import read_manifest

logger = logging.getLogger(__name__)


class Upload(NamedTuple):
    """A picture that is to be added, its vectors, and what is told about it."""

    form: Form
    rows: NDArray[np.float32]
    about: About


class Stopped(Problem):
    """The service ends while it changes the index."""

    def __init__(self) -> None:
        super().__init__(503, "the service ends; the index is as it was before", "try again when it is back")


class Changes:
    """The writer of a service. What is done to the index is for the thread that `run` has; the rest for any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._line = Workers("change", 1, engine.limits.changes_waiting)
        self._compaction: Future[None] | None = None
        self._progress: dict[str, Any] | None = None
        self._error: dict[str, str | None] | None = None
        self._closing, self._lock = threading.Event(), threading.Lock()

    def check(self) -> None:
        """Tell whoever wants to change something during a compaction; that takes longer than anybody waits."""
        if self._compacting():
            raise busy("the index is being compacted")

    async def run(self, work: Callable[["Changes"], dict[str, Any]]) -> dict[str, Any]:
        """Do the work when those before it are done."""
        self.check()
        return await self._line.run(lambda: work(self))

    def compact(self) -> None:
        """Begin to compact behind the changes that are in line, unless that has begun already."""
        with self._lock:
            if self._compaction is None or self._compaction.done():
                self._compaction = self._line.submit(self._compact)

    def status(self) -> dict[str, Any]:
        """What is being done."""
        return {
            "changing": self._line.busy,
            "compacting": self._compacting(),
            "progress": self._progress,
            "last_error": self._error,
        }

    def read(self, form: Form) -> Upload:
        """A form as it is understood: what is told, and what the model makes of the picture."""
        about = About.model_validate_json(form.text)
        _checked(about.metadata)
        rows = self._engine.queries.extracted(self._engine.view.index, form.image)
        return Upload(form, rows, about)

    def open(self) -> None:
        """Take changes, also after `close`."""
        self._closing.clear()

    def close(self) -> None:
        """Begin nothing more, and end what is being done at its next step: the index stays as it was before it."""
        self._closing.set()
        self._line.close()

    def add(self, body: bytes, mode: Mode) -> dict[str, Any]:
        """Add pictures by their vectors."""
        request = AddRequest.model_validate_json(body)
        owners = None if request.owners is None else np.array(request.owners, np.int64)
        added = Addition(matrix(request.vectors), owners, _names(request))
        return self._changed(lambda: self._change(added=added, mode=mode))

    def replace(self, id: int, body: bytes, mode: Mode) -> dict[str, Any]:
        """Give a picture other vectors."""
        request = ReplaceRequest.model_validate_json(body)
        rows = matrix(request.vectors)
        return self._changed(lambda: self._replace(id, rows, request.name, request.metadata, mode))

    def remove(self, id: int, mode: Mode) -> dict[str, Any]:
        """Remove a picture; its file stays."""
        self._existing(id)
        return self._changed(lambda: self._change(removed=[id], mode=mode))

    def upload(self, id: int | None, upload: Upload, mode: Mode) -> dict[str, Any]:
        """Add a picture, or replace one; its file is put into the image folder, if there is one."""
        form, metadata = upload.form, upload.about.metadata
        if id is not None:
            self._existing(id)
        pictures = self._engine.pictures
        root = None if pictures is None else pictures.root
        saved = save(root, form.image, upload.about.name or form.called)
        before = read_manifest(self._engine.path).generation
        try:
            if id is not None:
                return self._changed(lambda: self._replace(id, upload.rows, saved.name, metadata, mode), saved)
            item = {**(metadata or {}), "name": saved.name}
            added = Addition(upload.rows, self._owners(upload.rows), [item])
            return self._changed(lambda: self._change(added=added, mode=mode), saved)
        except BaseException:
            # It is nobody's, unless the change was made after all.
            if saved.file is not None and read_manifest(self._engine.path).generation == before:
                saved.file.unlink(missing_ok=True)
            raise

    def _replace(
        self, id: int, rows: NDArray[Any], name: str | None, metadata: dict[str, Any] | None, mode: Mode
    ) -> ChangeSummary:
        item = self._existing(id)
        if metadata is not None:
            item = {**_checked(metadata), **({"name": item["name"]} if "name" in item else {})}
        if name is not None:
            item = {**item, "name": name}
        return self._change(
            added=Addition(rows, self._owners(rows), [item]), removed=[id], replace=True, mode=mode
        )  # fmt: skip

    def _owners(self, rows: NDArray[Any]) -> NDArray[np.int64] | None:
        """All rows are of one picture."""
        return None if self._engine.view.index.owners is None else np.zeros(len(rows), np.int64)

    def _existing(self, id: int) -> dict[str, Any]:
        """A picture's name and metadata in the newest generation, also if another process made that a moment ago."""
        self._engine.refresh()
        self._engine.item(id)  # which tells if it is not there
        return self._engine.view.index.items[id]

    def _change(self, **what: Any) -> ChangeSummary:
        return living.change(self._engine.path, progress=self._stop_if_asked, **what)

    def _changed(self, change: Callable[[], ChangeSummary], saved: Saved | None = None) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            summary = change()
        finally:
            self._refresh()
        return {
            "ids": summary.ids.tolist(),
            "removed": summary.removed,
            "saved": None if saved is None else saved.file is not None,
            "generation": summary.generation,
            "images": summary.images,
            "stale": summary.stale,
            "took_ms": round(1000 * (time.perf_counter() - began), 3),
        }

    def _refresh(self) -> None:
        """Serve what is written; if that fails, the change is done all the same, and the follower tries again."""
        try:
            self._engine.refresh()
        except Exception:
            logger.exception("the index was changed, and the new generation cannot be served yet")

    def _compacting(self) -> bool:
        return self._compaction is not None and not self._compaction.done()

    def _compact(self) -> None:
        try:
            living.compact(self._engine.path, progress=self._report)
            self._error = None
        except Stopped:
            logger.info("the compaction was ended; the index is as it was before")
        except Exception as error:
            told = problem_of(error).told()
            self._error = {**told, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        finally:
            self._progress = None
        self._refresh()

    def _report(self, stage: str, done: int, total: int) -> None:
        self._stop_if_asked(stage, done, total)
        self._progress = {"stage": stage, "done": done, "total": total}

    def _stop_if_asked(self, _stage: str, _done: int, _total: int) -> None:
        if self._closing.is_set():
            raise Stopped


def _names(request: AddRequest) -> Sequence[dict[str, Any]] | None:
    """What is told about each picture, as the index keeps it."""
    names, metadata = request.names, request.metadata
    if names is None and metadata is None:
        return None
    if names is not None and metadata is not None and len(names) != len(metadata):
        raise InvalidInput(f"{len(names)} names and {len(metadata)} times metadata; give both for each picture")
    items = [dict(_checked(fields)) for fields in ([{}] * len(names or ()) if metadata is None else metadata)]
    for item, name in zip(items, names or (), strict=False):
        item["name"] = name
    return items


def _checked(metadata: dict[str, Any] | None) -> dict[str, Any]:
    if metadata is not None and "name" in metadata:
        raise InvalidInput("metadata cannot have a field 'name'; give the name beside it")
    return metadata or {}


def refusal(*, has_token: bool, read_only: bool, in_database: bool) -> Problem:
    """Why this service takes no changes."""
    if in_database:
        return Problem(
            501, "an index in a database is not changed here", "change the index itself, then export it again"
        )
    if has_token and read_only:
        return Problem(403, "this service takes no changes", "start it without --read-only")
    return Problem(
        403, "this service takes no changes, as it has no token",
        "start it with --token-file FILE, or with a token in SUFFUSE_TOKEN; then send Authorization: Bearer TOKEN",
    )  # fmt: skip
