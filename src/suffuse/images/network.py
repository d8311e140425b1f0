"""Networks in onnxruntime: a picture in, its vector or the vectors of its regions out."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import cores
from suffuse.errors import InvalidInput, InvalidParams, first_line, name_extra
from suffuse.images import efficientnet
from suffuse.images.pictures import LEAST_SIDE, Picture, crop, read_picture, resize
from suffuse.images.regions import normalize, pool_gem, pool_regions, pool_rmac

if TYPE_CHECKING:
    from PIL.Image import Image

Layout = Literal["nchw", "nhwc"]
Pooling = Literal["rmac", "gem"]
Box = tuple[float, float, float, float]
# A picture as an extractor takes it: a file, the bytes of a file, or a decoded picture.
AnyPicture: TypeAlias = "str | Path | bytes | Picture | Image"

DEFAULT_SIZE = 512
_LARGEST_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is done with a picture before and after the network.

    size     longest side in pixels; networks of a fixed input size take that instead, and the middle of the picture
    mean     subtracted from each colour, in units of 0..1
    std      each colour is divided by it
    layout   of the network's input: "nchw" (colour first, as torch has it) or "nhwc"
    output   name of the output that is used; else the first feature map, else the first vector
    pooling  of a feature map to one vector: "rmac" or "gem"
    power    of "gem"
    """

    size: int = DEFAULT_SIZE
    mean: tuple[float, ...] = (0.5,) * 3
    std: tuple[float, ...] = (0.5,) * 3
    layout: Layout = "nchw"
    output: str | None = None
    pooling: Pooling = "rmac"
    power: float = 3.0

    def __post_init__(self) -> None:
        if type(self.size) is not int or not LEAST_SIDE <= self.size <= _LARGEST_SIZE:
            raise InvalidParams(f"size must be a whole number from {LEAST_SIDE} to {_LARGEST_SIZE}, got {self.size!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
                raise InvalidParams(f"{name} must be three numbers, one per colour, got {values!r}")
        for name, value, known in (("layout", self.layout, Layout), ("pooling", self.pooling, Pooling)):
            if value not in get_args(known):
                raise InvalidParams(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
        if not 0 < self.power <= 100:
            raise InvalidParams(f"power must be above 0 and at most 100, got {self.power!r}")


class Extractor:
    """A network and how pictures are prepared for it; safe to use from several threads."""

    def __init__(self, name: str, model: bytes, sha256: str, preparation: Preparation, threads: int | None) -> None:
        self.name, self.sha256, self.preparation, self.size = name, sha256, preparation, preparation.size
        # (byte / 255 - mean) / std = byte * factor - offset
        mean, std = np.array(preparation.mean), np.array(preparation.std)
        self._factor, self._offset = (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)
        self._session = _open_session(name, model, threads)
        try:
            self._check_input()
            names = [output.name for output in self._session.get_outputs()]
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{name} has names that are no text: {error}; export it again") from error
        self._choose_output(names)

    def describe(self) -> dict[str, Any]:
        """All that is needed to load the same extractor later (`extractor_from`), as plain JSON."""
        prepared = asdict(self.preparation) | {"output": self.output}
        prepared |= {name: list(prepared[name]) for name in ("mean", "std")}
        return {"model": self.name, "sha256": self.sha256, **prepared, "dimensions": self.dimensions}

    def extract(self, picture: AnyPicture, box: Box | None = None) -> NDArray[np.float32]:
        """The vector of a picture, or of the part of it inside a box of fractions: (d,), of unit length."""
        return self.pool(self.run(self.prepare(picture, box)[None])[0])

    def extract_regions(self, picture: AnyPicture, box: Box | None = None) -> NDArray[np.float32]:
        """The vectors of the regions of a picture, or of a part of it: (r, d), each of unit length."""
        return self.pool_regions(self.run(self.prepare(picture, box)[None])[0])

    def prepare(self, picture: AnyPicture, box: Box | None = None) -> NDArray[np.float32]:
        """The pixels of one picture as the network takes them, without the axis of the batch."""
        if isinstance(picture, str | Path | bytes):
            # A part needs more pixels than the whole.
            picture = read_picture(picture, wanted_side=self.size if box is None else None)
        from PIL import ImageOps

        image: Image = picture.image if isinstance(picture, Picture) else picture
        image = image if image.mode == "RGB" else image.convert("RGB")
        if box is not None:
            image = crop(image, box)
        image = resize(image, self.size) if self._fixed is None else ImageOps.fit(image, self._fixed)
        pixels = np.asarray(image, np.float32) * self._factor - self._offset
        if self.preparation.layout == "nchw":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels, self._dtype)

    def run(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """The network's output for a batch: feature maps (n, c, h, w), or vectors (n, d)."""
        try:
            result = np.asarray(self._session.run([self.output], {self._input: pixels})[0], np.float32)
        except Exception as error:  # onnxruntime has a dozen kinds, and they share no class
            failed = f"the network {self.name} failed on an input of shape {pixels.shape}: {first_line(error)}"
            raise InvalidInput(f"{failed}; export it for pictures of any size, or choose another size") from error
        return result.transpose(0, 3, 1, 2) if result.ndim == 4 and self.preparation.layout == "nhwc" else result

    def pool(self, result: NDArray[np.float32]) -> NDArray[np.float32]:
        """One vector of unit length from the network's output for one picture."""
        if result.ndim == 1:
            return normalize(result)
        return pool_rmac(result) if self.preparation.pooling == "rmac" else pool_gem(result, self.preparation.power)

    def pool_regions(self, result: NDArray[np.float32]) -> NDArray[np.float32]:
        """One vector per region from the feature map of one picture; regions without any activation have none."""
        if not self.has_map:
            raise InvalidParams(f"{self.name} gives one vector per picture; regions need a network with a feature map")
        rows = pool_regions(result)
        return rows[rows.any(axis=1)]

    def _check_input(self) -> None:
        inputs, kinds = self._session.get_inputs(), {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in kinds:
            raise InvalidInput(f"{self.name} must have one input of pictures (n, 3, height, width) of floats")
        self._input, shape = inputs[0].name, inputs[0].shape
        colours, height, width = shape[1:] if self.preparation.layout == "nchw" else (shape[3], shape[1], shape[2])
        if isinstance(colours, int) and colours != 3:
            raise InvalidInput(f"{self.name} takes {colours} colours in layout {self.preparation.layout}, expected 3")
        self._fixed = (width, height) if isinstance(width, int) and isinstance(height, int) else None
        if self._fixed is not None and not all(1 <= side <= _LARGEST_SIZE for side in self._fixed):
            found = f"{self.name} takes pictures of {width} x {height} pixels"
            raise InvalidInput(f"{found}; export it for sides up to {_LARGEST_SIZE}")
        self._dtype = kinds[inputs[0].type]

    def _choose_output(self, names: list[str]) -> None:
        """Choose the output by running the network once: its own description often leaves shapes open."""
        wanted = self.preparation.output
        if wanted is not None and wanted not in names:
            raise InvalidParams(f"{self.name} has no output {wanted!r}; it has {', '.join(names)}")
        width, height = self._fixed or (self.size, self.size)
        side = (3, height, width) if self.preparation.layout == "nchw" else (height, width, 3)
        found: dict[str, NDArray[np.float32]] = {}
        for name in names if wanted is None else [wanted]:
            self.output = name
            found[name] = self.run(np.zeros((1, *side), self._dtype))
        usable = [name for rank in (4, 2) for name in found if found[name].ndim == rank]
        if not usable:
            shapes = ", ".join(f"{name} {result.shape}" for name, result in found.items())
            raise InvalidInput(f"{self.name} has no feature map (n, c, h, w) and no vector (n, d) among {shapes}")
        self.output = usable[0]
        self.has_map = found[self.output].ndim == 4
        self.dimensions = int(found[self.output].shape[1])


def load_extractor(
    model: str | Path = efficientnet.NAME, size: int = DEFAULT_SIZE, *, threads: int | None = None, **options: Any
) -> Extractor:
    """An extractor by the name of a network, or from an .onnx file; options are those of `Preparation`.

    threads  that the network may use; all cores if not given
    """
    if threads is not None and threads < 1:
        raise InvalidParams(f"threads must be a whole number of at least 1, got {threads!r}")
    if str(model) == efficientnet.NAME:
        trained = {"mean": (efficientnet.MEAN,) * 3, "std": (efficientnet.STD,) * 3}
        preparation = Preparation(size=size, **(trained | options))
        return Extractor(efficientnet.NAME, *efficientnet.load_default_model(), preparation, threads)
    preparation, file = Preparation(size=size, **options), Path(model)
    if not file.is_file():
        raise InvalidInput(f"there is no network {str(model)!r}; give {efficientnet.NAME}, or an .onnx file")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}; give another .onnx file") from error
    return Extractor(str(file.absolute()), content, hashlib.sha256(content).hexdigest(), preparation, threads)


def extractor_from(description: Mapping[str, Any], *, threads: int | None = None) -> Extractor:
    """The extractor that described itself so (`Extractor.describe`); another network of that name is refused."""
    try:
        options = {name: description[name] for name in ("layout", "output", "pooling", "power")}
        options |= {name: tuple(map(float, description[name])) for name in ("mean", "std")}
        model, size, expected = description["model"], description["size"], description["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"that describes no extractor: {error!r} is missing or damaged") from error
    if not isinstance(model, str):
        raise InvalidInput(f"that describes no extractor: the model is {model!r}")
    extractor = load_extractor(model, size, threads=threads, **options)
    if extractor.sha256 != expected:
        raise InvalidInput(f"the network {model} is not the one that the features were made with; bring that one back")
    return extractor


def _open_session(name: str, model: bytes, threads: int | None) -> Any:
    with name_extra("onnxruntime", "images"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or cores()
    options.log_severity_level = 3  # errors only: its warnings are about the graph, not about what a user did
    # Threads that wait by spinning take the cores from those that decode pictures.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen kinds, and they share no class
        raise InvalidInput(f"{name} cannot be loaded as an ONNX model: {first_line(error)}; export it again") from error
