"""Pictures and small networks for tests: test_extract_*.py."""

import io
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

CHANNELS = 6
# The raw numbers of a torch file's head: magic, protocol, system.
HEAD = (
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq"
    b"\x01M\xe9\x03X\r\x00\x00\x00little_endianq\x02\x88u."
)


def noise(width=40, height=30, seed=0):
    """A picture of smooth noise: no two seeds look alike, and JPEG changes it little."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind="PNG", **options):
    """The bytes of a picture file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def fill_folder(folder: Path, count: int, suffix=".jpg"):
    """So many different pictures, in two folders."""
    (folder / "deeper").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        place = folder / "deeper" if number % 3 == 2 else folder
        noise(60 + 10 * (number % 4), 50, seed=number).save(place / f"{number:03d}{suffix}")


def tiny_network(path: Path, *, outputs=("features", "vector"), side=None, layout="nchw", batch="n", seed=5):
    """An ONNX file: one convolution of stride 32 to six channels, and the mean of its map."""
    rng = np.random.default_rng(seed)
    kernel = (rng.standard_normal((CHANNELS, 3, 32, 32)) / 32).astype(np.float32)
    bias = np.full(CHANNELS, 0.3, np.float32)
    height, width = (side, side) if side else ("height", "width")
    shape = [batch, 3, height, width] if layout == "nchw" else [batch, height, width, 3]
    nodes, source = [], "images"
    if layout == "nhwc":
        nodes.append(helper.make_node("Transpose", ["images"], ["turned"], perm=[0, 3, 1, 2]))
        source = "turned"
    nodes += [
        helper.make_node("Conv", [source, "kernel", "bias"], ["raw"], strides=[32, 32]),
        helper.make_node("Relu", ["raw"], ["map"]),
        helper.make_node("Transpose", ["map"], ["features"], perm=[0, 2, 3, 1] if layout == "nhwc" else [0, 1, 2, 3]),
        helper.make_node("GlobalAveragePool", ["map"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["vector"]),
        helper.make_node("Unsqueeze", ["vector", "one"], ["tokens"]),
    ]
    declared = {"features": [None] * 4, "vector": [None, CHANNELS], "tokens": [None] * 3}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, declared[name]) for name in outputs],
        [
            numpy_helper.from_array(kernel, "kernel"),
            numpy_helper.from_array(bias, "bias"),
            numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", 17)], ir_version=8), path)
    return path


def torch_file(tensors, *, keys=None, counts=None):
    """The bytes of a torch file of the old format with these float32 tensors, written by hand."""
    parts = [b"\x80\x02ccollections\nOrderedDict\n)R("]
    for number, (name, array) in enumerate(tensors.items()):
        strides = tuple(stride // 4 for stride in array.strides)
        parts += [_text(name), tensor(str(number), array.size, 0, array.shape, strides)]
    parts.append(b"u.")
    keys = [str(number) for number in range(len(tensors))] if keys is None else keys
    parts.append(b"\x80\x02](" + b"".join(map(_text, keys)) + b"e.")
    for number, array in enumerate(tensors.values()):
        flat = np.ndarray((array.size,), np.float32, array.base if array.base is not None else array)
        parts.append(struct.pack("<q", (counts or {}).get(number, array.size)) + flat.tobytes())
    return HEAD + b"".join(parts)


def tensor(key, count, offset, shape, strides, kind=b"torch\nFloatStorage"):
    """The pickle of one tensor."""
    storage = b"(" + _text("storage") + b"c" + kind + b"\n" + _text(key) + _text("cpu") + _int(count) + b"NtQ"
    sizes = b"(" + b"".join(map(_int, shape)) + b"t(" + b"".join(map(_int, strides)) + b"t"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + _int(offset)
        + sizes
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def _text(text):
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _int(value):
    return b"\x8a\x08" + struct.pack("<q", value)
