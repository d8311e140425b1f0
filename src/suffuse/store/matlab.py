"""A reader of Matlab files of version 5, which `-v6` and `-v7` write: matrices of numbers.

Written by hand, since scipy 1.17 trusts these files: a type of numbers that does not exist makes it read outside of its
table, and the process dies. Here each length is checked. A file is a header of 128 bytes, then elements of a type, a
length and content. A matrix is an element of elements (flags, dimensions, name, numbers) and may be packed by zlib.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.store.feature_files import check_unpacked, describe_damage

_HEADER_BYTES = 128
_ORDERS = {b"IM": "<", b"MI": ">"}
_INT32, _UINT32, _MATRIX, _PACKED = 5, 6, 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
# Classes of matrices by what they hold; the numbers may be stored in a smaller type. The others are no numbers.
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x800


class _Element(NamedTuple):
    kind: int
    content: memoryview
    end: int  # where the next element starts


def read_matrices(file: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Those of the named matrices that the file holds; anything odd in it is an `InvalidInput`."""
    mapped: Any = np.memmap(file, np.uint8, mode="r")
    with describe_damage(file, "fetch it again, or save it with '-v7'"):
        return _read_file(file, memoryview(mapped), names)


def _read_file(file: Path, data: memoryview, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    order = _ORDERS.get(bytes(data[_HEADER_BYTES - 2 : _HEADER_BYTES]))
    if order is None:
        raise ValueError("it is not a Matlab file of version 5 or 7.3")
    found = {}
    for element in _read_elements(data[_HEADER_BYTES:], order):
        body = _unpack(file, element.content, order) if element.kind == _PACKED else element
        if body.kind != _MATRIX:
            continue
        parts = list(_read_elements(body.content, order))
        name = bytes(parts[2].content).decode("latin1") if len(parts) > 2 else ""
        if name in names:
            found[name] = _read_matrix(name, order, *parts)
    return found


def _read_elements(data: memoryview, order: str) -> Iterator[_Element]:
    offset = 0
    while offset < len(data):
        element = _read_element(data, offset, order)
        yield element
        offset = element.end


def _read_element(data: memoryview, offset: int, order: str) -> _Element:
    if len(data) - offset < 8:
        raise ValueError("it ends within an element")
    kind, size = struct.unpack_from(f"{order}II", data, offset)
    if kind >> 16:  # a small element: its length is here, and up to four bytes of content instead of the length
        start, size, end = offset + 4, kind >> 16, offset + 8
        kind &= 0xFFFF
        if size > 4:
            raise ValueError(f"it has a small element of {size} bytes")
    else:
        start = offset + 8
        end = start + size + (0 if kind == _PACKED else -size % 8)
    if start + size > len(data):
        raise ValueError(f"it ends within an element of {size} bytes")
    return _Element(kind, data[start : start + size], end)


def _unpack(file: Path, packed: memoryview, order: str) -> _Element:
    inflate = zlib.decompressobj()
    tag = inflate.decompress(packed, 8)
    if len(tag) < 8:
        raise ValueError("it ends within an element")
    size = struct.unpack(f"{order}II", tag)[1]
    check_unpacked(file, size)
    return _read_element(memoryview(tag + inflate.decompress(inflate.unconsumed_tail, max(size, 1))), 0, order)


def _read_matrix(
    name: str, order: str, flags: _Element, dimensions: _Element, _: _Element, *parts: _Element
) -> NDArray[Any]:
    if (flags.kind, len(flags.content), dimensions.kind) != (_UINT32, 8, _INT32) or len(dimensions.content) % 4:
        raise ValueError(f"{name} is no matrix")
    (word,) = struct.unpack_from(f"{order}I", flags.content)
    shape = struct.unpack(f"{order}{len(dimensions.content) // 4}i", dimensions.content)
    if word & 0xFF not in _CLASSES or word & _COMPLEX or len(parts) != 1 or parts[0].kind not in _NUMBERS:
        raise ValueError(f"{name} is no matrix of real numbers")
    numbers = np.dtype(order + _NUMBERS[parts[0].kind])
    if len(shape) != 2 or min(shape) < 0 or math.prod(shape) * numbers.itemsize != len(parts[0].content):
        raise ValueError(f"{name} has the shape {shape[:8]} and {len(parts[0].content)} bytes of {numbers}")
    return np.frombuffer(parts[0].content, numbers).astype(_CLASSES[word & 0xFF]).reshape(shape, order="F")
