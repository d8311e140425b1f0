"""Public data sets by name: their addresses, and downloads that resume and arrive whole or not at all."""

import http.client
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from suffuse.errors import InvalidInput

Progress = Callable[[str, int, int | None], None]  # file name, bytes that are here, bytes in all if known

_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 60.0  # without a single byte


class RemoteFile(NamedTuple):
    """One file of a data set and where its authors published it."""

    name: str
    url: str
    size: int | None = None  # in bytes, where it is known


class Known(NamedTuple):
    """A public data set."""

    title: str
    files: tuple[RemoteFile, ...]


# Iscen et al. published ftp://ftp.irisa.fr/local/texmex/corpus/diffusion/data; the server shows its tree by https too.
_ISCEN = "https://ftp.irisa.fr/local/texmex/corpus/diffusion/data"
_CLASSIC = "http://cmp.felk.cvut.cz/cnnimageretrieval/data/test"  # Radenovic et al., cnnimageretrieval
_REVISITED = "http://cmp.felk.cvut.cz/revisitop/data"  # Radenovic et al., revisitop
_PHOTOGRAPHS = "https://www.robots.ox.ac.uk/~vgg/data"  # Philbin et al.; -v1 has its faces blurred


def _at(folder: str, *names: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, f"{folder}/{name}") for name in names)


def _iscen(gallery: str, truth: str, network: str) -> Known:
    # The larger galleries begin with the smaller one's images, so that one truth serves both.
    files = _at(_ISCEN, f"{gallery}_{network}.mat") + _at(f"{_CLASSIC}/{truth}", f"gnd_{truth}.pkl")
    return Known(f"{gallery}, {network} features, global and regional (Iscen et al. 2017)", files)


def _revisited(gallery: str) -> Known:
    files = _at(f"{_REVISITED}/features", f"{gallery}_resnet_rsfm120k_gem.mat")
    truth = _at(f"{_REVISITED}/datasets/{gallery}", f"gnd_{gallery}.pkl")
    return Known(f"{gallery}, revisited protocol, ResNet GeM features (Radenovic et al. 2018)", files + truth)


_GALLERIES = {"oxford5k": "oxford5k", "oxford105k": "oxford5k", "paris6k": "paris6k", "paris106k": "paris6k"}

KNOWN: dict[str, Known] = {
    **{f"{g}-{net}": _iscen(g, truth, net) for g, truth in _GALLERIES.items() for net in ("resnet", "siamac")},
    **{f"{gallery}-gem": _revisited(gallery) for gallery in ("roxford5k", "rparis6k")},
    "oxford5k-photographs": Known(
        "the photographs of Oxford5k, faces blurred", _at(f"{_PHOTOGRAPHS}/oxbuildings", "oxbuild_images-v1.tgz")
    ),
    "paris6k-photographs": Known(
        "the photographs of Paris6k, faces blurred",
        _at(f"{_PHOTOGRAPHS}/parisbuildings", "paris_1-v1.tgz", "paris_2-v1.tgz"),
    ),
}


def fetch(name: str, folder: str | Path, base: str | None = None, progress: Progress | None = None) -> list[Path]:
    """Download the files of a known data set that are not in `folder` yet; where they are then.

    base  an address under which all the files lie, in place of those of the authors: a mirror
    """
    if name not in KNOWN:
        raise InvalidInput(f"there is no known data set {name!r}; known are {', '.join(KNOWN)}")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{target} cannot be made a folder: {error.strerror}; choose another") from error
    return [
        download(
            file.url if base is None else f"{base.rstrip('/')}/{file.name}", target / file.name, file.size, progress
        )
        for file in KNOWN[name].files
    ]


