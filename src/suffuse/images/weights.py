"""Weights of a network from a torch file of the old format: tensors only, read without torch.

Such a file is a run of pickles, which describe tensors, and then the raw numbers. The pickles are read by
`suffuse.store.pickles`, with the two dozen instructions and the few names that a file of tensors needs.
"""

import io
import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput
from suffuse.store.pickles import Functions, StandIn, abbreviate, describe_damage, unpickle

Weights = dict[str, NDArray[Any]]

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_FLOATS = {"Float": "<f4", "Double": "<f8", "Half": "<f2"}
_INTEGERS = {"Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1"}
_STORAGES = {f"torch.{kind}Storage": dtype for kind, dtype in (_FLOATS | _INTEGERS).items()}
_INSTRUCTIONS = {
    "PROTO", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND",
    "APPENDS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BINPERSID", "BUILD",
}  # fmt: skip
_MOST_AXES = 8
# Tensors may share numbers; many that do, each a copy in another order, would make any size out of a small file.
_MOST_SHARING = 4


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


class _Tensors(dict[str, Any]):
    """`OrderedDict()`: named tensors. torch adds version numbers as a state, which nobody needs."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        if arguments:
            raise InvalidInput("a call of OrderedDict with values")
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Forget the version numbers."""


def parse_weights(data: bytes, name: str) -> Weights:
    """The tensors in these bytes; error messages call them `name`."""
    with describe_damage(name, "a torch file", "give a torch file of weights alone"):
        return _parse(data)


def _parse(data: bytes) -> Weights:
    stream = io.BytesIO(data)
    if _read(stream) != _MAGIC or _read(stream) != _PROTOCOL:
        raise InvalidInput("it is not a torch file of the old format")
    system = _read(stream)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise InvalidInput("its numbers are not little-endian")
    described, keys = _read(stream), _read(stream)
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


def _read(stream: io.BytesIO) -> Any:
    return unpickle(stream, _FUNCTIONS, _refer, _INSTRUCTIONS)


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


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """`_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)`; the last two are of no use here."""
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise InvalidInput("a tensor that is not made of a storage and a shape")
    if len(shape) != len(strides) or len(shape) > _MOST_AXES:
        raise InvalidInput(f"a tensor of shape {abbreviate(shape)} with strides {abbreviate(strides)}")
    return _Tensor(storage, _check_size(offset), tuple(map(_check_size, shape)), tuple(map(_check_size, strides)))


def _check_size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise InvalidInput(f"a size of {abbreviate(value)}")
    return value


def _refer(reference: Any) -> _Storage:
    """The storage behind ("storage", type, key, device, length, None)."""
    match reference:
        case ("storage", StandIn(name=kind), str(key), str(), int(count), None) if kind in _STORAGES:
            return _Storage(key, _STORAGES[kind], _check_size(count))
    raise InvalidInput(f"a reference to something that is no storage, {abbreviate(reference)}")


_FUNCTIONS: Functions = {
    "collections.OrderedDict": _Tensors,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    **dict.fromkeys(_STORAGES),
}
