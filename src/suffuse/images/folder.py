"""From a folder of pictures to features: decoding and network overlap; results are cached, failures listed."""

import datetime
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.params import Progress
from suffuse.errors import BuildInterrupted, InvalidInput, InvalidParams
from suffuse.images.cache import CachedPicture, Entry, FeatureCache
from suffuse.images.network import Extractor
from suffuse.images.pictures import SUFFIXES, read_picture, silence_pillow

# Pictures that are not read; they are listed as skipped, since somebody may miss them.
_OTHER_PICTURES = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".cr2", ".cr3", ".nef", ".arw", ".dng")
# Threads that read pictures while the network works.
_DECODERS = 2


class Skipped(NamedTuple):
    """A file without features, and why."""

    name: str
    reason: str


class Extraction(NamedTuple):
    """The features of a folder, and what it took."""

    features: NDArray[np.float32]  # (n, d), or (regions, d)
    owners: NDArray[np.int32] | None  # the picture of each region
    items: list[dict[str, Any]]  # name and metadata of each picture
    skipped: list[Skipped]
    extracted: int  # pictures that went through the network in this run; the others were known
    seconds: float
    busy: float  # share of the time that the network was at work

    @property
    def rate(self) -> float:
        """Pictures per second through the network."""
        return self.extracted / self.seconds if self.seconds else 0.0


class _Pending(NamedTuple):
    """A picture on its way: first its pixels, then the future of its rows."""

    entry: Entry
    work: Any


