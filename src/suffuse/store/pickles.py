"""Pickles that hold plain data and nothing else: containers, numbers, strings and numpy arrays.

A pickle is a program, and numpy's own `__setstate__` trusts the memory addresses in it. So nothing in the file reaches
numpy unchecked: stand-ins of this module answer the few names that a plain file uses, and build arrays from a checked
type and a run of bytes. Every other name is refused.
"""

import contextlib
import io
import math
import pickle
import pickletools
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from pickle import _Unpickler  # the one in Python: the one in C hashes whatever the file wants hashed
from typing import Any, ClassVar

import numpy as np

from suffuse.errors import InvalidInput, first_line

# Booleans, numbers and strings of a fixed size, as numpy writes them; no objects, no records.
_PLAIN_TYPE = re.compile(r"(b1|i[1248]|u[1248]|f[248]|c8|c16|[SU]\d{1,6})")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_MOST_AXES = 64  # of a numpy array
# Keys whose hash takes no time. The hash of a tuple visits its parts, and forty tuples, each holding the one before
# twice, have 2 ** 40 of them.
_PLAIN_KEYS = (str, bytes, int, float, bool, type(None), np.generic)
_LARGEST_KEY = 1 << 64  # larger whole numbers can be chosen to collide
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 80, 80


def load(path: str | Path) -> Any:
    """The value in a pickle file; anything but plain data is an `InvalidInput` that names it."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give the path of a pickle of plain data")
    return loads(file.read_bytes(), file.name)


def loads(data: bytes, name: str) -> Any:
    """The value in these bytes; error messages call them `name`."""
    with describe_damage(name, "a pickle", "use a file of plain containers, numbers and arrays"):
        return _settle(unpickle(io.BytesIO(data), _FUNCTIONS), {})


@contextlib.contextmanager
def describe_damage(name: str, kind: str, remedy: str) -> Iterator[None]:
    """Turn every error of a reader into an `InvalidInput` that names the file."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{name} is refused: {error}; {remedy}") from error
    except RecursionError as error:
        raise InvalidInput(f"{name} is refused: it is nested too deeply; {remedy}") from error
    except Exception as error:  # damaged data raises almost any kind
        raise InvalidInput(
            f"{name} cannot be read as {kind}: {first_line(error)}; download or write it again"
        ) from error


Functions = Mapping[str, Callable[..., Any] | None]


def unpickle(
    stream: io.BytesIO,
    functions: Functions,
    refer: Callable[[Any], Any] | None = None,
    instructions: Collection[str] | None = None,
) -> Any:
    """Read the pickle that starts here; afterwards the stream is at its end.

    functions     what the names stand for that a file may use, as module.name; None for one that is never called
    refer         gives the value behind a reference to something outside of the pickle
    instructions  the opcodes that are allowed; all if not given
    """
    start, size = stream.tell(), stream.getbuffer().nbytes
    for opcode, argument, _ in pickletools.genops(stream):
        if instructions is not None and opcode.name not in instructions:
            raise InvalidInput(f"it holds the instruction {opcode.name}, which such a file does not need")
        # The unpickler allocates as many entries as the number says: ten bytes could ask for any memory.
        if opcode.name in _PUTS and int(argument or 0) > size:
            raise InvalidInput(f"entry {argument} in a pickle of {size} bytes")
    stream.seek(start)
    return _PlainUnpickler(stream, functions, refer).load()


def abbreviate(value: Any) -> str:
    """A value of a file for a message: never the whole, which a few shared parts can make endless."""
    try:
        return _REPR.repr(value)
    except ValueError:  # a whole number of thousands of digits
        return f"a {type(value).__name__}"


class StandIn:
    """What a name in a file stands for. The file can call it, but not change it for the next file."""

    __slots__ = ("_function", "name")

    def __init__(self, name: str, function: Callable[..., Any] | None) -> None:
        self.name, self._function = name, function

    def __call__(self, *arguments: Any) -> Any:
        """Do what the name does in a plain file."""
        if self._function is None:
            raise InvalidInput(f"a call of {self.name}")
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise InvalidInput(f"a state for {self.name}")


class _Array:
    """An array; its contents may come as a state (version, shape, dtype, is_fortran, bytes).

    The program in the file never holds the array itself, since numpy would do what the program says.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = _make_array(raw, dtype, shape, "F" if fortran else "C")


class _Dtype:
    """A type; its byte order comes as a state (version, order, subtype, names, fields, size, alignment, flags)."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _PLAIN_TYPE.fullmatch(code):
            raise InvalidInput(f"an array of type {abbreviate(code)}")
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *complex_parts = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in complex_parts[:3]):
            raise InvalidInput(f"an array of records or of odd byte order {abbreviate(order)}")
        self._order = order  # size, alignment and flags follow from the type; the file's own are not used

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._order + self._code)


def _reconstruct(kind: Any, *_: Any) -> _Array:
    """`_reconstruct(ndarray, (0,), b"b")`: an array whose contents follow."""
    if not isinstance(kind, StandIn) or kind.name != "numpy.ndarray":
        raise InvalidInput("an array of an unknown class")
    return _Array()


