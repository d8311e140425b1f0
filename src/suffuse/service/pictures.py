"""Picture files: those under the image root and those that are uploaded; nothing outside the root is ever opened."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from suffuse.service.kept import Kept
from suffuse.service.limits import Limits
from suffuse.service.problems import Problem

# Formats that are decoded: Pillow knows more, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".bmp": "image/bmp",
}
_QUALITY = 85


class Thumb(NamedTuple):
    """A small JPEG, and what changes when it does."""

    data: bytes
    etag: str


class Pictures:
    """The files of an index's items, by their names."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self._limits = root.resolve(), limits
        self._thumbs = Kept[tuple[str, int], Thumb](limits.thumb_bytes, lambda thumb: len(thumb.data))

    def path(self, name: str) -> Path:
        """The file of an item; symbolic links that lead out of the root count as missing."""
        missing = Problem(404, "the file of this picture is not there", "was the folder moved? give it by --images")
        try:
            path = (self.root / name).resolve(strict=True)
            inside = path.is_relative_to(self.root) and path.is_file()
        except (OSError, ValueError, RuntimeError):  # no such file, a null character, a loop of links
            raise missing from None
        if not inside:
            raise missing
        if path.suffix.lower() not in MEDIA_TYPES:
            raise Problem(415, "the file of this item is no picture that a browser shows")
        return path

    def thumb(self, name: str, size: int) -> Thumb:
        """A JPEG that fits into a square of `size`, turned upright."""
        path = self.path(name)
        try:
            changed = path.stat()
            etag = f'"{changed.st_mtime_ns:x}-{changed.st_size:x}-{size}"'
            kept = self._thumbs.get((name, size))
            if kept is not None and kept.etag == etag:
                return kept
            data = path.read_bytes()
        except OSError:
            raise Problem(404, "the file of this picture cannot be read") from None
        out = io.BytesIO()
        decoded(data, self._limits.pixels, largest=size).save(out, "JPEG", quality=_QUALITY)
        made = Thumb(out.getvalue(), etag)
        self._thumbs.put((name, size), made)
        return made

    def read(self, name: str) -> bytes:
        """The whole file."""
        try:
            return self.path(name).read_bytes()
        except OSError:
            raise Problem(404, "the file of this picture cannot be read") from None


def decoded(data: bytes, pixels: int, *, largest: int | None = None) -> Image.Image:
    """A picture in RGB, turned upright; its size is checked before its pixels are decoded.

    With `largest` it is made to fit into such a square.
    """
    too_many = Problem(413, f"the picture has more than {pixels:,} pixels", "make it smaller first")
    unreadable = Problem(415, "this is no picture that can be read", f"formats: {', '.join(FORMATS)}")
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if picture.width * picture.height > pixels:
            raise too_many
        if largest is not None:
            picture.draft("RGB", (2 * largest, 2 * largest))  # a JPEG is decoded small, which is much faster
        rgb = _rgb(ImageOps.exif_transpose(picture))
        if largest is not None:
            rgb.thumbnail((largest, largest))
        return rgb
    except Problem:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError):
        raise too_many from None
    except Exception:  # truncated or forged: what Pillow's readers raise is of many kinds
        raise unreadable from None


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith(("I", "F")):
        # 16 bits of grey, which `convert` would cut to white.
        values = np.asarray(picture, np.float32)
        low, high = float(values.min()), float(values.max())
        picture = Image.fromarray(((values - low) * (255 / max(high - low, 1e-6))).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        over = picture.convert("RGBA")
        white = Image.new("RGBA", over.size, "white")
        return Image.alpha_composite(white, over).convert("RGB")
    return picture.convert("RGB")


def part(picture: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
    """The part of a picture that a box of fractions encloses."""
    x0, y0, x1, y1 = box
    width, height = picture.size
    left, upper = int(x0 * width), int(y0 * height)
    return picture.crop((left, upper, max(left + 1, round(x1 * width)), max(upper + 1, round(y1 * height))))
