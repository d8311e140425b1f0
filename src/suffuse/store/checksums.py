"""Files of an index that are checked page by page, when a page is first read.

To hash a large file takes as long as to read it, so opening an index does not. Instead pages.npy holds a sum of each
page of each file (`kernels.pages`), and whoever reads of a file says what, and is told if it is not what was written.
A page that was found sound is not looked at again while the file stays mapped, by this generation or the next one.
"""

import mmap
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core.kernels.checksums import PAGE, UNCHECKED, first_damaged_row, first_damaged_span, sum_pages
from suffuse.errors import IndexBroken
from suffuse.store.files import map_file

PAGES_FILE = "pages.npy"

# For each map: which of its pages were found sound.
_SOUND: weakref.WeakKeyDictionary[mmap.mmap, NDArray[np.uint8]] = weakref.WeakKeyDictionary()


class Pages:
    """The pages of one file, as far as they have sums; a file without sums is taken for sound."""

    def __init__(self, name: str, item_bytes: int = 1, kernel: tuple[Any, ...] = UNCHECKED) -> None:
        """`kernel` is what kernels take as their `PAGES`; an item, or a row, of the array has so many bytes."""
        self.kernel = kernel
        self.complete = not len(kernel[2])  # whether nothing is left to be checked
        self._name, self._item_bytes = name, item_bytes

    @classmethod
    def of(cls, name: str, map: mmap.mmap, offset: int, item_bytes: int, sums: NDArray[np.uint64]) -> "Pages":
        """Those of a file that is mapped, with its sums."""
        if len(sums) != _count(len(map)):
            raise IndexBroken(f"{name} has {len(map)} bytes, which its sums do not fit; copy or build the index again")
        sound = _SOUND.get(map)
        if sound is None or len(sound) != len(sums):
            sound = _SOUND[map] = np.zeros(len(sums), np.uint8)
        return cls(name, item_bytes, (*_bytes_and_words(map), sums, sound, offset))

    def check_whole(self) -> None:
        """Raise if any page is not what was written."""
        if not self.complete:
            self.check_spans(np.array([0]), np.array([len(self.kernel[0]) // self._item_bytes + 1]))
            self.complete = True

    def check_rows(self, ids: NDArray[np.integer]) -> None:
        """Raise if rows of the array are not what was written; those that lie behind the file are of no concern."""
        if not self.complete:
            self._raise_at(first_damaged_row(self.kernel, self._item_bytes, np.ascontiguousarray(ids, np.uint32)), ids)

    def check_spans(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Raise if items of the array, from each start to its stop, are not what was written."""
        if not self.complete:
            self._raise_at(first_damaged_span(self.kernel, self._item_bytes, starts, stops), starts)

    def _raise_at(self, place: int, what: NDArray[np.integer]) -> None:
        if place >= 0:
            raise IndexBroken(
                f"{self._name} was changed or damaged, near row {what[place]}; run suffuse verify, then copy or build"
                " the index again"
            )


def _bytes_and_words(map: mmap.mmap) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    return np.frombuffer(map, np.uint8), np.frombuffer(map, "<u4", len(map) // 4)


def _count(size: int) -> int:
    return -(-size // PAGE)


def sums_of(paths: Iterable[Path]) -> NDArray[np.uint64]:
    """The sums of all pages of these files, one after the other."""
    return np.concatenate([np.empty(0, np.uint64), *map(_sums_of_file, paths)])


def _sums_of_file(path: Path) -> NDArray[np.uint64]:
    size = path.stat().st_size
    sums = np.empty(_count(size), np.uint64)
    if size:
        sum_pages(*_bytes_and_words(map_file(path)), sums)
    return sums


def split_sums(sums: NDArray[np.uint64], files: Mapping[str, Mapping[str, Any]]) -> dict[str, NDArray[np.uint64]]:
    """The sums of each file that a manifest describes, in the order of their names, but for pages.npy."""
    sizes = {name: _count(files[name]["bytes"]) for name in sorted(files) if name != PAGES_FILE}
    if sum(sizes.values()) != len(sums):
        raise IndexBroken(
            f"{PAGES_FILE} holds {len(sums)} sums, the files have {sum(sizes.values())} pages; copy or build the index"
            " again"
        )
    ends = np.cumsum(list(sizes.values()))
    return {name: sums[end - count : end] for (name, count), end in zip(sizes.items(), ends.tolist(), strict=True)}
