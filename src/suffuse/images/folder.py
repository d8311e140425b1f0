"""A folder of pictures to features: decoding and network overlap, what is done is kept, what fails is listed."""

import datetime
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import BuildInterrupted, InvalidInput, InvalidParams
from suffuse.images.cache import Entry, FeatureCache, Kept, content_hash
from suffuse.images.network import Extractor
from suffuse.images.pictures import SUFFIXES, quiet_decoding, read_picture

# Called with pictures done, pictures in all, and pictures per second of those that were extracted in this run.
Progress = Callable[[int, int, float], None]

# Pictures that are not read, but that somebody may miss: they are listed as skipped.
_OTHER_PICTURES = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".cr2", ".cr3", ".nef", ".arw", ".dng")
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


class _Ready(NamedTuple):
    """A picture that is decoded, and waits for the network."""

    entry: Entry
    pixels: NDArray[Any]


def extract_folder(
    folder: str | Path,
    cache: str | Path,
    extractor: Extractor,
    *,
    names: Sequence[str] | None = None,
    regions: bool = False,
    decoders: int = _DECODERS,
    progress: Progress | None = None,
) -> Extraction:
    """Features of every picture in a folder and the folders in it, in order of their names.

    names     paths of pictures below the folder, where only these are wanted
    cache     directory where features are kept: a second run extracts only what is new or changed, and a run that
              was killed goes on
    regions   vectors of the regions of each picture instead of one of the whole
    decoders  threads that read pictures while the network works
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInput(f"there is no folder {root}; give a folder of pictures")
    if decoders < 1:
        raise InvalidParams(f"decoders must be a whole number of at least 1, got {decoders!r}")
    if regions and not extractor.has_map:
        raise InvalidParams(f"{extractor.name} gives one vector per picture; regions need a network with a feature map")
    wanted, skipped = find_pictures(root) if names is None else (sorted(names), [])
    run: _Run | None = None
    try:
        run = _Run(root, FeatureCache(Path(cache), {**extractor.describe(), "regions": regions}), extractor, regions)
        with quiet_decoding():
            found = run.go(wanted, decoders, progress or _silent)
    except OSError as error:
        raise BuildInterrupted(
            f"{error.strerror or error} ({error.filename or cache}); what is extracted is kept in {cache}, and the same"
            " command goes on from there once this is cured"
        ) from error
    return _gather(found, skipped, regions, extractor.dimensions, run)


def find_pictures(root: Path) -> tuple[list[str], list[Skipped]]:
    """Relative paths of the pictures below a folder, in order; hidden files and linked folders are left out."""
    names: list[str] = []
    skipped: list[Skipped] = []
    for directory, folders, files in os.walk(root, onerror=lambda error: skipped.append(_unwalkable(root, error))):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            suffix = Path(file).suffix.lower()
            if file.startswith(".") or suffix not in SUFFIXES + _OTHER_PICTURES:
                continue
            name = Path(directory, file).relative_to(root).as_posix()
            if name != (printable := _printable(name)):
                skipped.append(Skipped(printable, "its name is not UTF-8; rename it"))
            elif suffix in _OTHER_PICTURES:
                skipped.append(Skipped(name, f"{suffix} is not read; convert it to JPEG or PNG"))
            else:
                names.append(name)
    return sorted(names), skipped


def _unwalkable(root: Path, error: OSError) -> Skipped:
    name = os.path.relpath(error.filename or root, root)
    return Skipped(_printable(name), (error.strerror or "cannot be read").lower())


def _printable(name: str) -> str:
    """The name with a question mark for each byte that is not UTF-8."""
    return name.encode("utf-8", "replace").decode()


class _Run:
    """One run over a folder: threads decode ahead and pool behind, this one does nothing but run the network."""

    def __init__(self, root: Path, cache: FeatureCache, extractor: Extractor, regions: bool) -> None:
        self.root, self.cache, self.extractor = root, cache, extractor
        self.pool = extractor.pool_regions if regions else extractor.pool
        self.extracted, self.seconds, self.network_seconds = 0, 0.0, 0.0

    def go(self, names: list[str], decoders: int, progress: Progress) -> list[Kept | Skipped]:
        """What became of each name, in order."""
        started = time.perf_counter()
        outcomes: list[Kept | Skipped] = []
        # In order of the names: the place of each outcome, and what pooling has still to say.
        behind: deque[tuple[Entry, Future[NDArray[np.float32]]] | Kept | Skipped] = deque()

        def settle(at_most: int) -> None:
            while len(behind) > at_most or (
                behind and (not isinstance(behind[0], tuple) or isinstance(behind[0], Skipped) or behind[0][1].done())
            ):
                outcomes.append(self._settled(behind.popleft()))
            self.seconds = time.perf_counter() - started
            progress(len(outcomes), len(names), self.extracted / self.seconds)

        progress(0, len(names), 0.0)
        with ThreadPoolExecutor(decoders) as decoding, ThreadPoolExecutor(1) as pooling:
            try:
                for loaded in _ahead(decoding, self._load, names, 2 * decoders + 2):
                    behind.append(
                        (loaded.entry, pooling.submit(self.pool, self._infer(loaded.pixels)))
                        if isinstance(loaded, _Ready)
                        else loaded
                    )
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

    def _load(self, name: str) -> "_Ready | Kept | Skipped":
        """Find one picture in the cache, by name or by content, or decode it; runs in a thread."""
        path = self.root / name
        try:
            status = path.stat()
            if kept := self.cache.find(name, status.st_size, status.st_mtime_ns):
                return kept
            data = path.read_bytes()
        except OSError as error:
            # Not kept: the next run may be allowed to read it.
            return Skipped(name, (error.strerror or "cannot be read").lower())
        entry = Entry(name=name, bytes=len(data), mtime_ns=status.st_mtime_ns, sha256=content_hash(data))
        if known := self.cache.find_content(entry.sha256):
            return replace(known, entry=replace(known.entry, name=name, bytes=len(data), mtime_ns=status.st_mtime_ns))
        try:
            picture = read_picture(data, wanted_side=self.extractor.size)
            pixels = self.extractor.prepare(picture)
        except InvalidInput as error:
            return Kept(replace(entry, reason=str(error)), None, 0)
        facts: dict[str, Any] = {"width": picture.width, "height": picture.height}
        if picture.camera:
            facts["camera"] = picture.camera
        return _Ready(replace(entry, facts=facts), pixels)

    def _settled(self, outcome: "tuple[Entry, Future[NDArray[np.float32]]] | Kept | Skipped") -> Kept | Skipped:
        """Keep what is new; what the cache knows already stays as it is."""
        if isinstance(outcome, Skipped):
            return outcome
        if isinstance(outcome, Kept):
            entry = outcome.entry
            if self.cache.find(entry.name, entry.bytes, entry.mtime_ns) is None:
                self.cache.add(entry, outcome.rows() if entry.rows else None)
            return outcome
        entry, pooled = outcome
        rows = pooled.result()
        if not np.isfinite(rows).all() or not rows.any():
            unusable = Kept(replace(entry, reason="the network found nothing in it"), None, 0)
            self.cache.add(unusable.entry, None)
            return unusable
        rows = np.atleast_2d(rows)
        kept = Kept(replace(entry, rows=len(rows)), rows, 0)
        self.cache.add(kept.entry, rows)
        return kept


def _ahead(pool: ThreadPoolExecutor, function: Callable[[str], Any], names: list[str], window: int) -> Iterator[Any]:
    """The results of a function in order, computed by threads that are at most `window` ahead."""
    waiting: deque[Future[Any]] = deque()
    for name in names:
        waiting.append(pool.submit(function, name))
        if len(waiting) >= window:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _gather(
    found: list[Kept | Skipped], skipped: list[Skipped], regions: bool, dimensions: int, run: _Run
) -> Extraction:
    """Features, owners and items of all pictures that have any."""
    usable, skipped = [], list(skipped)
    for outcome in found:
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
        elif outcome.entry.reason is not None:
            skipped.append(Skipped(outcome.entry.name, outcome.entry.reason))
        else:
            usable.append(outcome)
    counts = [kept.entry.rows for kept in usable]
    features = np.empty((sum(counts), dimensions), np.float32)
    start = 0
    for kept in usable:
        features[start : start + kept.entry.rows] = kept.rows()
        start += kept.entry.rows
    return Extraction(
        features=features,
        owners=np.repeat(np.arange(len(usable), dtype=np.int32), counts) if regions else None,
        items=[_item(kept.entry) for kept in usable],
        skipped=sorted(skipped),
        extracted=run.extracted,
        seconds=run.seconds,
        busy=run.network_seconds / run.seconds if run.seconds else 0.0,
    )


def _item(entry: Entry) -> dict[str, Any]:
    """Name and metadata of one picture, as an index keeps them."""
    changed = datetime.datetime.fromtimestamp(entry.mtime_ns / 1e9, datetime.UTC)
    return {"name": entry.name, **entry.facts, "bytes": entry.bytes, "date": changed.date().isoformat()}


def _silent(_done: int, _total: int, _rate: float) -> None:
    """The progress of a run that nobody watches."""
