"""Segments: one file for each change of an index, with all that it brought.

A segment is a .npz of plain arrays (`Segment`). Elements and images have rows: those of the base first, then those
that segments added, in order. Opening an index reads its segments whole, checks them, and lays them over the base:
rows are appended, columns and lists that a later segment holds take the place of earlier ones.
"""

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.params import Params
from suffuse.store.files import parse_array, write_whole
from suffuse.store.manifest import DISTRICT_FILES, Manifest, has_districts


class Segment(NamedTuple):
    """What one change brought; arrays that it has nothing for are empty."""

    features: NDArray[np.float32]  # (a, d), the elements that were added
    owners: NDArray[np.int32]  # (a,), rows of their images; empty where elements are images
    ids: NDArray[np.int64]  # (b,), of the images that were added
    item_text: NDArray[np.uint8]  # their lines of items.jsonl
    item_offsets: NDArray[np.int64]  # (b + 1,), where each line begins
    removed: NDArray[np.int32]  # rows of images that are hidden from now on
    list_of: NDArray[np.int32]  # (c,), elements whose k-NN lists these are
    list_ids: NDArray[np.int32]  # (c, k)
    list_sims: NDArray[np.float32]  # (c, k)
    column_of: NDArray[np.int32]  # (e,), elements whose columns these are
    column_indptr: NDArray[np.int64]  # (e + 1,)
    column_entries: NDArray[Any]  # codes, or rows
    column_values: NDArray[Any]  # (e,) scales, or values as many as rows
    stale: NDArray[np.int32]  # elements whose columns this change concerns, but did not solve again
    image_of: NDArray[np.int32]  # (g,), images whose vectors these are, in a pooled index of regions
    image_indptr: NDArray[np.int64]  # (g + 1,)
    image_rows: NDArray[np.int32]
    image_values: NDArray[Any]
    districts: NDArray[np.int32]  # (a, 2), those of the elements that were added; empty where the index has none
    district_shares: NDArray[np.float16]  # (a,), of the first of each


# What segments had no word for before version 4, when no index had it.
_SINCE_4 = ("districts", "district_shares")


class Extent(NamedTuple):
    """How many elements and images there are, removed ones too."""

    elements: int
    images: int


def segment_types(params: Params) -> dict[str, tuple[str, int]]:
    """The type of each array of a segment, and how many dimensions it has."""
    coded = params.values == "uint8"
    numbers = "float16" if coded else params.values
    types = dict.fromkeys(Segment._fields, "int32") | dict.fromkeys(("features", "list_sims"), "float32")
    types |= dict.fromkeys(("ids", "item_offsets", "column_indptr", "image_indptr"), "int64")
    types |= {"item_text": "uint8", "image_values": numbers, "district_shares": "float16"}
    types |= {"column_entries": "uint8", "column_values": "float32"} if coded else {"column_values": numbers}
    tables = ("features", "list_ids", "list_sims", "districts")
    return {name: (dtype, 2 if name in tables else 1) for name, dtype in types.items()}


def empty_segment(params: Params, width: int) -> Segment:
    """A change that changes nothing: where others start from."""
    arrays: dict[str, NDArray[Any]] = {
        name: np.empty((0,) * dimensions, dtype) for name, (dtype, dimensions) in segment_types(params).items()
    }
    arrays["features"] = np.empty((0, width), np.float32)
    for name in ("list_ids", "list_sims"):
        arrays[name] = arrays[name].reshape(0, params.k)
    for name in ("item_offsets", "column_indptr", "image_indptr"):
        arrays[name] = np.zeros(1, np.int64)
    arrays["districts"] = arrays["districts"].reshape(0, 2)
    return Segment(**arrays)


def write_segment(directory: Path, name: str, segment: Segment) -> dict[str, Any]:
    """Write a segment, durably; returns what a manifest says about it."""
    path = directory / name
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **segment._asdict())
    data = buffer.getbuffer()
    with write_whole(path) as stream:
        stream.write(data)
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_segments(directory: Path, manifest: Manifest) -> tuple[list[Segment], Extent]:
    """All segments of an index, checked down to the last id, and how large the index is with them."""
    extent = Extent(manifest.counts["elements"], manifest.counts["images"])
    segments = []
    for described in manifest.segments:
        segment = _read(directory, described, manifest)
        extent = Extent(extent.elements + len(segment.features), extent.images + len(segment.ids))
        # Where the hash was right, that is a manifest that was put together by hand.
        if what := find_misfit(segment, manifest, extent):
            raise Damaged(f"{described['name']} does not fit the index: {what}")
        segments.append(segment)
    return segments, extent


def _read(directory: Path, described: dict[str, Any], manifest: Manifest) -> Segment:
    name = described["name"]
    try:
        data = (directory / name).read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"{name} is missing") from error
    except OSError as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != described["sha256"]:
        raise Damaged(f"{name} was changed or damaged: its hash is not that of the manifest")
    arrays = empty_segment(manifest.params, manifest.counts["dimensions"])._asdict()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            there = archive.namelist()
            for field in Segment._fields:
                if field in _SINCE_4 and f"{field}.npy" not in there:
                    continue
                info = archive.getinfo(f"{field}.npy")
                if info.compress_type != zipfile.ZIP_STORED:
                    raise Damaged(f"{name} is compressed, which Suffuse never does")
                arrays[field] = parse_array(archive.read(info), f"{field} of {name}")
    except Damaged:
        raise
    except Exception as error:
        # Archives fail in more ways than zipfile has errors for.
        raise Damaged(f"{name} cannot be read: {error}") from error
    for field, (dtype, dimensions) in segment_types(manifest.params).items():
        if arrays[field].dtype != dtype or arrays[field].ndim != dimensions:
            raise Damaged(
                f"{name} holds {field} of type {arrays[field].dtype} and shape {arrays[field].shape}, expected {dtype}"
                f" of {dimensions} dimensions"
            )
    return Segment(**arrays)