def extract_folder(
    folder: str | Path,
    cache: str | Path,
    extractor: Extractor,
    *,
    names: Sequence[str] | None = None,
    regions: bool = False,
    progress: Progress | None = None,
) -> Extraction:
    """Features of every picture in a folder and the folders in it, in order of their names.

    names     paths of pictures relative to the folder, where only these are wanted
    cache     directory for features: a second run, or one after a crash, extracts only what is new or changed
    regions   vectors of the regions of each picture instead of one of the whole
    progress  hears the stage ("pictures"), how many are done, and how many there are
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInput(f"there is no folder {root}; give a folder of pictures")
    if regions and not extractor.has_map:
        raise InvalidParams(f"{extractor.name} gives one vector per picture; regions need a network with a feature map")
    wanted, skipped = find_pictures(root) if names is None else (sorted(names), [])
    try:
        run = _Run(root, FeatureCache(Path(cache), {**extractor.describe(), "regions": regions}), extractor, regions)
        with silence_pillow():
            found = run.extract(wanted, progress or (lambda *_: None))
    except OSError as error:
        what = f"{error.strerror or error} ({error.filename or cache})"
        raise BuildInterrupted(f"{what}; what is extracted is kept in {cache}; cure this and run it again") from error
    return _gather(found, skipped, regions, run)


def find_pictures(root: Path) -> tuple[list[str], list[Skipped]]:
    """Relative paths of the pictures below a folder, in order; hidden files and linked folders are left out."""
    names: list[str] = []
    skipped: list[Skipped] = []

    def skip_folder(error: OSError) -> None:
        skipped.append(Skipped(_to_utf8(os.path.relpath(error.filename or root, root)), _describe(error)))

    for directory, folders, files in os.walk(root, onerror=skip_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            suffix = Path(file).suffix.lower()
            if file.startswith(".") or suffix not in SUFFIXES + _OTHER_PICTURES:
                continue
            name = Path(directory, file).relative_to(root).as_posix()
            if name != (printable := _to_utf8(name)):
                skipped.append(Skipped(printable, "its name is not UTF-8; rename it"))
            elif suffix in _OTHER_PICTURES:
                skipped.append(Skipped(name, f"{suffix} is not read; convert it to JPEG or PNG"))
            else:
                names.append(name)
    return sorted(names), skipped


def _to_utf8(name: str) -> str:
    """The name with a question mark for each byte that is not UTF-8."""
    return name.encode("utf-8", "replace").decode()


class _Run:
    """One run over a folder: threads decode ahead and pool behind; this one only runs the network."""

    def __init__(self, root: Path, cache: FeatureCache, extractor: Extractor, regions: bool) -> None:
        self.root, self.cache, self.extractor = root, cache, extractor
        self.pool = extractor.pool_regions if regions else extractor.pool
        self.extracted, self.seconds, self.network_seconds = 0, 0.0, 0.0

    def extract(self, names: list[str], progress: Progress) -> list[CachedPicture | Skipped]:
        """What became of each name, in order."""
        started = time.perf_counter()
        outcomes: list[CachedPicture | Skipped] = []
        behind: deque[_Pending | CachedPicture | Skipped] = deque()  # in the order of the names

        def settle(at_most: int) -> None:
            while behind and (len(behind) > at_most or not isinstance(behind[0], _Pending) or behind[0].work.done()):
                outcomes.append(self._settle(behind.popleft()))
            progress("pictures", len(outcomes), len(names))

        progress("pictures", 0, len(names))
        with ThreadPoolExecutor(_DECODERS) as decoding, ThreadPoolExecutor(1) as pooling:
            try:
                for loaded in _map_ahead(decoding, self._load, names, 2 * _DECODERS + 2):
                    if isinstance(loaded, _Pending):
                        loaded = loaded._replace(work=pooling.submit(self.pool, self._infer(loaded.work)))
                    behind.append(loaded)
                    settle(at_most=4)
                settle(at_most=0)
            finally:
                decoding.shutdown(cancel_futures=True)
                self.cache.flush()
        self.seconds = time.perf_counter() - started
        return outcomes

    def _infer(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        started = time.perf_counter()
        result: NDArray[np.float32] = self.extractor.run(pixels[None])[0]
        self.network_seconds += time.perf_counter() - started
        self.extracted += 1
        return result

    def _load(self, name: str) -> _Pending | CachedPicture | Skipped:
        """Find one picture in the cache, by name or by content, or decode it; runs in a thread."""
        path = self.root / name
        try:
            status = path.stat()
            if cached := self.cache.find(name, status.st_size, status.st_mtime_ns):
                return cached
            data = path.read_bytes()
        except OSError as error:
            # Not cached: the next run may be allowed to read it.
            return Skipped(name, _describe(error))
        entry = Entry(name=name, bytes=len(data), mtime_ns=status.st_mtime_ns, sha256=hashlib.sha256(data).hexdigest())
        if known := self.cache.by_content.get(entry.sha256):
            return replace(known, entry=replace(known.entry, name=name, bytes=len(data), mtime_ns=status.st_mtime_ns))
        try:
            picture = read_picture(data, wanted_side=self.extractor.size)
            pixels = self.extractor.prepare(picture)
        except InvalidInput as error:
            return CachedPicture(replace(entry, reason=str(error)), None, 0)
        camera = {"camera": picture.camera} if picture.camera else {}
        return _Pending(replace(entry, facts={"width": picture.width, "height": picture.height, **camera}), pixels)

    def _settle(self, outcome: _Pending | CachedPicture | Skipped) -> CachedPicture | Skipped:
        """Cache what is new; a picture that has no features for good is skipped."""
        if isinstance(outcome, Skipped):
            return outcome
        if isinstance(outcome, _Pending):
            rows = np.atleast_2d(outcome.work.result())
            if np.isfinite(rows).all() and rows.any():
                outcome = CachedPicture(replace(outcome.entry, rows=len(rows)), rows, 0)
            else:
                outcome = CachedPicture(replace(outcome.entry, reason="the network found nothing in it"), None, 0)
        entry = outcome.entry
        if self.cache.find(entry.name, entry.bytes, entry.mtime_ns) is None:
            self.cache.add(entry, outcome.rows() if entry.rows else None)
        return outcome if entry.reason is None else Skipped(entry.name, entry.reason)


def _map_ahead(pool: ThreadPoolExecutor, work: Callable[[str], Any], names: list[str], window: int) -> Iterator[Any]:
    """The results of a function in order, computed by threads that are at most `window` ahead."""
    waiting = deque(pool.submit(work, name) for name in names[: window - 1])
    for name in names[window - 1 :]:
        waiting.append(pool.submit(work, name))
        yield waiting.popleft().result()
    yield from (future.result() for future in waiting)


def _gather(found: list[CachedPicture | Skipped], skipped: list[Skipped], regions: bool, run: _Run) -> Extraction:
    """Features, owners and items of all pictures that have any."""
    usable = [outcome for outcome in found if isinstance(outcome, CachedPicture)]
    owners = np.repeat(np.arange(len(usable), dtype=np.int32), [cached.entry.rows for cached in usable])
    nothing = np.empty((0, run.extractor.dimensions), np.float32)
    return Extraction(
        features=np.concatenate([nothing, *(cached.rows() for cached in usable)]),
        owners=owners if regions else None,
        items=[_describe_item(cached.entry) for cached in usable],
        skipped=sorted([*skipped, *(outcome for outcome in found if isinstance(outcome, Skipped))]),
        extracted=run.extracted,
        seconds=run.seconds,
        busy=run.network_seconds / run.seconds if run.seconds else 0.0,
    )


def _describe_item(entry: Entry) -> dict[str, Any]:
    """Name and metadata of one picture, as an index stores them."""
    changed = datetime.datetime.fromtimestamp(entry.mtime_ns / 1e9, datetime.UTC)
    return {"name": entry.name, **entry.facts, "bytes": entry.bytes, "date": changed.date().isoformat()}


def _describe(error: OSError) -> str:
    return (error.strerror or "cannot be read").lower()
