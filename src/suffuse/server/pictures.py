"""Values that are kept as long as there is room, those that were used last."""

import contextlib
import errno
import io
import logging
import os
import re
import secrets
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps

from suffuse.server.models import Limits
from suffuse.server.problems import Problem
from suffuse.store.files import sync_directory, write_bytes

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """The values that were used last, as many as fit."""

    def __init__(self, room: int, size: Callable[[V], int]) -> None:
        self._room, self._size, self._used = room, size, 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which is now the last used one; None if it is not there, or no more."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of what was used longest ago."""
        with self._lock:
            if key in self._values:
                self._used -= self._size(self._values.pop(key))
            self._values[key] = value
            self._used += self._size(value)
            while self._used > self._room:
                self._used -= self._size(self._values.popitem(last=False)[1])


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


logger = logging.getLogger(__name__)

# The folder below the image folder: what the service puts there is never mixed with what was there before.
FOLDER = "added"
# A name has at most 255 bytes on most systems, and gets an ending and a number.
_LONGEST = 150
# Numbers that are tried before a random one.
_NUMBERS = 20
# By what the file is, not by what it is called: it is shown by this.
_ENDINGS = {"PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "TIFF": ".tif", "BMP": ".bmp"}


class Saved(NamedTuple):
    """The name of a picture below the image folder, and its file; None if it could not be written there."""

    name: str
    file: Path | None


def save(root: Path | None, data: bytes, called: str) -> Saved:
    """Put a picture that can be decoded into the folder under a name that nothing there has; never over a file.

    Where that cannot be written, only the name is chosen, so that it leads to no other picture.
    """
    ending = _ENDINGS.get(Image.open(io.BytesIO(data), formats=FORMATS).format or "", ".jpg")
    names = _names(_stem(called), ending)
    if root is None:
        return Saved(f"{FOLDER}/{next(names)}", None)
    folder = root / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        if not folder.resolve().is_relative_to(root.resolve()):
            raise PermissionError(errno.EACCES, "a link leads out of the image folder", str(folder))
        return _written(folder, names, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Problem(507, "the disk with the pictures is full", "make room, then try again") from None
        logger.warning("an uploaded picture is added, but its file is not kept: %s", error)
        free = (name for name in _names(_stem(called), ending) if not os.path.lexists(folder / name))
        return Saved(f"{FOLDER}/{next(free)}", None)


def _written(folder: Path, names: Iterator[str], data: bytes) -> Saved:
    for name in names:
        file = folder / name
        try:
            # Nobody else can have the name from here on; the file takes its place when it is whole.
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        try:
            write_bytes(file, [data])
            sync_directory(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                file.unlink()
            raise
        return Saved(f"{FOLDER}/{name}", file)
    raise AssertionError("names never end")


def _names(stem: str, ending: str) -> Iterator[str]:
    yield stem + ending
    for number in range(2, _NUMBERS):
        yield f"{stem}-{number}{ending}"
    while True:
        yield f"{stem}-{secrets.token_hex(4)}{ending}"


def _stem(called: str) -> str:
    """A file's name without its folders and its ending, of letters, digits, blanks, dots, dashes and lines only."""
    last = re.split(r"[\\/]", unicodedata.normalize("NFC", called))[-1]
    stem = last.rpartition(".")[0] or last
    plain = "".join(letter if letter.isalnum() or letter in " .-_" else "_" for letter in stem)
    short = plain.encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore")
    return short.strip(" ._-") or "picture"
