"""The cache of extracted features: append-only blocks, each there as a whole or not at all.

photos.index.pictures/           beside the output
  9f86d081884c7d65/              one extractor (its description, hashed)
    extractor.json               that description, to read
    1700000000000-3f2a.npy       rows of some pictures
    1700000000000-3f2a.jsonl     a line for each of them, in the same order; written last: no list, no block
"""

import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.store.files import UNFINISHED, map_array, write_array, write_bytes, write_json

# What a killed run can lose, at most: so many pictures, and so many seconds of work.
BLOCK_PICTURES, BLOCK_SECONDS = 64, 5.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file: its stamp, and its facts and the number of its rows, or why it was skipped."""

    name: str  # path relative to the folder, with slashes
    bytes: int
    mtime_ns: int
    sha256: str
    rows: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class CachedPicture:
    """An entry, and where its rows are."""

    entry: Entry
    block: NDArray[np.float32] | None
    start: int

    def rows(self) -> NDArray[np.float32]:
        """The rows of this picture."""
        assert self.block is not None
        return self.block[self.start : self.start + self.entry.rows]


class FeatureCache:
    """The features of one extractor; found by name and stamp, or by content."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        # A network is known by its hash: where its file lies does not matter.
        known = {key: value for key, value in description.items() if key != "model"}
        digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = folder / digest
        self._dimensions = int(description["dimensions"])
        self._by_name: dict[str, CachedPicture] = {}
        self.by_content: dict[str, CachedPicture] = {}  # by the SHA-256 of the file, of whatever name
        self._pending: list[tuple[Entry, NDArray[np.float32]]] = []
        self._flushed = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "extractor.json").exists():
            write_json(self.folder / "extractor.json", dict(description))
        for left_behind in self.folder.glob(f".*{UNFINISHED}"):
            # A young one may belong to another run that is at work here.
            if time.time() - left_behind.stat().st_mtime > 3600:
                left_behind.unlink(missing_ok=True)
        for listing in sorted(self.folder.glob("*.jsonl")):
            self._read(listing)

    def find(self, name: str, size: int, mtime_ns: int) -> CachedPicture | None:
        """The features of the file of this name, if it has not changed since."""
        cached = self._by_name.get(name)
        return cached if cached and (cached.entry.bytes, cached.entry.mtime_ns) == (size, mtime_ns) else None

    def add(self, entry: Entry, rows: NDArray[np.float32] | None) -> None:
        """Add an entry; it is on disk after the next `flush`, which happens by itself from time to time."""
        rows = np.empty((0, self._dimensions), np.float32) if rows is None else rows
        self._pending.append((entry, rows))
        self._remember(CachedPicture(entry, rows, 0))
        if len(self._pending) >= BLOCK_PICTURES or time.monotonic() - self._flushed >= BLOCK_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a block: first the rows, then the list without which they do not count."""
        if self._pending:
            name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"  # in order of time; never the name of another run's
            write_array(self.folder / f"{name}.npy", np.concatenate([rows for _, rows in self._pending]))
            lines = [json.dumps(asdict(entry)).encode() + b"\n" for entry, _ in self._pending]
            write_bytes(self.folder / f"{name}.jsonl", lines)
            self._pending = []
        self._flushed = time.monotonic()

    def _read(self, listing: Path) -> None:
        """Read one block; a damaged one is ignored, and its pictures are extracted again."""
        try:
            entries = [Entry(**json.loads(line)) for line in listing.read_bytes().splitlines()]
            block = map_array(listing.with_suffix(".npy")).array
            starts = np.cumsum([0, *(int(entry.rows) for entry in entries)]).tolist()
            counted = all(type(entry.rows) is int and entry.rows >= 0 for entry in entries)
            if counted and block.dtype == np.float32 and block.shape == (starts[-1], self._dimensions):
                for entry, start in zip(entries, starts, strict=False):
                    self._remember(CachedPicture(entry, block, start))
        except (OSError, ValueError, TypeError, OverflowError, RecursionError, Damaged):
            return

    def _remember(self, cached: CachedPicture) -> None:
        self._by_name[cached.entry.name] = cached
        self.by_content[cached.entry.sha256] = cached


def locate_cache(output: Path) -> Path:
    """Where the cache of this output is."""
    return output.with_name(output.name + ".pictures")
