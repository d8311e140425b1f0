"""Weights of networks: torch files, the graph that is made of them, and ONNX models."""

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.judge import file_of, kind_of, with_kind
from suffuse.images.efficientnet import build_graph
from suffuse.images.network import load_extractor
from suffuse.images.weights import parse_weights

_TORCH, _ONNX = range(2)


def seeds() -> dict[str, bytes]:
    """Tensors in a torch file, among them those of the first layers of EfficientNet, and a network of one layer."""
    rng = np.random.default_rng(0)
    plain = {"a": rng.normal(size=(2, 3)), "b": np.arange(3), "c": np.float32(1).reshape(())}
    first = {"_conv_stem.weight": (2, 3, 1, 1), **{f"_bn0.{name}": (2,) for name in _NORM}}
    second = {"_blocks.0._depthwise_conv.weight": (2, 1, 1, 1), **{f"_blocks.0._bn1.{name}": (2,) for name in _NORM}}
    layers = {name: np.ones(shape, np.float32) for name, shape in (first | second).items()}
    made = {
        "tensors": (_TORCH, _torch_file(plain)),
        "transposed": (_TORCH, _torch_file({"a": np.asfortranarray(plain["a"])})),
        "layers": (_TORCH, _torch_file(layers)),
        "map": (_ONNX, _onnx_model(["n", 3, "height", "width"])),
        "vector": (_ONNX, _onnx_model([1, 3, 32, 32], pooled=True)),
    }
    return {name: with_kind(*content) for name, content in made.items()}


_NORM = ("weight", "bias", "running_mean", "running_var")
_STORAGES = {"f4": "FloatStorage", "f8": "DoubleStorage", "i8": "LongStorage"}


class _Named:
    """A name that a pickle calls, without anything behind it."""

    def __init__(self, module: str, name: str, *arguments: Any) -> None:
        self.called = (module, name), arguments


class _Writer(pickle._Pickler):
    """Writes names as text, since torch is not there to be named, and storages as references."""

    write: Callable[[bytes], object]  # of the class above, which no stub describes

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Named):
            (module, name), arguments = obj.called
            self.write(f"c{module}\n{name}\n".encode())
            if arguments:
                self.save(arguments)
                self.write(pickle.REDUCE)
            return
        super().save(obj, save_persistent_id)  # type: ignore[misc]

    def persistent_id(self, obj: Any) -> Any:
        return obj[1:] if isinstance(obj, tuple) and obj[:1] == (_Writer,) else None


def _torch_file(tensors: dict[str, Any]) -> bytes:
    """What torch.save wrote before version 1.6."""
    stream = io.BytesIO()
    sizes = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    described: OrderedDict[str, Any] = OrderedDict()
    raw: dict[str, Any] = {}
    for number, (name, array) in enumerate(tensors.items()):
        flat = np.asarray(array).ravel(order="K")
        raw[str(number)] = flat
        storage = (
            _Writer,
            "storage",
            _Named("torch", _STORAGES[flat.dtype.str[1:]]),
            str(number),
            "cpu",
            flat.size,
            None,
        )
        strides = tuple(stride // flat.itemsize for stride in np.asarray(array).strides)
        described[name] = _Named(
            "torch._utils", "_rebuild_tensor_v2", storage, 0, np.shape(array), strides, False, OrderedDict()
        )
    for part in (0x1950A86A20F9469CFC6C, 1001, sizes, described, list(raw)):
        _Writer(stream, 2).dump(part)
    for flat in raw.values():
        stream.write(struct.pack("<q", flat.size) + flat.tobytes())
    return stream.getvalue()


def _onnx_model(shape: list[int | str], *, pooled: bool = False) -> bytes:
    """A convolution of one pixel from three colours to two."""
    nodes = [helper.make_node("Conv", ["images", "kernel"], ["map"])]
    if pooled:
        nodes += [
            helper.make_node("GlobalAveragePool", ["map"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["out"]),
        ]
    output = helper.make_tensor_value_info(
        nodes[-1].output[0], TensorProto.FLOAT, ["n", 2] if pooled else ["n", 2, "rows", "columns"]
    )
    kernel = numpy_helper.from_array(np.ones((2, 3, 1, 1), np.float32), "kernel")
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "tiny", inputs, [output], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def run(data: bytes) -> None:
    """Read the tensors and make a graph of them, or load the network and let it see a picture."""
    kind, content = kind_of(data, 2)
    if kind == _TORCH:
        build_graph(parse_weights(content, "x"))
        return
    with file_of(content, "network.onnx") as path:
        load_extractor(path, 32, threads=1)
