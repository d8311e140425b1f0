"""Feature files of every kind, owners of regions, and the features of pictures that a folder keeps."""

import contextlib
import io
import json
import struct
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from fuzz.judge import allowed, file_of, kind_of, with_kind
from suffuse.core import Damaged
from suffuse.core.features import unit_blocks
from suffuse.images.cache import Entry, FeatureCache
from suffuse.store.feature_files import load, load_owners
from suffuse.store.files import map_array

_SUFFIXES = (".npy", ".npz", ".fvecs", ".h5", ".mat", ".members", ".jsonl")
_NPY, _NPZ, _FVECS, _H5, _MAT, _MEMBERS, _KEPT = range(len(_SUFFIXES))
_DIMENSIONS = 3


def seeds() -> dict[str, bytes]:
    """Three rows in each kind of file. Members are .npy files that the target zips, so that checksums are right."""
    rows = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
    plain, labels = _npy(rows), _npy(np.array(["a", "b", "a"]))
    stored, packed = io.BytesIO(), io.BytesIO()
    np.savez(stored, features=rows, labels=np.arange(3))
    np.savez_compressed(packed, features=rows)
    made = {
        "npy": (_NPY, plain),
        "npy of bytes": (_NPY, _npy((rows * 9).astype(np.uint8))),
        "owners": (_NPY, _npy(np.arange(4, dtype=np.int32))),
        "npz": (_NPZ, stored.getvalue()),
        "npz compressed": (_NPZ, packed.getvalue()),
        "fvecs": (_FVECS, b"".join(struct.pack("<i3f", 3, *row) for row in rows)),
        "members": (_MEMBERS, struct.pack("<H", len(plain)) + plain + labels),
        "kept": (_KEPT, b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in _entries())),
    }
    made["h5"] = (_H5, _hdf5("features", rows))
    made["h5 compressed"] = (_H5, _hdf5("features", rows, compression="gzip", chunks=(2, 3)))
    made["mat"] = (_MAT, _hdf5("group/X", rows.astype(np.float64), userblock_size=512))
    return {name: with_kind(*content) for name, content in made.items()}


def _npy(array: NDArray[np.generic]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _hdf5(name: str, rows: NDArray[np.generic], userblock_size: int = 0, **options: Any) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w", userblock_size=userblock_size) as archive:
        archive.create_dataset(name, data=rows, **options)
    return stream.getvalue()


def _entries() -> list[Entry]:
    return [
        Entry(name="a.jpg", bytes=10, mtime_ns=1, sha256="aa", rows=2, facts={"width": 4}),
        Entry(name="b.jpg", bytes=11, mtime_ns=2, sha256="bb", rows=0, reason="damaged"),
    ]


def run(data: bytes) -> None:
    """Read one file by everything that reads files of its kind, and the rows to the end."""
    kind, content = kind_of(data, len(_SUFFIXES))
    if kind == _KEPT:
        _run_kept(content)
        return
    if kind == _MEMBERS:
        kind, content = _NPZ, _zipped(content)
    with file_of(content, f"features{_SUFFIXES[kind]}") as path:
        if kind == _NPY:
            with allowed():
                load_owners(path)
            with allowed(), contextlib.suppress(Damaged):
                map_array(path)
        loaded = load(path)
        for _ in unit_blocks(loaded.features, "features", None):
            pass


def _zipped(content: bytes) -> bytes:
    (length,) = struct.unpack("<H", content[:2].ljust(2, b"\0"))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if length % 2 else zipfile.ZIP_STORED) as archive:
        for name, member in (("features", content[2 : 2 + length]), ("labels", content[2 + length :])):
            if member:
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member)
    return stream.getvalue()


def _run_kept(listing: bytes) -> None:
    """A folder of kept features whose list of pictures is foreign; the rows are sound."""
    with file_of(b"", "x") as path:
        description = {"dimensions": _DIMENSIONS}
        folder = FeatureCache(path.parent, description).folder
        (folder / "1.npy").write_bytes(_npy(np.ones((2, _DIMENSIONS), np.float32)))
        (folder / "1.jsonl").write_bytes(listing)
        cache = FeatureCache(Path(path.parent), description)
        for name, size, stamp in (("a.jpg", 10, 1), ("b.jpg", 11, 2)):
            if kept := cache.find(name, size, stamp):
                with contextlib.suppress(AssertionError):
                    kept.rows()
