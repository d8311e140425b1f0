"""The index directory: plain .npy files that are memory-mapped, as its manifest describes them."""

import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from suffuse.arrays import Mapped, map_array, map_extended, sha256_of
from suffuse.codes import Held, plain
from suffuse.errors import IndexBroken
from suffuse.features import Whitening
from suffuse.hnsw import HnswGraph
from suffuse.ids import Ids
from suffuse.items import Items
from suffuse.manifest import (
    ARRAY_TYPES,
    GRAPH_FILES,
    HNSW_FILES,
    IMAGE_FILES,
    ITEMS_FILE,
    LIST_FILES,
    MANIFEST,
    Manifest,
    base_of,
    column_files,
    read_manifest,
    size_on_disk,
)
from suffuse.segments import Segment, empty_segment, merged, read_segments

# Columns whose ids are checked at a time.
_VERIFY_BLOCK = 4096


class Transition(NamedTuple):
    """S of an index that holds its graph: row i is indices[indptr[i]:indptr[i + 1]], and the same of weights."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


class StoredLists(NamedTuple):
    """The k-NN lists of the base, and those that changes made, which take their place or come behind them."""

    ids: NDArray[np.int32]  # (n, min(k, n)), of the base
    sims: NDArray[np.float32]
    changed: NDArray[np.int32]  # (c,), elements whose lists follow
    changed_ids: NDArray[np.int32]  # (c, k)
    changed_sims: NDArray[np.float32]


class Stored(NamedTuple):
    """An open index: arrays over memory maps, with its changes laid over them."""

    manifest: Manifest
    features: NDArray[np.float32]
    columns: Held  # (codes and scales if params.values is "uint8", else rows and values)
    column_maps: tuple[Mapped, ...]  # the maps under the arrays of columns that a search reads from disk
    owners: NDArray[np.int32] | None
    images: Held | None  # what the second look compares with, where elements are regions
    hnsw: HnswGraph | None  # of the base, where seeds are searched by it
    graph: Transition | None  # of the base, where chains through it are to be shown
    lists: StoredLists | None  # where the index holds them
    whitening: Whitening | None
    ids: Ids
    items: Items
    stale: NDArray[np.int32]  # elements whose columns changes concern that did not solve them again


def open_index(directory: str | Path) -> Stored:
    """Map every file and check that types and shapes fit each other; reads no data but changes, so it is immediate."""
    return cast("Stored", _read_steadily(Path(directory), _open))


def _read_steadily(directory: Path, read: Callable[[Path, Manifest], Any]) -> Any:
    """What `read` makes of an index, from files of one generation: if a writer or a forced build ends, once more."""
    while True:
        manifest = None
        try:
            place = directory.stat()
            manifest = read_manifest(directory)
            found = read(directory, manifest)
            if os.path.samestat(place, directory.stat()):
                return found
        except (IndexBroken, OSError) as error:
            if read_manifest(directory) == manifest:
                if isinstance(error, IndexBroken):
                    raise
                raise IndexBroken(f"{error.filename} cannot be read: {error.strerror}; copy the index again") from error


def _open(directory: Path, manifest: Manifest) -> Stored:
    base = base_of(directory, manifest)
    segments, extent = read_segments(directory, manifest)
    mapped = {name: _open_array(base, name, manifest) for name in manifest.files if name in ARRAY_TYPES}
    arrays = {name: entry.array for name, entry in mapped.items()}
    _check_fit(manifest, arrays)
    whitening = None
    if "whitening_mean.npy" in arrays:
        whitening = Whitening(arrays["whitening_mean.npy"], arrays["whitening_projection.npy"])
    more = merged([empty_segment(manifest.params, manifest.counts["dimensions"]), *segments])

    def extended(name: str, rows: NDArray[Any]) -> Mapped:
        return map_extended(base / name, rows) if len(rows) else mapped[name]

    coded = manifest.params.values == "uint8"
    entries, values = column_files(manifest.params)
    column_maps = [extended(entries, more.column_entries)]
    if coded:
        numbers = _overlaid(arrays[values], more.column_of, more.column_values, extent.elements)
    else:
        column_maps.append(extended(values, more.column_values))
        numbers = column_maps[1].array
    for array in column_maps:
        array.expect_random_access()
    spans = _spans(arrays["indptr.npy"], more.column_of, more.column_indptr, extent.elements)
    images = None
    if "image_rows.npy" in arrays:
        vectors = (extended(IMAGE_FILES[1], more.image_rows), extended(IMAGE_FILES[2], more.image_values))
        of_images = _spans(arrays[IMAGE_FILES[0]], more.image_of, more.image_indptr, extent.images)
        images = Held(*of_images, *(mapping.array for mapping in vectors))
    check_hashes(directory, manifest, ("ids.npy",))  # the one file that is read whole: no hit may have another's id
    ids = _ids(arrays.get("ids.npy"), more, extent.images)
    return Stored(
        manifest=manifest,
        features=extended("features.npy", more.features).array,
        columns=Held(*spans, column_maps[0].array, numbers),
        column_maps=tuple(column_maps),
        owners=extended("owners.npy", more.owners).array if "owners.npy" in arrays else None,
        images=images,
        hnsw=_open_hnsw(mapped),
        graph=Transition(*(arrays[name] for name in GRAPH_FILES)) if manifest.params.with_graph else None,
        lists=_lists(arrays, more) if manifest.params.with_lists else None,
        whitening=whitening,
        ids=ids,
        items=_open_items(base, manifest, arrays.get("item_offsets.npy"), more, ids),
        stale=more.stale,
    )


def _lists(arrays: dict[str, NDArray[Any]], more: Segment) -> StoredLists:
    return StoredLists(arrays["list_ids.npy"], arrays["list_sims.npy"], more.list_of, more.list_ids, more.list_sims)


def _overlaid(base: NDArray[Any], of: NDArray[np.int32], values: NDArray[Any], count: int) -> NDArray[Any]:
    """The values of `count` elements: those of the base, but for the elements `of`, which have these."""
    if len(base) == count and not len(of):
        return base
    overlaid = np.zeros(count, base.dtype)
    overlaid[: len(base)] = base
    overlaid[of] = values
    return overlaid


def _spans(
    indptr: NDArray[np.int64], of: NDArray[np.int32], more: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the columns of `count` elements start and stop, if those of the elements `of` lie behind all others."""
    behind = indptr[-1]
    return (
        _overlaid(indptr[:-1], of, more[:-1] + behind, count),
        _overlaid(indptr[1:], of, more[1:] + behind, count),
    )


