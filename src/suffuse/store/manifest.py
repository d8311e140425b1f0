"""manifest.json: what an index consists of, how it was made, and a hash of every file.

An index that was changed has generations: the files of its base, and a segment for each change since (`segments`).
Writing this file is what makes the next generation the one that is opened.

docs/index-format.md is the contract; a change of it raises `FORMAT_VERSION`.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.ann import HnswGraph
from suffuse.core.neighbors import known_ranks
from suffuse.core.params import LARGEST_COUNT, Params
from suffuse.errors import IndexMissing, IndexTooNew, InvalidParams
from suffuse.store.files import (
    CHECKSUMS_FILE,
    as_json,
    map_array,
    report_damage,
    sha256_of,
    sum_files,
    write_array,
    write_bytes,
)

FORMAT = "suffuse-index"
FORMAT_VERSION = 4
MANIFEST = "manifest.json"
ITEMS_FILE = "items.jsonl"
# How near the lists of elements are at some ranks: by these, seeds are weighed where graph="local".
MARKS_FILE = "marks.npy"

# Every file that an index can have, with the type it must have; a manifest that names another is refused,
# so no manifest can make Suffuse open a file outside the directory.
ARRAY_TYPES = {
    "features.npy": ("float32",),
    "indptr.npy": ("int64",),
    "codes.npy": ("uint8",),
    "scales.npy": ("float32",),
    "rows.npy": ("int32",),
    "values.npy": ("float16", "float32"),
    "owners.npy": ("int32",),
    "image_indptr.npy": ("int64",),
    "image_rows.npy": ("int32",),
    "image_values.npy": ("float16", "float32"),
    "whitening_mean.npy": ("float64",),
    "whitening_projection.npy": ("float64",),
    "item_offsets.npy": ("int64",),
    **{f"hnsw_{name}.npy": ("int32",) for name in HnswGraph._fields},
    "graph_indptr.npy": ("int64",),
    "graph_indices.npy": ("int32",),
    "graph_weights.npy": ("float32",),
    "list_ids.npy": ("int32",),
    "list_sims.npy": ("float32",),
    "ids.npy": ("int64",),
    MARKS_FILE: ("float16",),
    "districts.npy": ("int32",),
    "district_shares.npy": ("float16",),
    "district_indptr.npy": ("int64",),
    "district_codes.npy": ("uint8",),
    "district_scales.npy": ("float32",),
    CHECKSUMS_FILE: ("uint64",),
}
IMAGE_FILES = ("image_indptr.npy", "image_rows.npy", "image_values.npy")
GRAPH_FILES = ("graph_indptr.npy", "graph_indices.npy", "graph_weights.npy")
LIST_FILES = ("list_ids.npy", "list_sims.npy")
MEMBER_FILES = ("districts.npy", "district_shares.npy")
DISTRICT_FILES = ("district_indptr.npy", "district_codes.npy", "district_scales.npy")
HNSW_FILES = tuple(f"hnsw_{name}.npy" for name in HnswGraph._fields)
_REQUIRED = ("features.npy", "indptr.npy")
_CODED, _PLAIN = ("codes.npy", "scales.npy"), ("rows.npy", "values.npy")
_LARGEST_MANIFEST = 1 << 20
# Images without regions are in no file, so nothing else bounds how many a manifest may claim.
_MOST_BARE, _MOST_BARE_PER_ELEMENT = 1 << 20, 64
# Where the files of a base are, under the directory of the index; a build puts them into that itself.
_BASE, _SEGMENT = re.compile(r"(base-[0-9]{6,12})?"), re.compile(r"segment-[0-9]{6,12}\.npz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What manifest.json says: who wrote the index, with which parameters, and every file with its hash."""

    created_by: str
    params: Params
    counts: dict[str, int]  # elements, images, dimensions, entries, unconverged
    graph: dict[str, float]  # see graph.GraphSummary
    files: dict[str, dict[str, Any]]  # name -> sha256, bytes, and dtype and shape of an array
    pictures: dict[str, Any] | None = None  # where the images are, and what made features of them
    generation: int = 1  # goes up with every change
    next_id: int  # of the next image that is added
    base: str = ""  # the directory of `files`; empty if that is the index's own
    segments: list[dict[str, Any]] = dataclasses.field(
        default_factory=list
    )  # name, sha256, bytes; the oldest change first
    version: int = FORMAT_VERSION


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """The `files` of a manifest: sizes, hashes, types and shapes of all files in a finished directory.

    Their checksums are written first.
    """
    paths = sorted(path for path in directory.iterdir() if path.name not in (MANIFEST, CHECKSUMS_FILE))
    write_array(directory / CHECKSUMS_FILE, sum_files(paths))
    return {path.name: describe(path) for path in (*paths, directory / CHECKSUMS_FILE)}


