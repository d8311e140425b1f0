"""The directory of an index: its manifest, its arrays, and searches of whatever opens.

An input is a byte of flags and then files: name, a line break, the length in two bytes, the content. With the first flag
the manifest is made to describe the files that follow, as a forger's would: damage then comes as far as the search.
"""

import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import suffuse
from fuzz.judge import allowed
from suffuse import Index, Params
from suffuse.arrays import map_array, sha256_of
from suffuse.errors import SuffuseError
from suffuse.explain import explain
from suffuse.similar import search, start, wanted

_NAME = re.compile(rb"[a-z_]{1,40}\.(npy|jsonl|json)")
_MANIFEST = "manifest.json"
_SIGNED = 1


def seeds() -> dict[str, bytes]:
    """Indexes of a few elements with everything that an index can have, signed by the target and not."""
    rng = np.random.default_rng(7)
    few, more = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=(30, 3)).astype(np.float32)
    owners, names = np.array([0, 0, 1, 2, 2, 1]), ["a", "b", "c"]
    small: dict[str, Any] = {"k": 3, "truncation": 6, "keep": 4}
    made = {
        "coded": _built(more, Params(k=29, truncation=30, keep=30)),
        "named": _built(few, Params(**small), names=[f"image {i}" for i in range(6)]),
        "plain": _built(few, Params(**small, values="float16")),
        "regions": _built(few, Params(**small, pool="none", values="float32"), owners=owners, names=names),
        "pooled": _built(few, Params(**small), owners=owners),
        "whitened": _built(few, Params(**small, whiten=1)),
        "linked": _built(few, Params(**small, seed_search="hnsw")),
        "graph": _built(few, Params(**small, with_graph=True)),
    }
    signed = {f"{name} signed": bytes([_SIGNED]) + content for name, content in made.items()}
    return {**signed, "coded": b"\0" + made["coded"], "regions": b"\0" + made["regions"]}


def _built(features: Any, params: Params, **options: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="suffuse-fuzz-") as folder:
        path = Path(folder) / "x.index"
        suffuse.build(features, path, params, jobs=1, **options)
        return b"".join(_packed(file.name, file.read_bytes()) for file in sorted(path.iterdir()))


def _packed(name: str, content: bytes) -> bytes:
    if name == _MANIFEST:
        content = json.dumps(json.loads(content), separators=(",", ":")).encode()  # shorter is easier to damage
    return name.encode() + b"\n" + struct.pack("<H", len(content)) + content


def unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of an input, up to the first that has no proper name."""
    while len(data) > 2:
        name, _, rest = data.partition(b"\n")
        if not _NAME.fullmatch(name):
            return
        (length,) = struct.unpack("<H", rest[:2].ljust(2, b"\0"))
        yield name.decode(), rest[2 : 2 + length]
        data = rest[2 + length :]


def run(data: bytes) -> None:
    """Open the index, and do with it what can be done."""
    with tempfile.TemporaryDirectory(prefix="suffuse-fuzz-") as folder:
        path = Path(folder)
        for name, content in unpacked(data[1:]):
            (path / name).write_bytes(content)
        if data[:1] and data[0] & _SIGNED:
            _sign(path)
        with allowed():
            suffuse.verify(path)
        _search(Index.open(path))


def _sign(path: Path) -> None:
    """Describe the files that are there; what cannot be described stays as the manifest has it."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return
    for file in path.iterdir():
        if file.name not in manifest["files"]:
            continue
        described: dict[str, Any] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
        if file.suffix == ".npy":
            try:
                array = map_array(file).array
            except SuffuseError:
                continue
            described |= {"dtype": array.dtype.name, "shape": list(array.shape)}
        manifest["files"][file.name] = described
    (path / _MANIFEST).write_text(json.dumps(manifest))


def _search(index: Index) -> None:
    queries = np.cos(np.arange(2 * index.dimensions, dtype=np.float32)).reshape(2, -1)
    searches: tuple[Callable[[], Any], ...] = (
        lambda: index.search(queries, 5),
        lambda: index.search(queries, 5, 3, refine=0),
        lambda: index.search(queries, 3, 2, exact=True, owners=np.zeros(2, np.int64)),
        lambda: index.search(queries, 5, method="knn"),
        lambda: index.search(queries, 5, pooling="max"),
        lambda: index.search(queries, 5, pooling="gmp"),
        lambda: index.combine(np.zeros((1, 1), np.int64), np.ones((1, 1)), 5),
    )
    for ask in searches:
        with allowed():
            hits = ask()
            if hits.ids.max(initial=-1) >= len(index) or hits.ids.min(initial=0) < -1:
                raise AssertionError(f"a search found images that do not exist: {hits.ids}")
    for image in range(min(len(index), 3)):
        with allowed():
            index.items.name(image)
    _ask_for_similar(index)


def _ask_for_similar(index: Index) -> None:
    """The ways of the service: more like an image, and why one was found."""
    with allowed():
        search(index, wanted(index, [0]), 3)
    with allowed():
        explain(index, start(index, wanted(index, [0]), 3), 0)