def _ids(base: NDArray[np.int64] | None, more: Segment, images: int) -> Ids:
    hidden = np.zeros(images, np.uint8)
    hidden[more.removed] = 1
    if base is None and (more.ids == np.arange(images - len(more.ids), images)).all():
        return Ids(images, None, hidden)
    before = np.arange(images - len(more.ids)) if base is None else base
    return Ids(images, np.concatenate([before, more.ids]), hidden)


def _open_hnsw(mapped: dict[str, Mapped]) -> HnswGraph | None:
    if HNSW_FILES[0] not in mapped:
        return None
    mapped[HNSW_FILES[0]].expect_random_access()
    return HnswGraph(*(mapped[name].array for name in HNSW_FILES))


def check_hashes(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Whether these files of the base, as far as it has them, are what was written."""
    for name in set(names) & set(manifest.files):
        promised = manifest.files[name]["sha256"]
        if (found := sha256_of(base_of(directory, manifest) / name)) != promised:
            raise IndexBroken(
                f"{name} has the hash {found[:12]}..., the manifest says {promised[:12]}...:"
                " it was changed or damaged; copy or build the index again"
            )


def verify(directory: str | Path) -> int:
    """Check every hash, and every id in the columns; returns the number of bytes that were read."""
    return int(_read_steadily(Path(directory), _verify))


def _verify(directory: Path, manifest: Manifest) -> int:
    stored = _open(directory, manifest)  # which checks segments whole
    check_hashes(directory, manifest, manifest.files)
    if (stored.columns.stops < stored.columns.starts).any():
        raise IndexBroken("indptr.npy goes backwards; build the index again")
    counts, images = stored.manifest.counts, stored.ids.count
    for name, array in (("owners.npy", stored.owners), ("image_rows.npy", stored.images and stored.images.entries)):
        if array is not None:
            _check_ids(name, array, images)
    if stored.hnsw is not None:
        for name, array in (("hnsw_links.npy", stored.hnsw.links), ("hnsw_upper.npy", stored.hnsw.upper)):
            _check_ids(name, np.maximum(array.ravel(), 0), counts["elements"])  # -1 ends a list
    if stored.graph is not None:
        _check_ids("graph_indices.npy", stored.graph.indices, counts["elements"])
        if (np.diff(stored.graph.indptr) < 0).any():
            raise IndexBroken("graph_indptr.npy goes backwards; build the index again")
    if stored.lists is not None:
        _check_ids("list_ids.npy", stored.lists.ids.ravel(), counts["elements"])
        if not np.isfinite(stored.lists.sims).all():
            raise IndexBroken("list_sims.npy holds numbers that are not finite; build the index again")
    ids = stored.ids.shown()
    if len(ids) and ((np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= stored.manifest.next_id):
        raise IndexBroken("ids.npy holds an id twice, or one that was never given; build the index again")
    reach = images if is_pooled(stored) else len(stored.features)
    if is_coded(stored):
        _verify_codes(stored, reach)
    else:
        _check_ids("rows.npy", stored.columns.entries, reach)
    return size_on_disk(manifest)


def _verify_codes(stored: Stored, reach: int) -> None:
    columns, entries = stored.columns, 0
    for start in range(0, len(columns.starts), _VERIFY_BLOCK):
        read = plain(columns, np.arange(start, min(start + _VERIFY_BLOCK, len(columns.starts))))
        _check_ids("codes.npy", read.rows, reach)
        entries += len(read.rows)
    if not stored.manifest.segments and entries != stored.manifest.counts["entries"]:
        raise IndexBroken(
            f"codes.npy holds {entries} entries, {MANIFEST} counts {stored.manifest.counts['entries']};"
            " build the index again"
        )
    if not (np.isfinite(columns.values) & (columns.values >= 0)).all():
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
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise IndexBroken(
                f"{name} has the shape {arrays[name].shape}, the counts say {shape}; build the index again"
            )
    if "owners.npy" not in arrays and images != n:
        said = f"{MANIFEST} counts {images} images and {n} elements, but names no owners.npy"
        raise IndexBroken(f"{said}; build the index again")
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
    if sum(name in arrays for name in LIST_FILES) != (len(LIST_FILES) if manifest.params.with_lists else 0):
        raise IndexBroken(
            f"{MANIFEST} has with_lists={manifest.params.with_lists}, which does not fit the files that it names;"
            " copy or build the index again"
        )
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


def _open_items(base: Path, manifest: Manifest, offsets: NDArray[np.int64] | None, more: Segment, ids: Ids) -> Items:
    if (offsets is None) != (ITEMS_FILE not in manifest.files):
        raise IndexBroken(f"only one of {ITEMS_FILE} and item_offsets.npy is there; copy or build the index again")
    text = None if offsets is None else _map_text(base, manifest, int(offsets[-1]))
    if len(more.item_text):
        if offsets is None:
            offsets = np.zeros(manifest.counts["images"] + 1, np.int64)
        offsets = np.concatenate([offsets, more.item_offsets[1:] + offsets[-1]])
    elif offsets is not None and len(more.ids):
        offsets = np.concatenate([offsets, np.repeat(offsets[-1:], len(more.ids))])
    return Items(ids, text, offsets, memoryview(more.item_text.tobytes()))


def _map_text(base: Path, manifest: Manifest, end: int) -> memoryview:
    path = base / ITEMS_FILE
    promised = manifest.files[ITEMS_FILE]["bytes"]
    try:
        size = path.stat().st_size
        if not size == promised == end:
            raise IndexBroken(
                f"{ITEMS_FILE} has {size} bytes, the manifest says {promised} and item_offsets.npy {end};"
                " copy or build the index again"
            )
        with path.open("rb") as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # a ValueError if it is empty
        raise IndexBroken(f"{ITEMS_FILE} cannot be read: {error}; copy or build the index again") from error