def describe(path: Path) -> dict[str, Any]:
    """Size and hash of one file, and type and shape of an array."""
    description: dict[str, Any] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    if path.suffix == ".npy":
        array = map_array(path).array
        description |= {"dtype": array.dtype.name, "shape": list(array.shape)}
    return description


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """The last file of a build: a directory without it is no index."""
    said = {name: value for name, value in vars(manifest).items() if value is not None}
    content = {**said, "format": FORMAT, "params": manifest.params.to_dict()}
    write_bytes(directory / MANIFEST, [sign(content)])


def sign(content: dict[str, Any]) -> bytes:
    """The bytes of a manifest that says this, with their own hash among them: of what they are while that is empty."""
    empty = as_json({**content, "sha256": ""})
    return as_json({**content, "sha256": hashlib.sha256(empty).hexdigest()})


@report_damage
def read_manifest(directory: str | Path) -> Manifest:
    """Read and check manifest.json alone."""
    directory = Path(directory)
    path = directory / MANIFEST
    if not directory.exists():
        raise IndexMissing(f"there is no index at {directory}; build one first, or give another path")
    if not directory.is_dir():
        raise IndexMissing(f"{directory} is a file; an index is a directory with a {MANIFEST}")
    if not path.is_file():
        raise IndexMissing(
            f"{directory} has no {MANIFEST}: it is not an index, or its build was not finished; build it (again)"
        )
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise Damaged(f"{MANIFEST} has {path.stat().st_size} bytes, far too many")
        data = path.read_bytes()
        content = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise IndexMissing(f"{path} was not written by Suffuse (no format {FORMAT!r}); is it another program's?")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise Damaged(f"{MANIFEST} has version {version!r}, expected a whole number from 1")
    if version > FORMAT_VERSION:
        raise IndexTooNew(
            f"the index has format version {version}, this Suffuse reads up to {FORMAT_VERSION};"
            f" upgrade Suffuse (the index was written by {content.get('created_by')})"
        )
    if version < 3:
        content = {**_UNCHANGED, **content, "next_id": _images(content)}
    manifest = _parse_manifest(content)
    # Last, since the other complaints say more. Before version 3, there was no hash.
    promised = content.get("sha256", None if version < 3 else "")
    if promised is not None and hashlib.sha256(data.replace(str(promised).encode(), b"")).hexdigest() != promised:
        raise Damaged(f"{MANIFEST} was changed or damaged: its hash is another one")
    return manifest


# What an index says that was written before indexes could change.
_UNCHANGED: dict[str, Any] = {"generation": 1, "base": "", "segments": []}


def _images(content: dict[str, Any]) -> Any:
    counts = content.get("counts")
    return counts.get("images") if isinstance(counts, dict) else None