def download(url: str, path: Path, size: int | None = None, progress: Progress | None = None) -> Path:
    """Download one file by http or https; one that was cut short is kept beside `path` and continued.

    size  how many bytes it must have, where that is known; what the server says is checked in any case
    """
    if not url.lower().startswith(("http://", "https://")):
        raise InvalidInput(f"{url} is not an address of http or https; download it otherwise and put it at {path}")
    if path.exists():
        if size is not None and path.stat().st_size != size:
            raise InvalidInput(f"{path} has {path.stat().st_size} bytes, expected {size}; delete it and fetch again")
        return path
    part = _Part(path, url)
    try:
        while True:
            before = part.length()
            total = _continue(part, size, progress)
            if total is None or part.length() == total:
                break
            if part.length() <= before:  # each attempt must gain something
                raise InvalidInput(
                    f"{url}: the connection ended after {part.length()} of {total} bytes; fetch again to continue there"
                )
        part.finish()
    except HTTPError as error:
        error.close()
        raise InvalidInput(f"{url}: the server answers {error.code} {error.reason}; try another address") from error
    except URLError as error:
        raise InvalidInput(f"{url} cannot be reached: {error.reason}; check the network, then fetch again") from error
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        raise InvalidInput(f"{url} cannot be fetched: {words}; what has arrived is kept, fetch again") from error
    return path


class _Part:
    """The part of a file that has arrived, and a note that tells which file it is a part of."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.part = path.with_name(f".{path.name}.part")
        self._note = path.with_name(f".{path.name}.part.json")

    def length(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def note(self) -> dict[str, Any]:
        """What was known when it began; empty if nothing can be continued."""
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) and note.get("url") == self.url and self.length() else {}

    def begin(self, total: int | None, validator: str | None) -> None:
        self.forget()
        self._note.write_text(json.dumps({"url": self.url, "total": total, "validator": validator}))

    def forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        with self.part.open("ab") as stream:  # also makes an empty file of nothing
            os.fsync(stream.fileno())
        os.replace(self.part, self.path)
        self._note.unlink(missing_ok=True)


def _continue(part: _Part, size: int | None, progress: Progress | None) -> int | None:
    """One request for what is missing; how many bytes there must be in all, or None if only the end can tell."""
    note = part.note()
    try:
        response = _open(part, note)
    except HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        if note.get("total") == part.length():  # all of it had arrived, only the last step was missing
            return part.length()
        part.forget()  # the file is another one now
        response = _open(part, {})
    with response:
        ranged = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status == http.client.PARTIAL_CONTENT:
            if ranged is None or int(ranged[1]) != part.length() or int(ranged[2]) != note.get("total"):
                wanted = f"what follows {part.length()} of {note.get('total')} bytes"
                part.forget()
                raise InvalidInput(
                    f"{response.url}: the server sent {response.headers.get('Content-Range')}, wanted {wanted};"
                    " fetch again to start anew"
                )
            total: int | None = int(ranged[2])
        else:  # from the beginning: the first request, a server without ranges, or a file that has changed
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else size
            part.begin(total, response.headers.get("ETag") or response.headers.get("Last-Modified"))
        if size is not None and total != size:
            part.forget()
            raise InvalidInput(f"{response.url} has {total} bytes, expected {size}; it has changed, use another source")
        with part.part.open("ab") as stream:
            try:
                while chunk := response.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    if progress is not None:
                        progress(part.path.name, stream.tell(), total)
            except (ConnectionError, http.client.IncompleteRead):
                if total is None:
                    raise
    if total is not None and part.length() > total:
        found = part.length()
        part.forget()
        raise InvalidInput(f"{response.url} sent {found} bytes, promised {total}; fetch again")
    return total


def _open(part: _Part, note: dict[str, Any]) -> Any:
    headers = {"User-Agent": "suffuse", "Accept-Encoding": "identity"}
    if note.get("total") is not None:
        headers["Range"] = f"bytes={part.length()}-"
        validator = note.get("validator")
        if validator and not validator.startswith("W/"):  # a weak one cannot vouch for single bytes
            headers["If-Range"] = validator
    # Only http and https: urllib's own opener would follow a redirection to ftp, and read file addresses.
    opener = OpenerDirector()
    for handler in (
        ProxyHandler, HTTPHandler, HTTPSHandler, HTTPRedirectHandler, HTTPErrorProcessor, HTTPDefaultErrorHandler,
        UnknownHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    try:
        return opener.open(Request(part.url, headers=headers), timeout=_TIMEOUT_SECONDS)  # noqa: S310 - checked above
    except ValueError as error:  # an address, perhaps of a redirection, that makes no sense
        raise URLError(str(error)) from error
