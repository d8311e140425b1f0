"""Files of pictures: found below the image folder, decoded, made into thumbnails, and saved there when uploaded."""

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

from suffuse.images.pictures import FORMATS, to_rgb
from suffuse.server.models import Limits
from suffuse.server.problems import Problem
from suffuse.store.files import sync_directory, write_bytes

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

# By the ending of a file. Pillow knows more formats, some of which start other programs.
MEDIA_TYPES = {f".{format.lower()}": f"image/{format.lower()}" for format in FORMATS}
MEDIA_TYPES |= {".jpg": "image/jpeg", ".tif": "image/tiff"}
# The endings of uploads that are saved; MPO is a JPEG with several pictures.
_ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}
_QUALITY = 85
# Uploads are saved in this folder of the image folder, apart from all files that were there before.
FOLDER = "added"
# A name has at most 255 bytes on most systems, and gets an ending and a number.
_LONGEST = 150
# How many numbers are tried before a random one.
_NUMBERS = 20


class LruCache(Generic[K, V]):
    """The values that were used last, as many as fit; safe to use from many threads."""

    def __init__(self, room: int, size: Callable[[V], int]) -> None:
        self._room, self._size, self._used = room, size, 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None if there is none, or none any more."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep a value; those that were used longest ago make room for it."""
        with self._lock:
            if key in self._values:
                self._used -= self._size(self._values.pop(key))
            self._values[key] = value
            self._used += self._size(value)
            while self._used > self._room:
                self._used -= self._size(self._values.popitem(last=False)[1])


class Thumb(NamedTuple):
    """A small JPEG, and a tag that changes with its file."""

    data: bytes
    etag: str


class SavedFile(NamedTuple):
    """The name of a picture below the image folder, and its file; None if it could not be written there."""

    name: str
    file: Path | None


class Pictures:
    """The files of an index's items, by their names."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self._limits = root.resolve(), limits
        self._thumbs = LruCache[tuple[str, int], Thumb](limits.thumb_bytes, lambda thumb: len(thumb.data))

    def find(self, name: str) -> Path:
        """The file of an item; symbolic links that lead out of the root count as missing."""
        try:
            path = (self.root / name).resolve(strict=True)
            if not (path.is_relative_to(self.root) and path.is_file()):
                raise FileNotFoundError
        except (OSError, ValueError, RuntimeError):  # no such file, a null character, a loop of links
            hint = "was the folder moved? start the service with the folder of the pictures"
            raise Problem(404, "the file of this picture is not there", hint) from None
        if path.suffix.lower() not in MEDIA_TYPES:
            raise Problem(415, "the file of this item is no picture that a browser shows")
        return path

    def make_thumb(self, name: str, size: int) -> Thumb:
        """A JPEG that fits into a square of `size`, turned upright."""
        path = self.find(name)
        with _hide_reason():
            facts = path.stat()
        etag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}-{size}"'
        thumb = self._thumbs.get((name, size))
        if thumb is None or thumb.etag != etag:
            out = io.BytesIO()
            decode_picture(self.read(name), self._limits.pixels, largest=size).save(out, "JPEG", quality=_QUALITY)
            thumb = Thumb(out.getvalue(), etag)
            self._thumbs.put((name, size), thumb)
        return thumb

    def read(self, name: str) -> bytes:
        """The whole file."""
        with _hide_reason():
            return self.find(name).read_bytes()


@contextlib.contextmanager
def _hide_reason() -> Iterator[None]:
    """Why a file cannot be read is no business of a client: it names paths."""
    try:
        yield
    except OSError:
        raise Problem(404, "the file of this picture cannot be read") from None


def decode_picture(data: bytes, pixels: int, *, largest: int | None = None) -> Image.Image:
    """A picture in RGB, upright, made to fit into a square of `largest`; its size is checked before it is decoded."""
    too_many = Problem(413, f"the picture has more than {pixels:,} pixels", "make it smaller first")
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if picture.width * picture.height > pixels:
            raise too_many
        if largest is not None:
            picture.draft("RGB", (2 * largest, 2 * largest))  # a JPEG is decoded small, which is much faster
        rgb = to_rgb(_reduce_depth(ImageOps.exif_transpose(picture)))
        if largest is not None:
            rgb.thumbnail((largest, largest))
        return rgb
    except Problem:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError):
        raise too_many from None
    except Exception:  # Pillow's readers raise many kinds of errors for truncated and forged files
        raise Problem(415, "this is no picture that can be read", f"formats: {', '.join(FORMATS)}") from None


def _reduce_depth(picture: Image.Image) -> Image.Image:
    """Deep grey as 8 bits from its darkest to its brightest value; `convert` would cut it to white."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.asarray(picture, np.float32)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / max(high - low, 1e-6))).astype(np.uint8))


def save_upload(root: Path | None, data: bytes, called: str) -> SavedFile:
    """Write a picture that can be decoded under a name that nothing there has; if that fails, only choose the name."""
    # The ending is that of the content, not of the name: browsers get the media type that belongs to it.
    format = Image.open(io.BytesIO(data), formats=FORMATS).format or "JPEG"
    stem, ending = clean_stem(called), _ENDINGS.get(format, f".{format.lower()}")
    names = _propose_names(stem, ending)
    if root is None:
        return SavedFile(f"{FOLDER}/{next(names)}", None)
    folder = root / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        if not folder.resolve().is_relative_to(root.resolve()):
            raise PermissionError(errno.EACCES, "a link leads out of the image folder", str(folder))
        return _write_new(folder, names, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Problem(507, "the disk with the pictures is full", "make room, then try again") from None
        logger.warning("an uploaded picture is added, but its file is not kept: %s", error)
        free = (name for name in _propose_names(stem, ending) if not os.path.lexists(folder / name))
        return SavedFile(f"{FOLDER}/{next(free)}", None)


def _write_new(folder: Path, names: Iterator[str], data: bytes) -> SavedFile:
    while True:
        file = folder / next(names)
        try:
            file.touch(exist_ok=False)  # an empty file reserves the name; the whole one replaces it
        except FileExistsError:
            continue
        try:
            write_bytes(file, [data])
            sync_directory(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                file.unlink()
            raise
        return SavedFile(f"{FOLDER}/{file.name}", file)


def _propose_names(stem: str, ending: str) -> Iterator[str]:
    yield stem + ending
    for number in range(2, _NUMBERS):
        yield f"{stem}-{number}{ending}"
    while True:
        yield f"{stem}-{secrets.token_hex(4)}{ending}"


def clean_stem(called: str) -> str:
    """The name of a file without folders and ending: letters, digits, spaces, dots, dashes and underscores only."""
    last = re.split(r"[\\/]", unicodedata.normalize("NFC", called))[-1]
    stem = last.rpartition(".")[0] or last
    plain = "".join(letter if letter.isalnum() or letter in " .-_" else "_" for letter in stem)
    short = plain.encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore")
    return short.strip(" ._-") or "picture"
