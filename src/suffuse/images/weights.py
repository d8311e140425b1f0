"""Weights of a network from a torch file of the old format: tensors only, read without torch and without `pickle`.

Such a file is a run of pickles, which describe tensors, and then the raw numbers. A pickle is a program; the two dozen
instructions that a file of tensors needs are carried out here, each checked, and every other instruction and every
name that is not a tensor's is refused. `suffuse.store.pickles` cannot serve: the numbers of these files lie outside of
the pickles, behind references that it refuses.
"""

import io
import math
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.store.pickles import shown

Weights = dict[str, NDArray[Any]]

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
}
_NAMES = {("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2")} | {
    ("torch", storage) for storage in _STORAGES
}
# A file of weights is never this large; what is larger is not worth the memory to find out.
_LARGEST_FILE = 4 << 30
_MOST_AXES = 8
# Tensors may share numbers; many that do, each a copy in another order, would make any size out of a small file.
_MOST_SHARING = 4


class _Name(NamedTuple):
    """A class or function that the file names."""

    module: str
    name: str


class _Storage(NamedTuple):
    """A run of numbers whose bytes come after the pickles."""

    key: str
    dtype: str
    length: int


class _Tensor(NamedTuple):
    """A view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_weights(path: str | Path) -> Weights:
    """The tensors of a torch file by name; anything but tensors is an `InvalidInput` that says what it was."""
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise InvalidInput(f"{file.name} has more than {_LARGEST_FILE >> 30} GB; give a file of weights")
        data = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}; give the path of a file of weights") from error
    return parse_weights(data, file.name)


def parse_weights(data: bytes, name: str) -> Weights:
    """The tensors in these bytes; `name` is what messages call them."""
    try:
        return _parse(data)
    except InvalidInput as error:
        raise InvalidInput(f"{name} is refused: {error}; give a torch file of weights alone") from error
    except Exception as error:
        # A damaged program fails in many ways: a stack that is empty, a type that does not fit.
        words = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} cannot be read as a torch file: {words}; download or write it again") from error


def _parse(data: bytes) -> Weights:
    stream = io.BytesIO(data)
    if _run(stream) != _MAGIC or _run(stream) != _PROTOCOL:
        raise InvalidInput("it is not a torch file of the old format")
    system = _run(stream)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise InvalidInput("its numbers are not little-endian")
    described = _run(stream)
    keys = _run(stream)
    if not isinstance(described, dict) or not all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in described.items()
    ):
        raise InvalidInput("it holds something else than named tensors")
    storages = {tensor.storage.key: tensor.storage for tensor in described.values()}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) != set(storages):
        raise InvalidInput("the list of its storages does not fit its tensors")
    numbers: dict[str, NDArray[Any]] = {}
    for key in keys:
        storage = storages[key]
        size = np.dtype(storage.dtype).itemsize * storage.length
        (count,) = struct.unpack("<q", stream.read(8))
        raw = stream.read(size) if count == storage.length else b""
        if count != storage.length or len(raw) != size:
            raise InvalidInput(f"storage {key} should hold {storage.length} numbers and does not")
        numbers[key] = np.frombuffer(raw, storage.dtype)
    weights: Weights = {}
    left = _MOST_SHARING * len(data)
    for name, tensor in described.items():
        weights[name] = _view(tensor, numbers[tensor.storage.key])
        left -= weights[name].nbytes
        if left < 0:
            raise InvalidInput(f"its tensors hold far more numbers than its {len(data)} bytes")
    return weights


def _view(tensor: _Tensor, numbers: NDArray[Any]) -> NDArray[Any]:
    """The tensor as an array of its own.

    Axes may lie in any order (weights that came from TensorFlow do), but they must fill their part of the storage
    without gaps or repetition: a stride of 0 would make any size out of one number.
    """
    shape, size = tensor.shape, math.prod(tensor.shape)
    if tensor.offset + size > len(numbers):
        raise InvalidInput(f"a tensor of {size} numbers in a storage of {len(numbers)}")
    order = sorted(range(len(shape)), key=lambda axis: (-tensor.strides[axis], shape[axis] == 1))
    expected = 1
    for axis in reversed(order):
        if size and shape[axis] > 1 and tensor.strides[axis] != expected:
            raise InvalidInput(f"a tensor of shape {shape} with strides {tensor.strides}")
        expected *= shape[axis]
    block = numbers[tensor.offset : tensor.offset + size].reshape([shape[axis] for axis in order])
    return np.ascontiguousarray(block.transpose([order.index(axis) for axis in range(len(shape))])).reshape(shape)


class _Machine:
    """The stack, marks and memo of one pickle that is being carried out."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def take(self, count: int) -> list[Any]:
        if count > len(self.stack) - (self.marks[-1] if self.marks else 0):
            raise InvalidInput("it takes more values than there are")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def fill(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(pairs) % 2:
            raise InvalidInput("entries for something that is no dictionary")
        if not all(type(key) is str for key in pairs[::2]):  # the hash of a tuple can take forever
            raise InvalidInput("it holds something else than named tensors")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))

    def extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise InvalidInput("elements for something that is no list")
        self.stack[-1].extend(values)

    def name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        if (module, name) not in _NAMES:
            raise InvalidInput(f"it names {module}.{name}, which is no part of a tensor")
        self.stack.append(_Name(module, name))

    def call(self) -> None:
        function, arguments = self.take(2)
        if function == ("collections", "OrderedDict") and arguments == ():
            self.stack.append({})
        elif function == ("torch._utils", "_rebuild_tensor_v2") and type(arguments) is tuple:
            self.stack.append(_tensor(*arguments))
        else:
            raise InvalidInput(f"a call of {shown(function)}")

    def refer(self) -> None:
        (reference,) = self.take(1)
        match reference:
            case ("storage", _Name("torch", kind), str(key), str(), int(count), None) if kind in _STORAGES:
                self.stack.append(_Storage(key, _STORAGES[kind], _whole(count)))
            case _:
                raise InvalidInput(f"a reference to something that is no storage, {shown(reference)}")

    def forget_state(self) -> None:
        # torch hangs version numbers on its dictionary as an attribute; nobody needs them.
        self.take(1)
        if type(self.stack[-1]) is not dict:
            raise InvalidInput("a state for something that is no dictionary")


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ACTIONS: dict[str, Callable[[_Machine], object]] = {
    "PROTO": lambda _: None,
    "MARK": lambda machine: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": lambda machine: machine.stack.append({}),
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine: machine.stack.append(tuple(machine.take(1))),
    "TUPLE2": lambda machine: machine.stack.append(tuple(machine.take(2))),
    "TUPLE3": lambda machine: machine.stack.append(tuple(machine.take(3))),
    "SETITEM": lambda machine: machine.fill(machine.take(2)),
    "SETITEMS": lambda machine: machine.fill(machine.since_mark()),
    "APPEND": lambda machine: machine.extend(machine.take(1)),
    "APPENDS": lambda machine: machine.extend(machine.since_mark()),
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.refer,
    "BUILD": _Machine.forget_state,
}


def _run(stream: io.BytesIO) -> Any:
    """Carry out the pickle that starts here; the stream stands behind it afterwards."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(stream):
        match opcode.name:
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                machine.stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                machine.memo[int(argument or 0)] = machine.stack[-1]
            case "BINGET" | "LONG_BINGET":
                machine.stack.append(machine.memo[int(argument or 0)])
            case "GLOBAL":
                machine.name(str(argument))
            case "STOP":
                (value,) = machine.stack
                return value
            case name if name in _CONSTANTS:
                machine.stack.append(_CONSTANTS[name])
            case name if name in _ACTIONS:
                _ACTIONS[name](machine)
            case name:
                raise InvalidInput(f"the instruction {name}, which no file of tensors needs")
    raise InvalidInput("it has no end")


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """`_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)`; the last two are of no use here."""
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise InvalidInput("a tensor that is not made of a storage and a shape")
    if len(shape) != len(strides) or len(shape) > _MOST_AXES:
        raise InvalidInput(f"a tensor of shape {shown(shape)} with strides {shown(strides)}")
    return _Tensor(storage, _whole(offset), tuple(map(_whole, shape)), tuple(map(_whole, strides)))


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise InvalidInput(f"a size of {shown(value)}")
    return value
