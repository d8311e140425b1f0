"""Uploaded pictures that are added to an index are put into its image folder, beside what is there."""

import contextlib
import errno
import io
import logging
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from suffuse.arrays import sync_directory, write_bytes
from suffuse.service.pictures import FORMATS
from suffuse.service.problems import Problem

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