def _make_scalar(dtype: Any, raw: Any) -> Any:
    """`scalar(dtype, bytes)`: one number."""
    return _make_array(raw, dtype, (), "C")[()]


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """`_frombuffer(bytes, dtype, shape, order)`: how protocol 5 writes an array."""
    return _Array(_make_array(raw, dtype, shape, order))


def _encode(text: Any, encoding: Any) -> bytes:
    """`encode(text, "latin1")`: how protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise InvalidInput(f"bytes encoded by {abbreviate(encoding)}")
    return text.encode("latin1")


def _make_set(items: Any = ()) -> Any:
    """`set([...])`: how protocols before 4 write a set."""
    return _collect(set, items)


def _make_bytes(*arguments: Any) -> bytes:
    """`bytes()`: how protocol 2 writes no bytes at all; bytes(10 ** 12) would fill the memory."""
    if arguments:
        raise InvalidInput("a call of bytes with values")
    return b""


_FUNCTIONS: Functions = {
    "numpy.ndarray": None,
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode,
    **{f"{module}.set": _make_set for module in ("builtins", "__builtin__")},
    **{f"{module}.bytes": _make_bytes for module in ("builtins", "__builtin__")},
    **{f"{core}.multiarray._reconstruct": _reconstruct for core in ("numpy.core", "numpy._core")},
    **{f"{core}.multiarray.scalar": _make_scalar for core in ("numpy.core", "numpy._core")},
    **{f"{core}.numeric._frombuffer": _from_buffer for core in ("numpy.core", "numpy._core")},
}


class _PlainUnpickler(_Unpickler):
    """Keys are checked before they are hashed, and names give stand-ins."""

    # Of the class above, which no stub describes.
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    append: Callable[[Any], None]

    def __init__(self, stream: io.BytesIO, functions: Functions, refer: Callable[[Any], Any] | None) -> None:
        super().__init__(stream, encoding="latin1")  # Python 2 wrote bytes as strings; latin1 keeps each of them
        self._functions, self._refer = functions, refer

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
        self.stack[-1].update(_collect(set, items))

    def load_frozenset(self) -> None:
        """A frozen set of what came since the mark."""
        self.append(_collect(frozenset, self.pop_mark()))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_Unpickler.dispatch,
        pickle.DICT[0]: load_dict,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
    }

    def find_class(self, module: str, name: str) -> StandIn:
        if (full := f"{module}.{name}") not in self._functions:
            raise InvalidInput(f"it names {full}, which is not allowed")
        return StandIn(full, self._functions[full])

    def persistent_load(self, pid: Any) -> Any:
        if self._refer is None:
            raise InvalidInput(f"it refers to something outside of the file, {abbreviate(pid)}")
        return self._refer(pid)


def _fill(target: Any, pairs: list[Any]) -> None:
    """Add keys and values, which alternate, to a dictionary."""
    if not isinstance(target, dict) or len(pairs) % 2:
        raise InvalidInput("entries for something that is no dictionary")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        target[_check_key(key)] = value


def _collect(kind: type[Any], items: Any) -> Any:
    """A set or frozen set of a list of keys."""
    if not isinstance(items, list | tuple):
        raise InvalidInput(f"a set of {abbreviate(items)}")
    return kind(map(_check_key, items))


def _check_key(key: Any) -> Any:
    for part in key if type(key) is tuple else (key,):
        if not isinstance(part, _PLAIN_KEYS) or (type(part) is int and abs(part) > _LARGEST_KEY):
            raise InvalidInput(f"a key {abbreviate(key)}")
    return key


def _make_array(raw: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """A checked array with memory of its own; the bytes must be exactly as many as type and shape need."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray) or order not in ("C", "F"):
        raise InvalidInput("an array that does not consist of bytes")
    plain = dtype.dtype()
    fits = isinstance(shape, tuple) and len(shape) <= _MOST_AXES
    if not fits or not all(type(side) is int and 0 <= side < 1 << 63 for side in shape):
        raise InvalidInput(f"an array of shape {abbreviate(shape)}")
    if plain.itemsize == 0 or math.prod(shape) * plain.itemsize != len(raw):
        raise InvalidInput(f"an array of shape {shape} and type {plain} in {len(raw)} bytes")
    return np.frombuffer(raw, plain).reshape(shape, order=order).copy(order=order)


def _settle(value: Any, settled: dict[int, Any]) -> Any:
    """The same containers with arrays in place of stand-ins; `settled` holds what is done, by identity."""
    if isinstance(value, _Array):
        if value.value is None:
            raise InvalidInput("an array without contents")
        return value.value
    if isinstance(value, StandIn | _Dtype):
        raise InvalidInput("it holds a function or a type")
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return value
    if id(value) not in settled:
        settled[id(value)] = None
        if isinstance(value, dict):
            settled[id(value)] = {_settle(key, settled): _settle(item, settled) for key, item in value.items()}
        else:
            settled[id(value)] = type(value)(_settle(item, settled) for item in value)
    elif settled[id(value)] is None:
        raise InvalidInput("it contains itself")
    return settled[id(value)]
