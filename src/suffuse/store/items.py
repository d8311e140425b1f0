"""Names and metadata of images: one JSON object per line, read where it is needed."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.errors import InvalidInput
from suffuse.store.files import Checksums, report_damage
from suffuse.store.ids import Ids

Item = dict[str, Any]


def check_items(items: Sequence[Any], images: int) -> list[Item]:
    """Names (text) or metadata (mappings with a `name`) as a list with one item per image."""
    if len(items) != images:
        raise InvalidInput(f"{len(items)} names for {images} images; give one name per image")
    return [_check_item(item, number) for number, item in enumerate(items)]


def _check_item(item: Any, number: int) -> Item:
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
        raise InvalidInput(f"name {number} is {item!r}; give text, or an object with a name and metadata")
    if not isinstance(item.get("name", ""), str):
        raise InvalidInput(f"name {number} is {item['name']!r}, which is not text")
    return item


def load_items(path: str | Path) -> list[Any]:
    """Read names from .txt (one per line), .csv (with a header), .json (a list) or .jsonl (one object per line)."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give the path of a file with names")
    try:
        text = file.read_text(encoding="utf-8-sig")
        match file.suffix.lower():
            case ".csv":
                return list(csv.DictReader(io.StringIO(text)))
            case ".json":
                names = json.loads(text)
                if not isinstance(names, list):
                    raise InvalidInput(f"{file.name} holds {type(names).__name__}; write a list of names")
                return names
            case ".jsonl":
                return [json.loads(line) for line in text.split("\n") if line.strip()]
            case _:
                # Not `splitlines`: that breaks names at characters such as U+2028.
                return text.removesuffix("\n").split("\n") if text else []
    except InvalidInput:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InvalidInput(f"{file.name} cannot be read as names: {error}; write it again, as UTF-8") from error


def add_labels(items: Sequence[Any] | None, labels: NDArray[Any]) -> list[Item]:
    """Keep the class label of each image as metadata, beside its name if it has one."""
    named = [{}] * len(labels) if items is None else check_items(items, len(labels))
    return [{**item, "label": label} for item, label in zip(named, labels.tolist(), strict=True)]


def encode_items(items: Sequence[Item]) -> tuple[bytes, NDArray[np.int64]]:
    """The lines of items.jsonl, and where each line starts; the last offset is the length."""
    lines = [_encode_item(item, number) for number, item in enumerate(items)]
    offsets = np.zeros(len(lines) + 1, np.int64)
    np.cumsum([len(line) for line in lines], out=offsets[1:])
    return b"".join(lines), offsets


def _encode_item(item: Item, number: int) -> bytes:
    try:
        return json.dumps(item, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"name {number} holds more than plain JSON values: {error}; convert or remove it") from error


class Items:
    """The items of an open index; only the lines that are asked for are read and parsed."""

    def __init__(
        self,
        ids: Ids,
        text: memoryview | None = None,
        offsets: NDArray[np.int64] | None = None,
        more: memoryview | None = None,
        checksums: Sequence[Checksums] = (),
    ) -> None:
        """The line of row i is text[offsets[i]:offsets[i + 1]]; an empty one is an item without anything.

        `more` is what comes behind `text`; `checksums` are those of the files under offsets and text.
        """
        self._checksums = checksums
        self._ids, self._offsets = ids, offsets
        self._text, self._more = text or memoryview(b""), more or memoryview(b"")

    def __len__(self) -> int:
        return self._ids.visible

    @report_damage
    def check_all(self) -> None:
        """Raise unless the files are what was written: faster than with one line after the other, for who reads all."""
        for checksums in self._checksums:
            checksums.check_whole()

    def __getitem__(self, id: int) -> Item:
        return self.at(self._ids.find_row(id))

    def __iter__(self) -> Iterator[Item]:
        self.check_all()
        return (self[id] for id in self._ids.list_visible().tolist())

    @report_damage
    def at(self, row: int) -> Item:
        """The item of a row."""
        if self._offsets is None:
            return {}
        start, stop, behind = int(self._offsets[row]), int(self._offsets[row + 1]), len(self._text)
        if not all(checksums.complete for checksums in self._checksums):
            offsets, text = self._checksums
            offsets.check_rows(np.array([row, row + 1]))
            text.check_spans(np.array([start]), np.array([stop]))
        line = self._text[start:stop] if start < behind else self._more[start - behind : stop - behind]
        if start == stop:
            return {}
        try:
            item = json.loads(str(line, "utf-8"))  # of bytes it would guess the encoding
        except (ValueError, RecursionError) as error:
            raise Damaged(f"items.jsonl is damaged at the line of image {row}") from error
        if not isinstance(item, dict):
            raise Damaged(f"items.jsonl holds no object at the line of image {row}")
        return item

    def name(self, id: int) -> str:
        """The image's name; an image without one is called by its id."""
        return str(self[id].get("name", id))
