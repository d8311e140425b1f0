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
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from suffuse.errors import InvalidInput

# Truth values, numbers and strings of a fixed size, as numpy writes them; no objects, no records.
_PLAIN_TYPE = re.compile(r"(b1|i[1248]|u[1248]|f[248]|c8|c16|[SU]\d{1,6})")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_MOST_AXES = 64  # of an array of numpy
# Keys whose hash takes no time. That of a tuple visits its parts, and forty tuples, each of twice the one before, have
# 2 ** 40 of them.
_PLAIN_KEYS = (str, bytes, int, float, bool, type(None), np.generic)
_LARGEST_KEY = 1 << 64  # far larger whole numbers can be chosen to collide
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother = 2, 80, 80


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


def shown(value: Any) -> str:
    """A value of a file as a message shows it: never the whole, which a few shared parts can make endless."""
    try:
        return _SHOWN.repr(value)
    except ValueError:  # a whole number of thousands of digits
        return f"a {type(value).__name__}"


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
    """An array; its contents may come as a state (version, shape, dtype, is_fortran, bytes).

    The program of the file never holds the array itself: numpy would do as it says.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

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
            raise InvalidInput(f"an array of type {shown(code)}")
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *complex_parts = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in complex_parts[:3]):
            raise InvalidInput(f"an array of records or of odd byte order {shown(order)}")
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
        return _Array(_array(raw, dtype, shape, order))


class _Encode(_StandIn):
    """`encode(text, "latin1")`: how protocol 2 writes bytes."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> bytes:
        text, encoding = arguments
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise InvalidInput(f"bytes encoded by {shown(encoding)}")
        return text.encode("latin1")


class _MakeSet(_StandIn):
    """`set([...])`: how protocols before 4 write a set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return _with_plain_keys(set, *arguments)


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


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler that is written in Python: that of C cannot be kept from hashing whatever the file wants hashed."""

    # Of the class above, which no stub describes.
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    append: Callable[[Any], None]

    def load_dict(self) -> None:
        """A dictionary of keys and values since the mark."""
        made: dict[Any, Any] = {}
        _fill(made, self.pop_mark())
        self.append(made)

    def load_setitem(self) -> None:
        """One key and its value."""
        value = self.stack.pop()
        _fill(self.stack[-2], [self.stack.pop(), value])

    def load_setitems(self) -> None:
        """Keys and values since the mark."""
        pairs = self.pop_mark()
        _fill(self.stack[-1], pairs)

    def load_additems(self) -> None:
        """Elements of a set since the mark."""
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise InvalidInput("elements for something that is no set")
        self.stack[-1].update(_with_plain_keys(set, items))

    def load_frozenset(self) -> None:
        """A frozen set of what came since the mark."""
        self.append(_with_plain_keys(frozenset, self.pop_mark()))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.DICT[0]: load_dict,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise InvalidInput(f"it names {module}.{name}, which is not plain data")
        return _KNOWN[module, name]()

    def persistent_load(self, pid: Any) -> Any:
        raise InvalidInput(f"it refers to something outside of the file, {shown(pid)}")


def _fill(target: Any, pairs: list[Any]) -> None:
    """Add keys and values, which alternate, to a dictionary."""
    if type(target) is not dict or len(pairs) % 2:
        raise InvalidInput("entries for something that is no dictionary")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        target[_plain_key(key)] = value


def _with_plain_keys(kind: type[Any], items: Any = ()) -> Any:
    """A set or frozen set of a list of keys."""
    if not isinstance(items, list | tuple):
        raise InvalidInput(f"a set of {shown(items)}")
    return kind(_plain_key(item) for item in items)


def _plain_key(key: Any) -> Any:
    parts = key if type(key) is tuple else (key,)
    for part in parts:
        if not isinstance(part, _PLAIN_KEYS) or (type(part) is int and abs(part) > _LARGEST_KEY):
            raise InvalidInput(f"a key {shown(key)}")
    return key


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """A checked array of its own memory; the bytes must be exactly as many as type and shape need."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray) or order not in ("C", "F"):
        raise InvalidInput("an array that does not consist of bytes")
    plain = dtype.dtype()
    fits = isinstance(shape, tuple) and len(shape) <= _MOST_AXES
    if not fits or not all(type(side) is int and 0 <= side < 1 << 63 for side in shape):
        raise InvalidInput(f"an array of shape {shown(shape)}")
    if plain.itemsize == 0 or math.prod(shape) * plain.itemsize != len(raw):
        raise InvalidInput(f"an array of shape {shape} and type {plain} in {len(raw)} bytes")
    return np.frombuffer(raw, plain).reshape(shape, order=order).copy(order=order)


def _settle(value: Any, settled: dict[int, Any]) -> Any:
    """The same containers with arrays in place of stand-ins; `settled` holds what is done, by identity."""
    if isinstance(value, _Array):
        if value.value is None:
            raise InvalidInput("an array without contents")
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
