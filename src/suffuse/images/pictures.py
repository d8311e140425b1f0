"""Decoding by Pillow: pictures of all kinds become upright RGB, or an error with the reason; resizing and cropping."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput, InvalidParams, first_line, name_extra

if TYPE_CHECKING:
    from PIL.Image import Image

# What is read, by the name Pillow has for it.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
# A picture of this many pixels takes 300 MB of memory; a small file can claim any number.
_MOST_PIXELS = 100_000_000
# Networks halve the sides of a picture five times; nothing would be left of a shorter side.
LEAST_SIDE = 32

_ORIENTATION, _MAKE, _MODEL = 0x0112, 0x010F, 0x0110
_TURNS = {2: (0,), 3: (3,), 4: (1,), 5: (5,), 6: (4,), 7: (6,), 8: (2,)}  # EXIF orientation -> Transpose


class Picture(NamedTuple):
    """A decoded picture: upright, RGB, 8 bits; `width` and `height` are those of the file, upright."""

    image: "Image"
    width: int
    height: int
    camera: str | None


def read_picture(source: str | Path | bytes, *, wanted_side: int | None = None) -> Picture:
    """Decode a file, or the bytes of one; what cannot be read is an `InvalidInput` with the reason.

    wanted_side  the longest side that is needed later: a large JPEG is then decoded at a half, quarter or eighth, as
                 long as twice that side is left; at 12 megapixels that is four times faster
    """
    with name_extra("Pillow", "images"):
        from PIL import Image
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        if not data:
            raise InvalidInput("the file is empty")
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                raise InvalidInput(f"{width} x {height} pixels, more than {_MOST_PIXELS:,}")
            if wanted_side is not None and image.format in ("JPEG", "MPO"):  # MPO: several pictures in one
                scale = 2 * wanted_side / max(width, height)
                image.draft(None, (max(1, round(width * scale)), max(1, round(height * scale))))
            image.load()
            if image.format == "TIFF":
                width, height = image.size  # Pillow turns these itself, and then takes the orientation away
            orientation, camera = _read_exif(image)
            upright = to_rgb(image)
            for turn in _TURNS.get(orientation, ()):
                upright = upright.transpose(Image.Transpose(turn))
            if orientation in (5, 6, 7, 8):
                width, height = height, width
            return Picture(upright, width, height, camera)
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(_describe_error(error)) from error
    except Image.DecompressionBombError as error:
        raise InvalidInput(f"more than {_MOST_PIXELS:,} pixels") from error
    except MemoryError as error:
        raise InvalidInput("not enough memory to decode it") from error
    except Exception as error:
        # Decoders of damaged data raise most kinds of Python: struct.error, SyntaxError, ValueError, ...
        raise InvalidInput(f"damaged: {first_line(error)}") from error


@contextlib.contextmanager
def silence_pillow() -> Iterator[None]:
    """Keep Pillow's warnings (odd EXIF, large pictures) off the terminal; for the main thread, around a whole run."""
    from PIL import Image

    Image.init()  # loads its decoders: better before there are threads
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def resize(image: "Image", size: int) -> "Image":
    """The picture with its longest side of `size` pixels, up or down; no side is shorter than 32.

    Bicubic, as Pillow does by itself: clearly better than bilinear, and faster than Lanczos (docs/lab/images.md).
    """
    scale = size / max(image.size)
    width, height = (max(LEAST_SIDE, round(side * scale)) for side in image.size)
    return image if image.size == (width, height) else image.resize((width, height))


def crop(image: "Image", box: tuple[float, float, float, float]) -> "Image":
    """The part of the picture inside a box (left, top, right, bottom), each a fraction from 0 to 1."""
    left, top, right, bottom = box
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise InvalidParams(f"box must be left < right and top < bottom, from 0 to 1, got {tuple(box)}")
    width, height = image.size
    x, y = min(int(left * width), width - 1), min(int(top * height), height - 1)
    return image.crop((x, y, max(x + 1, round(right * width)), max(y + 1, round(bottom * height))))


def _read_exif(image: "Image") -> tuple[int, str | None]:
    """The EXIF orientation (1 is upright), and the camera; damaged EXIF is as none."""
    try:
        exif = image.getexif()
        orientation = exif.get(_ORIENTATION, 1)
        named = [" ".join(str(exif.get(tag, "")).replace("\0", " ").split())[:60] for tag in (_MAKE, _MODEL)]
    except Exception:  # every kind of damage has an exception of its own
        return 1, None
    make, model = ("".join(letter for letter in name if letter.isprintable()) for name in named)
    # Many models begin with the name of their maker.
    camera = model if make and model.lower().startswith(make.split()[0].lower()) else f"{make} {model}".strip()
    return orientation if isinstance(orientation, int) else 1, camera or None


def to_rgb(image: "Image") -> "Image":
    """The first frame as RGB; what is transparent shows white, deep pixels keep their upper 8 bits."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_reduce_depth(np.asarray(image), image.mode), "L").convert("RGB")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        layered = image.convert("RGBA")
        white = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(white, layered).convert("RGB")
    return image.convert("RGB")


def _reduce_depth(deep: NDArray[Any], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 or 32 bits, or floats, as 8 bits: by their usual range, else by the range they have."""
    if mode.startswith("I;16"):
        return (deep >> 8).astype(np.uint8)
    values = np.nan_to_num(deep.astype(np.float64), posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    usual = [top for top in ((1, 0xFF, 0xFFFF) if mode == "F" else (0xFF, 0xFFFF)) if high <= top]
    if low >= 0 and usual:
        low, high = 0.0, usual[0]
    return ((values - low) * (255 / (high - low or 1))).astype(np.uint8)


def _describe_error(error: OSError) -> str:
    """Why a file could not be opened or decoded, in few words."""
    if error.strerror:
        return error.strerror.lower()
    words = first_line(error)
    if "cannot identify image file" in words:
        return "not a picture of a kind that is read (JPEG, PNG, WebP, GIF, TIFF, BMP), or damaged"
    return words if "truncated" in words else f"damaged: {words}"
