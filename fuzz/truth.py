"""Ground truth as JSON and as pickles, published features in Matlab files, and pickles of plain data on their own."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io

from fuzz.judge import file_of, kind_of, with_kind
from suffuse.research.datasets import read_mat, read_truth
from suffuse.store import pickles as plain_pickle

_IMAGES = ["a_1", "b_1", "b_2"]
_CLASSIC = {"ok": [0, 1], "junk": [2]}
_REVISITED = {"easy": [0], "hard": [1], "junk": []}
_JSON, _PICKLE, _MAT, _PLAIN = range(4)


def seeds() -> dict[str, bytes]:
    """Three images and a query, classic and revisited, in each kind of file."""
    made: dict[str, bytes] = {}
    for name, query in (("classic", _CLASSIC), ("revisited", _REVISITED)):
        content = {"images": _IMAGES, "queries": [{"name": "q", **query}]}
        made[f"{name} json"] = with_kind(_JSON, json.dumps(content).encode())
        arrays = {key: np.array(ids, np.int64) for key, ids in query.items()}
        for protocol, lists in ((0, query), (2, arrays), (4, query), (5, arrays)):
            held = {"imlist": _IMAGES, "qimlist": ["q"], "gnd": [lists]}
            made[f"{name} pickle {protocol}"] = with_kind(_PICKLE, pickle.dumps(held, protocol))
    plain = {"a": {1, 2}, "b": b"\xff", "c": (np.float32(2), np.array(["x"]), 10**30)}
    for protocol in (2, 5):
        made[f"plain {protocol}"] = with_kind(_PLAIN, pickle.dumps(plain, protocol))
    rows = np.arange(6.0).reshape(2, 3) + 1
    for name, packed in (("5", False), ("5 packed", True)):
        stream: Any = io.BytesIO()  # the stubs know paths only
        scipy.io.savemat(stream, {"X": rows, "Q": rows[:, :1].astype(np.float32)}, do_compression=packed)
        # The header begins with a text that tells the time.
        made[f"matlab {name}"] = with_kind(_MAT, b"MATLAB".ljust(116) + stream.getvalue()[116:])
    made["matlab 7.3"] = with_kind(_MAT, _cells(rows.T))
    return made


def _cells(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> bytes:
    """A file of Iscen's kind: a cell per image, which refers to its vector."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as archive:
        for number, row in enumerate(rows):
            archive[f"#refs#/{number}"] = row[None]
        references = np.array([archive[f"#refs#/{number}"].ref for number in range(len(rows))], h5py.ref_dtype)
        for side, cells in (("glob/V", references), ("glob/Q", references[:1]), ("reg/V", references)):
            archive[side] = cells[None]
        archive["reg/Q"] = references[None, :1]
    return stream.getvalue()


def run(data: bytes) -> None:
    """Read one file of ground truth, or one of features beside a sound truth."""
    kind, content = kind_of(data, 4)
    if kind == _PLAIN:
        plain_pickle.loads(content, "x")
        return
    with file_of(content, f"truth{('.json', '.pkl', '.mat')[kind]}") as path:
        if kind == _MAT:
            read_mat(path, _sound_truth(path.parent), regional=h5py.is_hdf5(path))
        else:
            read_truth(path)


def _sound_truth(folder: Path) -> Path:
    path = folder / "sound.json"
    path.write_text(json.dumps({"images": _IMAGES, "queries": [{"name": "q", **_CLASSIC}]}))
    return path
