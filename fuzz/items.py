"""Names of images: text, CSV, JSON and lines of JSON, and what a build makes of them."""

import json

import numpy as np

from fuzz.judge import allowed, file_of, kind_of, with_kind
from suffuse.store.items import add_labels, check_items, encode_items, load_items

_SUFFIXES = (".txt", ".csv", ".json", ".jsonl")


def seeds() -> dict[str, bytes]:
    """A few names in each kind of file."""
    contents = {
        "text": (0, b"a.jpg\nb.jpg\n\xc3\xa9.jpg\n"),
        "csv": (1, b'name,year\na.jpg,1999\n"b, c.jpg",2000\nd.jpg\n'),
        "json": (2, b'["a.jpg", {"name": "b.jpg", "year": 1999.5, "tags": ["x", null, true]}, {}]'),
        "lines": (3, b'{"name": "a.jpg"}\n{"name": "b.jpg", "size": [1, 2]}\n'),
    }
    return {name: with_kind(*content) for name, content in contents.items()}


def run(data: bytes) -> None:
    """Read names and write them as a build does; every line of that must be read as what it was."""
    kind, content = kind_of(data, len(_SUFFIXES))
    with file_of(content, f"names{_SUFFIXES[kind]}") as path:
        names = load_items(path)
    with allowed():
        add_labels(names, np.arange(len(names)))
    items = check_items(names, len(names))
    text, offsets = encode_items(items)
    for start, stop, item in zip(offsets, offsets[1:], items, strict=False):
        if json.loads(text[start:stop]) != item:
            raise AssertionError(f"{item!r} was written as {text[start:stop]!r}")
