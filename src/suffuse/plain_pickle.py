"""Pickles that hold plain data and nothing else: containers, numbers, strings and numpy arrays.

A pickle is a program, and numpy's own `__setstate__` takes memory addresses on trust. So nothing in the file is ever
handed to numpy as it stands: the few names that a plain file uses are answered by stand-ins of this module, which
build arrays from a checked type and a run of bytes, and every other name is refused.
"""

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from suffuse.errors import InvalidInput

# Truth values, numbers and strings of a fixed size, as numpy writes them; no objects, no records.
_PLAIN_TYPE = re.compile(r"(b1|i[1248]|u[1248]|f[248]|c8|c16|[SU]\d{1,6})")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def load(path: str | Path) -> Any:
    """The value in a pickle file; anything but plain data is an `InvalidInput` that names it."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give the path of a pickle of plain data")
    return loads(file.read_bytes(), file.name)


def loads(data: bytes, name: str) -> Any:
    """The value in these bytes; `name` is what messages call them."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            # The unpickler makes room for as many entries as the number says: ten bytes could ask for any memory.
            if opcode.name in _PUTS and int(argument or 0) > len(data):
                raise InvalidInput(f"entry {argument} in a pickle of {len(data)} bytes")
        # Python 2 wrote bytes as strings; latin1 keeps each of them.
        return _settle(_PlainUnpickler(io.BytesIO(data), encoding="latin1").load(), {})
    except InvalidInput as error:
        raise InvalidInput(f"{name} is refused: {error}; use a file of plain containers, numbers and arrays") from error
    except RecursionError as error:
        raise InvalidInput(f"{name} is refused: it is nested too deeply; use a file of plain data") from error
    except Exception as error:
        # The unpickler has no error of its own for damaged data: most kinds of Python occur.
        words = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} cannot be read as a pickle: {words}; download or write it again") from error


class _StandIn:
    """Something the file calls by name. It keeps no attributes, so that a file cannot change it for the next one."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        raise InvalidInput(f"a call of {type(self).__name__} with {len(arguments)} values")

    def __setstate__(self, state: Any) -> None:
        raise InvalidInput(f"a state for {type(self).__name__}")


class _NdarrayName(_StandIn):
    """`numpy.ndarray`, which plain files name and never call."""

    __slots__ = ()


class _Reconstruct(_StandIn):
    """`_reconstruct(ndarray, (0,), b"b")`: an array whose contents follow."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> "_Array":
        if not arguments or not isinstance(arguments[0], _NdarrayName):
            raise InvalidInput("an array of an unknown class")
        return _Array()


class _Array:
    """An array; its contents come as a state (version, shape, dtype, is_fortran, bytes)."""

    __slots__ = ("value",)
    value: Any

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = _array(raw, dtype, shape, "F" if fortran else "C")


class _MakeDtype(_StandIn):
    """`dtype("i8", False, True)`: a type whose byte order follows."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> "_Dtype":
        return _Dtype(arguments[0])


class _Dtype:
    """A type; its byte order comes as a state (version, order, subtype, names, fields, size, alignment, flags)."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str) or not _PLAIN_TYPE.fullmatch(code):
            raise InvalidInput(f"an array of type {code!r}")
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *complex_parts = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in complex_parts[:3]):
            raise InvalidInput(f"an array of records or of odd byte order {order!r}")
        self._order = order  # size, alignment and flags follow from the type: what the file says is not used

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._order + self._code)


class _Scalar(_StandIn):
    """`scalar(dtype, bytes)`: one number."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        dtype, raw = arguments
        return _array(raw, dtype, (), "C")[()]


class _FromBuffer(_StandIn):
    """`_frombuffer(bytes, dtype, shape, order)`: how protocol 5 writes an array."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        raw, dtype, shape, order = arguments
        return _array(raw, dtype, shape, order)


class _Encode(_StandIn):
    """`encode(text, "latin1")`: how protocol 2 writes bytes."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> bytes:
        text, encoding = arguments
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise InvalidInput(f"bytes encoded by {encoding!r}")
        return text.encode("latin1")


class _MakeSet(_StandIn):
    """`set([...])`: how protocols before 4 write a set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> set[Any]:
        return set(*arguments)


class _NoBytes(_StandIn):
    """`bytes()`: how protocol 2 writes no bytes at all."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> bytes:
        return super().__call__(*arguments) if arguments else b""  # bytes(10 ** 12) would fill the memory


_KNOWN = {
    ("numpy", "ndarray"): _NdarrayName,
    ("numpy", "dtype"): _MakeDtype,
    ("_codecs", "encode"): _Encode,
    **{(module, "set"): _MakeSet for module in ("builtins", "__builtin__")},
    **{(module, "bytes"): _NoBytes for module in ("builtins", "__builtin__")},
    **{(f"{core}.multiarray", "_reconstruct"): _Reconstruct for core in ("numpy.core", "numpy._core")},
    **{(f"{core}.multiarray", "scalar"): _Scalar for core in ("numpy.core", "numpy._core")},
    **{(f"{core}.numeric", "_frombuffer"): _FromBuffer for core in ("numpy.core", "numpy._core")},
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise InvalidInput(f"it names {module}.{name}, which is not plain data")
        return _KNOWN[module, name]()

    def persistent_load(self, pid: Any) -> Any:
        raise InvalidInput(f"it refers to something outside of the file, {pid!r}")


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """A checked array of its own memory; the bytes must be exactly as many as type and shape need."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray) or order not in ("C", "F"):
        raise InvalidInput("an array that does not consist of bytes")
    plain = dtype.dtype()
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise InvalidInput(f"an array of shape {shape!r}")
    if plain.itemsize == 0 or math.prod(shape) * plain.itemsize != len(raw):
        raise InvalidInput(f"an array of shape {shape} and type {plain} in {len(raw)} bytes")
    return np.frombuffer(raw, plain).reshape(shape, order=order).copy(order=order)


def _settle(value: Any, settled: dict[int, Any]) -> Any:
    """The same containers with arrays in place of stand-ins; `settled` holds what is done, by identity."""
    if isinstance(value, _Array):
        return value.value
    if not isinstance(value, list | tuple | dict | set | frozenset):
        if isinstance(value, _StandIn | _Dtype):
            raise InvalidInput("it holds a function or a type")
        return value
    if id(value) in settled:
        if settled[id(value)] is None:
            raise InvalidInput("it contains itself")
        return settled[id(value)]
    settled[id(value)] = None
    result: Any
    if isinstance(value, dict):
        result = {_settle(key, settled): _settle(item, settled) for key, item in value.items()}
    else:
        result = type(value)(_settle(item, settled) for item in value)
    settled[id(value)] = result
    return result
