"""Matrices of numbers in Matlab files of version 5, which `-v6` and `-v7` write: the kind before HDF5.

scipy reads these files as well, but trusts them: where a file names a type of numbers that does not exist, scipy 1.17
looks it up outside of its table, and the process dies. What features need of the format is one page, written by hand
here with each length checked: a header of 128 bytes, then elements of a type, a length and content; a matrix is an
element of elements (flags, dimensions, name, numbers), and may be packed by zlib.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.store.feature_files import check_unpacked

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


class _Damaged(Exception):
    """What is wrong with a file."""


def read_matrices(file: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The matrices of these names, as many of them as there are; anything odd is an `InvalidInput`."""
    mapped: Any = np.memmap(file, np.uint8, mode="r")
    try:
        return _read(file, memoryview(mapped), names)
    except (_Damaged, zlib.error) as error:
        raise InvalidInput(f"{file.name} cannot be read: {error}; fetch it again, or save it with '-v7'") from error


def _read(file: Path, data: memoryview, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    order = _ORDERS.get(bytes(data[_HEADER_BYTES - 2 : _HEADER_BYTES]))
    if order is None:
        raise _Damaged("it is not a Matlab file of version 5 or 7.3")
    found = {}
    for element in _elements(data[_HEADER_BYTES:], order):
        body = _unpack(file, element.content, order) if element.kind == _PACKED else element
        if body.kind != _MATRIX:
            continue
        parts = list(_elements(body.content, order))
        name = bytes(parts[2].content).decode("latin1") if len(parts) > 2 else ""
        if name in names:
            found[name] = _matrix(name, order, *parts)
    return found


def _elements(data: memoryview, order: str) -> Iterator[_Element]:
    place = 0
    while place < len(data):
        element = _element(data, place, order)
        yield element
        place = element.end


def _element(data: memoryview, place: int, order: str) -> _Element:
    if len(data) - place < 8:
        raise _Damaged("it ends within an element")
    kind, size = struct.unpack_from(f"{order}II", data, place)
    if kind >> 16:  # up to four bytes, in the place of the length
        start, size, end = place + 4, kind >> 16, place + 8
        kind &= 0xFFFF
        if size > 4:
            raise _Damaged(f"it has a small element of {size} bytes")
    else:
        start = place + 8
        end = start + size + (0 if kind == _PACKED else -size % 8)
    if start + size > len(data):
        raise _Damaged(f"it ends within an element of {size} bytes")
    return _Element(kind, data[start : start + size], end)


def _unpack(file: Path, packed: memoryview, order: str) -> _Element:
    inflate = zlib.decompressobj()
    tag = inflate.decompress(packed, 8)
    if len(tag) < 8:
        raise _Damaged("it ends within an element")
    size = struct.unpack(f"{order}II", tag)[1]
    check_unpacked(file, size)
    return _element(memoryview(tag + inflate.decompress(inflate.unconsumed_tail, max(size, 1))), 0, order)


def _matrix(
    name: str, order: str, flags: _Element, dimensions: _Element, _: _Element, *parts: _Element
) -> NDArray[Any]:
    if (flags.kind, len(flags.content), dimensions.kind) != (_UINT32, 8, _INT32) or len(dimensions.content) % 4:
        raise _Damaged(f"{name} is no matrix")
    (word,) = struct.unpack_from(f"{order}I", flags.content)
    shape = struct.unpack(f"{order}{len(dimensions.content) // 4}i", dimensions.content)
    if word & 0xFF not in _CLASSES or word & _COMPLEX or len(parts) != 1 or parts[0].kind not in _NUMBERS:
        raise _Damaged(f"{name} is no matrix of real numbers")
    numbers = np.dtype(order + _NUMBERS[parts[0].kind])
    if len(shape) != 2 or min(shape) < 0 or math.prod(shape) * numbers.itemsize != len(parts[0].content):
        raise _Damaged(f"{name} has the shape {shape[:8]} and {len(parts[0].content)} bytes of {numbers}")
    return np.frombuffer(parts[0].content, numbers).astype(_CLASSES[word & 0xFF]).reshape(shape, order="F")
