"""The index directory: plain .npy files that are memory-mapped, as its manifest describes them."""

import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.arrays import Mapped, map_array, sha256_of
from suffuse.codes import Codes, decode
from suffuse.diffusion import Entries
from suffuse.errors import IndexBroken
from suffuse.features import Whitening
from suffuse.hnsw import HnswGraph
from suffuse.items import Items
from suffuse.manifest import (
    ARRAY_TYPES,
    GRAPH_FILES,
    HNSW_FILES,
    IMAGE_FILES,
    ITEMS_FILE,
    MANIFEST,
    Manifest,
    column_files,
    read_manifest,
)

# Columns whose ids are checked at a time.
_VERIFY_BLOCK = 4096


class Transition(NamedTuple):
    """S of an index that holds its graph: row i is indices[indptr[i]:indptr[i + 1]], and the same of weights."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


class Stored(NamedTuple):
    """An open index: arrays over memory maps."""

    manifest: Manifest
    features: NDArray[np.float32]
    indptr: NDArray[np.int64]
    columns: tuple[Mapped, Mapped]  # codes and scales if params.values is "uint8", else rows and values
    owners: NDArray[np.int32] | None
    images: Entries | None  # what the second look compares with, where elements are regions
    hnsw: HnswGraph | None  # where seeds are searched by it
    graph: Transition | None  # where chains through it are to be shown
    whitening: Whitening | None
    items: Items


def open_index(directory: str | Path) -> Stored:
    """Map every file and check that types and shapes fit each other; reads no data, so it is immediate."""
    directory = Path(directory)
    manifest = read_manifest(directory)
    mapped = {name: _open_array(directory, name, manifest) for name in manifest.files if name in ARRAY_TYPES}
    arrays = {name: entry.array for name, entry in mapped.items()}
    _check_fit(manifest, arrays)
    whitening = None
    if "whitening_mean.npy" in arrays:
        whitening = Whitening(arrays["whitening_mean.npy"], arrays["whitening_projection.npy"])
    first, second = (mapped[name] for name in column_files(manifest.params))
    first.expect_random_access()
    second.expect_random_access()
    return Stored(
        manifest=manifest,
        features=arrays["features.npy"],
        indptr=arrays["indptr.npy"],
        columns=(first, second),
        owners=arrays.get("owners.npy"),
        images=Entries(*(arrays[name] for name in IMAGE_FILES)) if "image_rows.npy" in arrays else None,
        hnsw=_open_hnsw(mapped),
        graph=Transition(*(arrays[name] for name in GRAPH_FILES)) if manifest.params.with_graph else None,
        whitening=whitening,
        items=_open_items(directory, manifest, arrays.get("item_offsets.npy")),
    )


def _open_hnsw(mapped: dict[str, Mapped]) -> HnswGraph | None:
    if HNSW_FILES[0] not in mapped:
        return None
    mapped[HNSW_FILES[0]].expect_random_access()
    return HnswGraph(*(mapped[name].array for name in HNSW_FILES))


def verify(directory: str | Path) -> int:
    """Check every hash, and every id in the columns; returns the number of bytes that were read."""
    directory = Path(directory)
    stored = open_index(directory)
    total = 0
    for name, description in stored.manifest.files.items():
        if (found := sha256_of(directory / name)) != description["sha256"]:
            raise IndexBroken(
                f"{name} has the hash {found[:12]}..., the manifest says {description['sha256'][:12]}...:"
                " it was changed or damaged; copy or build the index again"
            )
        total += description["bytes"]
    if (np.diff(stored.indptr) < 0).any():
        raise IndexBroken("indptr.npy goes backwards; build the index again")
    counts = stored.manifest.counts
    for name, array in (("owners.npy", stored.owners), ("image_rows.npy", stored.images and stored.images.rows)):
        if array is not None:
            _check_ids(name, array, counts["images"])
    if stored.hnsw is not None:
        for name, array in (("hnsw_links.npy", stored.hnsw.links), ("hnsw_upper.npy", stored.hnsw.upper)):
            _check_ids(name, np.maximum(array.ravel(), 0), counts["elements"])  # -1 ends a list
    if stored.graph is not None:
        _check_ids("graph_indices.npy", stored.graph.indices, counts["elements"])
        if (np.diff(stored.graph.indptr) < 0).any():
            raise IndexBroken("graph_indptr.npy goes backwards; build the index again")
    reach = counts["images" if is_pooled(stored) else "elements"]
    if is_coded(stored):
        _verify_codes(stored, reach)
    else:
        _check_ids("rows.npy", stored.columns[0].array, reach)
    return total


def _verify_codes(stored: Stored, reach: int) -> None:
    coded, entries = Codes(stored.indptr, *(mapped.array for mapped in stored.columns)), 0
    for start in range(0, len(coded.scales), _VERIFY_BLOCK):
        columns = decode(coded, np.arange(start, min(start + _VERIFY_BLOCK, len(coded.scales))))
        _check_ids("codes.npy", columns.rows, reach)
        entries += len(columns.rows)
    if entries != stored.manifest.counts["entries"]:
        raise IndexBroken(
            f"codes.npy holds {entries} entries, {MANIFEST} counts {stored.manifest.counts['entries']};"
            " build the index again"
        )
    if not (np.isfinite(coded.scales) & (coded.scales >= 0)).all():
        raise IndexBroken("scales.npy holds numbers that are no largest entry of a column; build the index again")


def _check_ids(name: str, array: NDArray[np.int32], count: int) -> None:
    if len(array) and not 0 <= array.min() <= array.max() < count:
        raise IndexBroken(f"{name} holds an id outside 0..{count - 1}; build the index again")


def is_coded(stored: Stored) -> bool:
    """Whether the columns are in the compact code."""
    return stored.manifest.params.values == "uint8"


def is_pooled(stored: Stored) -> bool:
    """Whether the columns of a regional index hold images; else they hold elements."""
    return stored.owners is not None and stored.manifest.params.pool == "sum"


def _open_array(directory: Path, name: str, manifest: Manifest) -> Mapped:
    mapped = map_array(directory / name)
    found = (mapped.array.dtype.name, list(mapped.array.shape))
    promised = (manifest.files[name].get("dtype"), manifest.files[name].get("shape"))
    if found[0] not in ARRAY_TYPES[name]:
        raise IndexBroken(
            f"{name} holds {found[0]}, expected {' or '.join(ARRAY_TYPES[name])}; copy or build the index again"
        )
    if found != promised:
        raise IndexBroken(
            f"{name} holds {found[0]} of shape {found[1]}, the manifest says {promised[0]} of shape {promised[1]};"
            " copy or build the index again"
        )
    return mapped


def _check_fit(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    """The shapes of all arrays follow from a few counts."""
    counts = manifest.counts
    n, images, dimensions, entries = (counts[name] for name in ("elements", "images", "dimensions", "entries"))
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
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise IndexBroken(
                f"{name} has the shape {arrays[name].shape}, the counts say {shape}; build the index again"
            )
    if "owners.npy" not in arrays and images != n:
        raise IndexBroken(
            f"{MANIFEST} counts {images} images and {n} elements, but names no owners.npy; build the index again"
        )
    indptr, stored = arrays["indptr.npy"], arrays[column_files(manifest.params)[0]]
    if stored.ndim != 1 or indptr[0] != 0 or indptr[-1] != len(stored):
        raise IndexBroken(
            f"indptr.npy runs from {indptr[0]} to {indptr[-1]}, expected 0 to {stored.size}; copy or build the index"
            " again"
        )
    if present := [name for name in IMAGE_FILES if name in arrays]:
        if len(present) < len(IMAGE_FILES):
            raise IndexBroken(f"{present[0]} is there without the other image vectors; copy or build the index again")
        ends, shapes = arrays["image_indptr.npy"], {arrays[name].shape for name in IMAGE_FILES[1:]}
        expected_type = "float16" if manifest.params.values == "uint8" else arrays["values.npy"].dtype.name
        if shapes != {(int(ends[-1]),)} or arrays["image_values.npy"].dtype.name != expected_type:
            raise IndexBroken("image_rows.npy and image_values.npy do not fit image_indptr.npy; build the index again")
    links = [name for name in HNSW_FILES if name in arrays]
    if len(links) != (len(HNSW_FILES) if manifest.params.seed_search == "hnsw" else 0):
        raise IndexBroken(
            f"{MANIFEST} has seed_search={manifest.params.seed_search!r} and names {len(links)} of the"
            f" {len(HNSW_FILES)} files of links; copy or build the index again"
        )
    _check_graph(manifest, arrays)
    mean, projection = arrays.get("whitening_mean.npy"), arrays.get("whitening_projection.npy")
    if mean is projection is None and manifest.params.whiten is not None:
        raise IndexBroken(
            f"{MANIFEST} has whiten={manifest.params.whiten}, but names no whitening_mean.npy; build the index again"
        )
    if (mean is None) != (projection is None):
        raise IndexBroken("only one of whitening_mean.npy and whitening_projection.npy is there; build the index again")
    if mean is not None and projection is not None and (mean.ndim != 1 or projection.shape != (len(mean), dimensions)):
        raise IndexBroken(
            f"whitening_projection.npy has the shape {projection.shape}, which does not fit whitening_mean.npy of shape"
            f" {mean.shape} and {dimensions} dimensions; build the index again"
        )


def _check_graph(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    present = [name for name in GRAPH_FILES if name in arrays]
    if len(present) != (len(GRAPH_FILES) if manifest.params.with_graph else 0):
        raise IndexBroken(
            f"{MANIFEST} has with_graph={manifest.params.with_graph} and names {len(present)} of the {len(GRAPH_FILES)}"
            " files of the graph; copy or build the index again"
        )
    if present:
        indptr, *entries = (arrays[name] for name in GRAPH_FILES)
        if indptr[0] != 0 or {array.shape for array in entries} != {(int(indptr[-1]),)}:
            raise IndexBroken(
                "graph_indices.npy and graph_weights.npy do not fit graph_indptr.npy; build the index again"
            )


def _open_items(directory: Path, manifest: Manifest, offsets: NDArray[np.int64] | None) -> Items:
    images = manifest.counts["images"]
    if (offsets is None) != (ITEMS_FILE not in manifest.files):
        raise IndexBroken(f"only one of {ITEMS_FILE} and item_offsets.npy is there; copy or build the index again")
    if offsets is None:
        return Items(images, None, None)
    path = directory / ITEMS_FILE
    promised = manifest.files[ITEMS_FILE]["bytes"]
    try:
        size = path.stat().st_size
        if not size == promised == offsets[-1]:
            raise IndexBroken(
                f"{ITEMS_FILE} has {size} bytes, the manifest says {promised} and item_offsets.npy {offsets[-1]};"
                " copy or build the index again"
            )
        with path.open("rb") as stream:
            return Items(images, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)), offsets)
    except (OSError, ValueError) as error:  # a ValueError if it is empty
        raise IndexBroken(f"{ITEMS_FILE} cannot be read: {error}; copy or build the index again") from error
