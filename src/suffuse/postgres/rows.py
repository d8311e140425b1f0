"""Rows in PostgreSQL's binary COPY format, made from arrays without a Python object for each number.

Numbers are big-endian. A row is the number of its fields, then each field behind its length in bytes.
"""

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core.columns import Entries
from suffuse.errors import InvalidInput
from suffuse.store.items import Item

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

# The types of array elements, by their numbers in pg_type: those never change.
_INT4, _FLOAT4 = 23, 700
_JSONB_VERSION = b"\x01"


def row(*fields: bytes | None) -> bytes:
    """One row; None is NULL."""
    parts = [struct.pack(">h", len(fields))]
    for field in fields:
        parts.append(struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field)
    return b"".join(parts)


def integer(value: int) -> bytes:
    """An integer field."""
    return struct.pack(">i", value)


def vectors(rows: NDArray[Any], *, half: bool = False) -> Iterator[bytes]:
    """A vector field, or a halfvec, for each row (b, d)."""
    head = struct.pack(">hh", rows.shape[1], 0)
    for values in rows.astype(">f2" if half else ">f4"):
        yield head + values.tobytes()


def item_fields(item: Item, id: int) -> tuple[bytes, bytes]:
    """The fields name and metadata of an image, which is called by its id where it has no name."""
    metadata = {key: value for key, value in item.items() if key != "name"}
    try:
        name = str(item.get("name", id)).encode()
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the metadata of image {id} cannot be written: {error}; correct it and build again"
        ) from error
    if b"\0" in name or b"\\u0000" in text:
        raise InvalidInput(
            f"the name or metadata of image {id} holds the character U+0000, which PostgreSQL does not store;"
            " correct it and build again"
        )
    return name, _JSONB_VERSION + text


def item_rows(
    first: int, items: Sequence[dict[str, Any]], features: NDArray[np.float32], half: bool
) -> Iterator[bytes]:
    """Rows of the table items for the images from `first` on."""
    halves: Iterator[bytes | None] = vectors(features, half=True) if half else iter([None] * len(features))
    for id, (item, embedding, short) in enumerate(zip(items, vectors(features), halves, strict=True), first):
        yield row(integer(id), *item_fields(item, id), embedding, short)


def column_rows(first: int, columns: Entries) -> Iterator[bytes]:
    """Rows of the table columns for the elements from `first` on."""
    indptr = columns.indptr.tolist()
    rows, values = _elements(columns.rows, ">i4"), _elements(columns.values, ">f4")
    for place, (start, stop) in enumerate(itertools.pairwise(indptr)):
        yield row(integer(first + place), _array(_INT4, rows[start:stop]), _array(_FLOAT4, values[start:stop]))


def _elements(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Each number behind its length."""
    pairs = np.empty(len(values), [("length", ">i4"), ("value", kind)])
    pairs["length"], pairs["value"] = 4, values
    return pairs


def _array(kind: int, elements: NDArray[Any]) -> bytes:
    """An array of one dimension that counts from 1; an empty one has no dimension."""
    if not len(elements):
        return struct.pack(">iii", 0, 0, kind)
    return struct.pack(">iiiii", 1, 0, kind, len(elements), 1) + elements.tobytes()