def _parse_manifest(content: dict[str, Any]) -> Manifest:
    for key, kind in (("created_by", str), ("params", dict), ("counts", dict), ("graph", dict), ("files", dict)):
        if not isinstance(content.get(key), kind):
            raise Damaged(f"{MANIFEST} has no proper {key!r} (found {content.get(key)!r})")
    if not isinstance(content.get("pictures", {}), dict):
        raise Damaged(f"{MANIFEST} has no proper 'pictures' (found {content['pictures']!r})")
    try:
        params = Params.from_dict(content["params"])
    except InvalidParams as error:
        raise Damaged(f"{MANIFEST} has bad params: {error}") from error
    counts = content["counts"]
    for name, least, most in (
        ("elements", 1, LARGEST_COUNT),
        ("images", 1, LARGEST_COUNT),
        ("dimensions", 1, LARGEST_COUNT),
        ("entries", 0, 2**63 - 1),
        ("unconverged", 0, LARGEST_COUNT),
    ):
        if type(counts.get(name)) is not int or not least <= counts[name] <= most:
            raise Damaged(f"{MANIFEST} has no proper count of {name} (found {counts.get(name)!r})")
    _check_generation(content)
    files = content["files"]
    for name, description in files.items():
        if name not in ARRAY_TYPES and name != ITEMS_FILE:
            raise Damaged(f"{MANIFEST} names a file {name!r} that no index has; do not trust this index")
        if not isinstance(description, dict) or type(description.get("bytes")) is not int:
            raise Damaged(f"{MANIFEST} does not describe {name}")
        if not isinstance(description.get("sha256"), str):
            raise Damaged(f"{MANIFEST} has no sha256 of {name}")
    backed = any(name in files for name in ("item_offsets.npy", "image_indptr.npy", "ids.npy"))
    if not backed and counts["images"] > max(_MOST_BARE, _MOST_BARE_PER_ELEMENT * counts["elements"]):
        raise Damaged(f"{MANIFEST} counts {counts['images']} images and {counts['elements']} elements, which cannot be")
    if missing := [name for name in (*_REQUIRED, *column_files(params)) if name not in files]:
        raise Damaged(f"{MANIFEST} does not name {missing[0]}")
    names = (field.name for field in dataclasses.fields(Manifest))
    return Manifest(**{**{name: content[name] for name in names if name in content}, "params": params})


def _check_generation(content: dict[str, Any]) -> None:
    """Whether generation, base and segments are what Suffuse writes: no name may lead outside the directory."""
    for name, least in (("generation", 1), ("next_id", content["counts"]["images"])):
        if type(content.get(name)) is not int or not least <= content[name] < 2**62:
            raise Damaged(f"{MANIFEST} has no proper {name} (found {content.get(name)!r})")
    base, segments = content.get("base"), content.get("segments")
    if not isinstance(base, str) or not _BASE.fullmatch(base):
        raise Damaged(f"{MANIFEST} names a base {base!r} that no index has; do not trust this index")
    if not isinstance(segments, list):
        raise Damaged(f"{MANIFEST} has no proper 'segments' (found {segments!r})")
    for segment in segments:
        if not isinstance(segment, dict) or not isinstance(segment.get("name"), str):
            raise Damaged(f"{MANIFEST} has no proper 'segments' (found {segment!r})")
        if not _SEGMENT.fullmatch(segment["name"]):
            raise Damaged(f"{MANIFEST} names a segment {segment['name']!r} that no index has; do not trust it")
        if type(segment.get("bytes")) is not int or not isinstance(segment.get("sha256"), str):
            raise Damaged(f"{MANIFEST} does not describe {segment['name']}")


def base_of(directory: Path, manifest: Manifest) -> Path:
    """Where the files of an index are that its segments change."""
    return directory / manifest.base


def has_districts(manifest: Manifest) -> bool:
    """Whether an index has districts: where its graph is ours, and elements are images."""
    return manifest.params.graph == "local" and "owners.npy" not in manifest.files


def column_files(params: Params) -> tuple[str, str]:
    """What holds the columns besides indptr.npy."""
    return _CODED if params.values == "uint8" else _PLAIN


def size_on_disk(manifest: Manifest) -> int:
    """Bytes of all files that the manifest names."""
    return sum(int(description["bytes"]) for description in (*manifest.files.values(), *manifest.segments))


