"""The directory of an index: its manifest, its arrays, its segments, and searches of whatever opens.

An input is a byte of flags and then files: name, a line break, the length in two bytes, the content. Members of a
segment are files of their own here, which the target zips. With the first flag the manifest is made to describe the
files that follow, as a forger's would, so that damage comes as far as the search; with the second one the index is
changed afterwards.
"""

import json
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import suffuse
from fuzz.judge import allowed
from suffuse import Index, Params
from suffuse.core import Damaged
from suffuse.index.explain import explain
from suffuse.index.search import compose, find_seeds, search
from suffuse.store.files import map_array, sha256_of
from suffuse.store.manifest import sign

_NAME = re.compile(rb"(base-\d{6}/)?[a-z_]{1,40}\.(npy|jsonl|json)|segment-\d{6}\.npz/[a-z_]{1,40}\.npy")
_MANIFEST = "manifest.json"
_SIGNED, _CHANGED = 1, 2
_TO_CHANGE = ("plain", "pooled", "regions", "changed", "changed regions", "compacted")


def seeds() -> dict[str, bytes]:
    """Indexes of a few elements with everything that an index can have, signed by the target and not."""
    rng = np.random.default_rng(7)
    few, more = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=(30, 3)).astype(np.float32)
    owners, names = np.array([0, 0, 1, 2, 2, 1]), ["a", "b", "c"]
    small: dict[str, Any] = {"k": 3, "truncation": 6, "keep": 4}
    bare: dict[str, Any] = {**small, "with_lists": False}
    made = {
        "coded": _built(more, Params(k=29, truncation=30, keep=30, with_lists=False)),
        "named": _built(few, Params(**bare), names=[f"image {i}" for i in range(6)]),
        "plain": _built(few, Params(**small, values="float16")),
        "regions": _built(few, Params(**bare, pool="none", values="float32"), owners=owners, names=names),
        "pooled": _built(few, Params(**small), owners=owners),
        "whitened": _built(few, Params(**bare, whiten=1)),
        "linked": _built(few, Params(**bare, seed_search="hnsw")),
        "graph": _built(few, Params(**bare, with_graph=True)),
        "changed": _built(few, Params(**small), changes=1, names=list("abcdef")),
        "changed regions": _built(few, Params(**small, values="float32"), changes=1, owners=owners),
        "compacted": _built(few, Params(**small), changes=2),
    }
    by_target = {f"{name} signed": bytes([_SIGNED]) + content for name, content in made.items()}
    changed = {f"{name} to change": b"\3" + made[name] for name in _TO_CHANGE}
    return {**by_target, **changed, "coded": b"\0" + made["coded"], "regions": b"\0" + made["regions"]}


def _built(features: Any, params: Params, *, changes: int = 0, **options: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="suffuse-fuzz-") as folder:
        path = Path(folder) / "x.index"
        suffuse.build(features, path, params, jobs=1, **options)
        index = Index.open(path)
        if changes:
            owners = np.zeros(2, np.int64) if "owners" in options else None
            index.add(features[:2] + np.float32(0.1), owners=owners)
            index.remove([1])
        if changes > 1:
            index.compact()
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock")
        return b"".join(_packed(file.relative_to(path).as_posix(), file) for file in files)


def _packed(name: str, file: Path) -> bytes:
    if file.suffix == ".npz":
        with zipfile.ZipFile(file) as archive:
            return b"".join(_record(f"{name}/{member}", archive.read(member)) for member in archive.namelist())
    return _record(name, file.read_bytes())


def _record(name: str, content: bytes) -> bytes:
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


def _unpack(data: bytes, path: Path) -> None:
    for name, content in unpacked(data):
        first, _, last = name.partition("/")
        if first.endswith(".npz"):
            with zipfile.ZipFile(path / first, "a") as archive:
                archive.writestr(zipfile.ZipInfo(last), content)
        else:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(content)


def run(data: bytes) -> None:
    """Open the index, and do with it what can be done."""
    flags = data[0] if data else 0
    with tempfile.TemporaryDirectory(prefix="suffuse-fuzz-") as folder:
        path = Path(folder)
        _unpack(data[1:], path)
        if flags & _SIGNED:
            _sign(path)
        with allowed():
            suffuse.verify(path)
        index = Index.open(path)
        _search(index)
        if flags & _CHANGED:
            with allowed():
                index.add(np.ones((1, index.dimensions), np.float32))
            with allowed():
                index.remove([0])
            with allowed():
                index.compact()


def _sign(path: Path) -> None:
    """Describe the files that are there; what cannot be described stays as the manifest has it."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return
    for file in path.rglob("*.[nj]*"):
        if file.name in manifest["files"]:
            manifest["files"][file.name] = _described(file) or manifest["files"][file.name]
    segments = manifest.get("segments")
    for described in segments if isinstance(segments, list) else []:
        if isinstance(described, dict) and (path / str(described.get("name"))).is_file():
            described |= _described(path / str(described["name"]))
    try:
        (path / _MANIFEST).write_bytes(sign(manifest))
    except ValueError:  # a number that JSON does not know
        (path / _MANIFEST).write_text(json.dumps(manifest))


def _described(file: Path) -> dict[str, Any]:
    described: dict[str, Any] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
    if file.suffix == ".npy":
        try:
            array = map_array(file).array
        except Damaged:
            return {}
        described |= {"dtype": array.dtype.name, "shape": list(array.shape)}
    return described


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
            if (index.ids.find_rows(hits.ids[hits.ids != -1]) < 0).any():
                raise AssertionError(f"a search found images that do not exist: {hits.ids}")
    for image in range(min(len(index), 3)):
        with allowed():
            index.items.name(image)
    # The ways of the service: more like an image, and why one was found.
    with allowed():
        search(index.now, compose(index.now, [0]), 3)
    with allowed():
        explain(index.now, find_seeds(index.now, compose(index.now, [0]), 3), 0)
