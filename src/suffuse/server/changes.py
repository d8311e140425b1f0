"""Changes of the index that is served: one at a time, in a thread of their own; searches see each when it is done."""

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
from suffuse.index import writer
from suffuse.index.writer import Addition, Mode
from suffuse.server.engine import IndexEngine, milliseconds_since
from suffuse.server.guard import Workers
from suffuse.server.models import About, AddRequest, ChangeAnswer, ReplaceRequest
from suffuse.server.pictures import SavedFile, save_upload
from suffuse.server.problems import Busy, Problem, describe_error
from suffuse.server.queries import Form, to_matrix
from suffuse.store.manifest import read_manifest

logger = logging.getLogger(__name__)


class Upload(NamedTuple):
    """A picture to add, its vectors, its name and its metadata."""

    image: bytes
    rows: NDArray[np.float32]
    name: str
    metadata: dict[str, Any] | None


class Stopped(Problem):
    """The service ends while it changes the index."""

    def __init__(self) -> None:
        super().__init__(503, "the service ends; the index is as it was before", "try again when it is back")


class Changes:
    """The one writer of a service. `add`, `replace`, `remove` and `upload` are for the thread of `run`."""

    def __init__(self, engine: IndexEngine) -> None:
        self._engine = engine
        self._queue = Workers("change", 1, engine.limits.changes_waiting)
        self._compaction: Future[None] | None = None
        self._progress: dict[str, Any] | None = None
        self._error: dict[str, str | None] | None = None
        self._closing, self._lock = threading.Event(), threading.Lock()

    def check(self) -> None:
        """Refuse changes during a compaction: that takes longer than a client waits."""
        if self._is_compacting():
            raise Busy("the index is being compacted")

    async def run(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do the work after that which was there before."""
        self.check()
        return await self._queue.run(work)

    def compact(self) -> None:
        """Begin to compact after the changes in the queue, unless that has begun already."""
        with self._lock:
            if not self._is_compacting():
                self._compaction = self._queue.submit(self._compact)

    def describe(self) -> dict[str, Any]:
        """The changes in work."""
        return {
            "changing": self._queue.busy,
            "compacting": self._is_compacting(),
            "progress": self._progress,
            "last_error": self._error,
        }

    def read_form(self, form: Form) -> Upload:
        """What a form has, and the vectors of its picture."""
        assert form.image is not None
        about = About.model_validate_json(form.text)
        _check_metadata(about.metadata)
        rows = self._engine.queries.extract(self._engine.view.index, form.image)
        return Upload(form.image, rows, about.name or form.called, about.metadata)

    def open(self) -> None:
        """Take changes, also after `close`."""
        self._closing.clear()

    def close(self) -> None:
        """Begin nothing more, and end the change in work at its next step: the index stays as it was before."""
        self._closing.set()
        self._queue.close()

    def add(self, body: bytes, mode: Mode) -> dict[str, Any]:
        """Add pictures by their vectors."""
        request = AddRequest.model_validate_json(body)
        owners = None if request.owners is None else np.array(request.owners, np.int64)
        return self._change(added=Addition(to_matrix(request.vectors), owners, _make_items(request)), mode=mode)

    def replace(self, id: int, body: bytes, mode: Mode) -> dict[str, Any]:
        """Give a picture other vectors."""
        request = ReplaceRequest.model_validate_json(body)
        rows, item = to_matrix(request.vectors), self._update_item(id, request.metadata)
        return self._put(id, rows, item if request.name is None else {**item, "name": request.name}, mode)

    def remove(self, id: int, mode: Mode) -> dict[str, Any]:
        """Remove a picture; its file stays."""
        self._read_item(id)
        return self._change(removed=[id], mode=mode)

    def upload(self, id: int | None, upload: Upload, mode: Mode) -> dict[str, Any]:
        """Add a picture, or replace one; its file is written into the image folder, if there is one."""
        item = upload.metadata or {} if id is None else self._update_item(id, upload.metadata)
        pictures = self._engine.pictures
        saved = save_upload(None if pictures is None else pictures.root, upload.image, upload.name)
        before = read_manifest(self._engine.path).generation
        try:
            return self._put(id, upload.rows, {**item, "name": saved.name}, mode, saved)
        except BaseException:
            # No item has the file, unless the change was made after all.
            if saved.file is not None and read_manifest(self._engine.path).generation == before:
                saved.file.unlink(missing_ok=True)
            raise

    def _put(
        self, id: int | None, rows: NDArray[Any], item: dict[str, Any], mode: Mode, saved: SavedFile | None = None
    ) -> dict[str, Any]:
        """Add one picture, to which all rows belong, or replace that with this id."""
        owners = None if self._engine.view.index.owners is None else np.zeros(len(rows), np.int64)
        replaced = {} if id is None else {"removed": [id], "replace": True}
        return self._change(saved, added=Addition(rows, owners, [item]), mode=mode, **replaced)

    def _update_item(self, id: int, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """Name and metadata of a picture that is to be replaced."""
        item = self._read_item(id)
        if metadata is None:
            return item
        return {**_check_metadata(metadata), **({"name": item["name"]} if "name" in item else {})}

    def _read_item(self, id: int) -> dict[str, Any]:
        """A picture's name and metadata in the newest generation, also if another process made that a moment ago."""
        self._engine.refresh()
        self._engine.view.read_item(id)  # a `Problem` if it is not there
        return self._engine.view.index.items[id]

    def _change(self, saved: SavedFile | None = None, **what: Any) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            summary = writer.change(self._engine.path, progress=self._stop_if_asked, **what)
        finally:
            self._refresh()
        facts = {**summary._asdict(), "ids": summary.ids.tolist(), "took_ms": milliseconds_since(began)}
        facts["saved"] = None if saved is None else saved.file is not None
        return {field: facts[field] for field in ChangeAnswer.model_fields}

    def _refresh(self) -> None:
        """Serve the new generation; if that fails, the change is made all the same, and the follower tries again."""
        try:
            self._engine.refresh()
        except Exception:
            logger.exception("the index was changed, and the new generation cannot be served yet")

    def _is_compacting(self) -> bool:
        return self._compaction is not None and not self._compaction.done()

    def _compact(self) -> None:
        try:
            writer.compact(self._engine.path, progress=self._report)
            self._error = None
        except Stopped:
            logger.info("the compaction was ended; the index is as it was before")
        except Exception as error:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            self._error = {**describe_error(error).to_dict(), "at": at}
        finally:
            self._progress = None
        self._refresh()

    def _report(self, stage: str, done: int, total: int) -> None:
        self._stop_if_asked(stage, done, total)
        self._progress = {"stage": stage, "done": done, "total": total}

    def _stop_if_asked(self, _stage: str, _done: int, _total: int) -> None:
        if self._closing.is_set():
            raise Stopped


def _make_items(request: AddRequest) -> Sequence[dict[str, Any]] | None:
    """Name and metadata of each picture, as the index keeps them."""
    names, metadata = request.names, request.metadata
    if names is None and metadata is None:
        return None
    if names is not None and metadata is not None and len(names) != len(metadata):
        raise InvalidInput(f"{len(names)} names and {len(metadata)} times metadata; give both for each picture")
    fields = [{}] * len(names or ()) if metadata is None else metadata
    named = [{}] * len(fields) if names is None else [{"name": name} for name in names]
    return [{**_check_metadata(one), **name} for one, name in zip(fields, named, strict=True)]


def _check_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    if metadata is not None and "name" in metadata:
        raise InvalidInput("metadata cannot have a field 'name'; give the name beside it")
    return metadata or {}