def check_shapes(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    """The shapes of all arrays follow from a few counts."""
    n, images, dimensions, entries = (manifest.counts[of] for of in ("elements", "images", "dimensions", "entries"))
    expected: dict[str, tuple[int, ...]] = {
        "features.npy": (n, dimensions),
        "indptr.npy": (n + 1,),
        "scales.npy": (n,),
        "rows.npy": (entries,),
        "values.npy": (entries,),
        "owners.npy": (n,),
        "item_offsets.npy": (images + 1,),
        "image_indptr.npy": (images + 1,),
        "graph_indptr.npy": (n + 1,),
        "list_ids.npy": (n, min(n, manifest.params.k)),
        "list_sims.npy": (n, min(n, manifest.params.k)),
        "ids.npy": (images,),
        MARKS_FILE: (n, len(known_ranks(manifest.params.k))),
        "districts.npy": (n, 2),
        "district_shares.npy": (n,),
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise Damaged(f"{name} has the shape {arrays[name].shape}, the counts say {shape}")
    if "owners.npy" not in arrays and images != n:
        raise Damaged(f"{MANIFEST} counts {images} images and {n} elements, but names no owners.npy")
    indptr, stored = arrays["indptr.npy"], arrays[column_files(manifest.params)[0]]
    if stored.ndim != 1 or indptr[0] != 0 or indptr[-1] != len(stored):
        raise Damaged(f"indptr.npy runs from {indptr[0]} to {indptr[-1]}, expected 0 to {stored.size}")
    if present := [name for name in IMAGE_FILES if name in arrays]:
        if len(present) < len(IMAGE_FILES):
            raise Damaged(f"{present[0]} is there without the other image vectors")
        ends, shapes = arrays["image_indptr.npy"], {arrays[name].shape for name in IMAGE_FILES[1:]}
        expected_type = "float16" if manifest.params.values == "uint8" else arrays["values.npy"].dtype.name
        if shapes != {(int(ends[-1]),)} or arrays["image_values.npy"].dtype.name != expected_type:
            raise Damaged("image_rows.npy and image_values.npy do not fit image_indptr.npy")
    params = manifest.params
    for parameter, value, asked, files in (
        ("seed_search", params.seed_search, params.seed_search == "hnsw", HNSW_FILES),
        ("with_graph", params.with_graph, params.with_graph, GRAPH_FILES),
        ("with_lists", params.with_lists, params.with_lists, LIST_FILES),
        ("graph", params.graph, params.graph == "local", (MARKS_FILE,)),
        ("graph", params.graph, has_districts(manifest), MEMBER_FILES + DISTRICT_FILES),
    ):
        count = sum(name in arrays for name in files)
        if count != asked * len(files):
            raise Damaged(f"{MANIFEST} has {parameter}={value!r} and names {count} of {len(files)} files for it")
    if params.with_graph:
        start, *edges = (arrays[name] for name in GRAPH_FILES)
        if start[0] != 0 or {array.shape for array in edges} != {(int(start[-1]),)}:
            raise Damaged("graph_indices.npy and graph_weights.npy do not fit graph_indptr.npy")
    if has_districts(manifest):
        ends, codes, scales = (arrays[name] for name in DISTRICT_FILES)
        if ends.shape != (len(scales) + 1,) or ends[0] != 0 or ends[-1] != codes.size:
            raise Damaged("district_codes.npy and district_scales.npy do not fit district_indptr.npy")
    mean, projection = arrays.get("whitening_mean.npy"), arrays.get("whitening_projection.npy")
    if mean is projection is None and params.whiten is not None:
        raise Damaged(f"{MANIFEST} has whiten={params.whiten}, but names no whitening_mean.npy")
    if (mean is None) != (projection is None):
        raise Damaged("only one of whitening_mean.npy and whitening_projection.npy is there")
    if mean is not None and projection is not None and (mean.ndim != 1 or projection.shape != (len(mean), dimensions)):
        raise Damaged(
            f"whitening_projection.npy has the shape {projection.shape}, which does not fit whitening_mean.npy of shape"
            f" {mean.shape} and {dimensions} dimensions"
        )