def find_misfit(segment: Segment, manifest: Manifest, extent: Extent) -> str:
    """What does not fit an index of this extent, the segment's own elements included; empty if all does."""
    params, dimensions = manifest.params, manifest.counts["dimensions"]
    regional = "owners.npy" in manifest.files
    added, images = len(segment.features), len(segment.ids)
    shapes = {
        "features": (added, dimensions),
        "owners": (added if regional else 0,),
        "item_offsets": (images + 1,),
        "list_ids": (len(segment.list_of), params.k),
        "list_sims": (len(segment.list_of), params.k),
        "column_indptr": (len(segment.column_of) + 1,),
        "column_values": (len(segment.column_of if params.values == "uint8" else segment.column_entries),),
        "image_indptr": (len(segment.image_of) + 1,),
        "image_values": (len(segment.image_rows),),
        "districts": (added if has_districts(manifest) else 0, 2),
        "district_shares": (added if has_districts(manifest) else 0,),
    }
    for name, array in segment._asdict().items():
        if array.shape != shapes.get(name, (array.size,)):
            return f"{name} has the shape {array.shape}"
    if not regional and added != images:
        return f"it has {added} elements and {images} images"
    pooled = regional and params.pool == "sum"
    limits = {"owners": extent.images, "removed": extent.images, "image_of": extent.images, "image_rows": extent.images}
    limits |= dict.fromkeys(("list_of", "list_ids", "column_of", "stale"), extent.elements)
    limits["ids"] = manifest.next_id
    if params.values != "uint8":
        limits["column_entries"] = extent.images if pooled else extent.elements
    for name, limit in limits.items():
        array = getattr(segment, name)
        if array.size and not 0 <= array.min() <= array.max() < limit:
            return f"{name} holds an id outside 0..{limit - 1}"
    pairs = {"column_indptr": "column_entries", "image_indptr": "image_rows", "item_offsets": "item_text"}
    for name, entries in pairs.items():
        indptr = getattr(segment, name)
        if indptr[0] != 0 or indptr[-1] != len(getattr(segment, entries)) or (indptr[1:] < indptr[:-1]).any():
            return f"{name} does not fit {entries}"
    known = manifest.files.get(DISTRICT_FILES[-1], {}).get("shape", [0])[0]
    if segment.districts.size and not -1 <= segment.districts.min() <= segment.districts.max() < known:
        return f"districts holds a district outside 0..{known - 1}"
    if not all(
        np.isfinite(numbers).all() for numbers in (segment.features, segment.list_sims, segment.district_shares)
    ):
        return "it holds numbers that are not finite"
    return ""


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """One segment that does what these do one after the other."""
    first, *others = segments
    for other in others:
        first = _merge_two(first, other)
    return first


def _merge_two(a: Segment, b: Segment) -> Segment:
    if not any(array.size for name, array in a._asdict().items() if not name.endswith(("_indptr", "_offsets"))):
        return b  # nothing of it is copied, and it can be large
    together: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(a, name), getattr(b, name)])
        for name in ("features", "owners", "ids", "item_text", "removed", "districts", "district_shares")
    }
    together["item_offsets"] = np.concatenate([a.item_offsets, b.item_offsets[1:] + a.item_offsets[-1]])
    keep = ~np.isin(a.list_of, b.list_of)
    for name in ("list_of", "list_ids", "list_sims"):
        together[name] = np.concatenate([getattr(a, name)[keep], getattr(b, name)])
    together |= _merge_vectors("column", ("entries", "values"), a, b)
    together |= _merge_vectors("image", ("rows", "values"), a, b)
    together["stale"] = update_stale(a.stale, b.column_of, b.stale)
    return Segment(**together)


def update_stale(
    stale: NDArray[np.integer], solved: NDArray[np.integer], more: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Whose columns are stale, ascending, once some of the stale ones were solved and more became stale."""
    # These are large parts of all elements: a mark for each is several times faster than sets.
    is_stale = np.zeros(max(part.max(initial=-1) for part in (stale, solved, more)) + 1, bool)
    is_stale[stale], is_stale[solved] = True, False
    is_stale[more] = True
    return np.flatnonzero(is_stale).astype(np.int32)


def _merge_vectors(kind: str, parts: tuple[str, str], a: Segment, b: Segment) -> dict[str, NDArray[Any]]:
    """Columns or image vectors of both; where both have one, that of b."""
    of_a, of_b = getattr(a, f"{kind}_of"), getattr(b, f"{kind}_of")
    indptr_a, indptr_b = getattr(a, f"{kind}_indptr"), getattr(b, f"{kind}_indptr")
    keep = ~np.isin(of_a, of_b)
    lengths = np.diff(indptr_a)
    rows = np.repeat(keep, lengths)
    scaled = kind == "column" and a.column_entries.dtype == np.uint8  # a value for each column, and not for each entry
    merged: dict[str, NDArray[Any]] = {f"{kind}_of": np.concatenate([of_a[keep], of_b])}
    merged[f"{kind}_indptr"] = np.concatenate([[0], np.cumsum(np.concatenate([lengths[keep], np.diff(indptr_b)]))])
    for part in parts:
        name = f"{kind}_{part}"
        chosen = keep if scaled and part == "values" else rows
        merged[name] = np.concatenate([getattr(a, name)[chosen], getattr(b, name)])
    return merged
