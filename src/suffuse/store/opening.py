"""The index directory: plain .npy files that are memory-mapped, as its manifest describes them."""

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from suffuse.core.ann import HnswGraph
from suffuse.core.columns import Held, plain
from suffuse.core.features import Whitening
from suffuse.errors import IndexBroken
from suffuse.store.checksums import PAGES_FILE, Pages, split_sums
from suffuse.store.files import Mapped, map_array, map_extended, map_file, sha256_of
from suffuse.store.fit import check_fit
from suffuse.store.ids import Ids
from suffuse.store.items import Items
from suffuse.store.manifest import (
    ARRAY_TYPES,
    GRAPH_FILES,
    HNSW_FILES,
    IMAGE_FILES,
    ITEMS_FILE,
    MANIFEST,
    Manifest,
    base_of,
    column_files,
    read_manifest,
    size_on_disk,
)
from suffuse.store.segments import Segment, empty_segment, merged, read_segments

# Files that are read whole where changes are laid over them.
_LAID_OVER = {"indptr.npy", "scales.npy", "image_indptr.npy", "item_offsets.npy"}

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


class Known(NamedTuple):
    """1 for each column, and each vector of an image, that was read and found sound."""

    columns: NDArray[np.uint8]  # (elements,)
    images: NDArray[np.uint8]  # (images,)


class Stored(NamedTuple):
    """An open index: arrays over memory maps, with its changes laid over them."""

    manifest: Manifest
    pages: dict[str, Pages]  # of each file of the base; who reads a file has its pages checked (`sound`)
    known: Known
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
    """Map every file and check that types and shapes fit each other; reads no data but changes, so it is immediate.

    That the data is what was written is for those to check who read it, by `pages`.
    """
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
    check_fit(manifest, arrays)
    pages = _pages(base, manifest, mapped)
    whitening = None
    if "whitening_mean.npy" in arrays:
        whitening = Whitening(arrays["whitening_mean.npy"], arrays["whitening_projection.npy"])
    more = merged([empty_segment(manifest.params, manifest.counts["dimensions"]), *segments])

    if segments:
        for name in _LAID_OVER & set(pages):  # these are read now
            pages[name].check_whole()

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
        pages=pages,
        known=Known(np.zeros(extent.elements, np.uint8), np.zeros(extent.images, np.uint8)),
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
        items=_open_items(base, manifest, arrays.get("item_offsets.npy"), more, ids, pages),
        stale=more.stale,
    )


def _pages(base: Path, manifest: Manifest, mapped: dict[str, Mapped]) -> dict[str, Pages]:
    """The pages of all files but pages.npy; an index of before it has no sums."""
    names = [name for name in manifest.files if name != PAGES_FILE]
    if PAGES_FILE not in mapped:
        return {name: Pages(name) for name in names}
    sums = split_sums(mapped[PAGES_FILE].array, manifest.files)
    pages = {name: Pages(name) for name in names if not len(sums[name])}
    for name in names:
        if name in mapped:
            array, map, offset = mapped[name]
            pages[name] = Pages.of(name, map, offset, array.itemsize * math.prod(array.shape[1:]), sums[name])
        elif name not in pages:
            pages[name] = Pages.of(name, map_file(base / name), 0, 1, sums[name])
    return pages


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


def check_files(directory: Path, stored: Stored, names: Iterable[str]) -> None:
    """The same of an open index, by the sums of their pages where it has those: that is faster."""
    if PAGES_FILE not in stored.manifest.files:
        check_hashes(directory, stored.manifest, names)
    for name in set(names) & set(stored.pages):
        stored.pages[name].check_whole()


def verify(directory: str | Path) -> int:
    """Check every hash, and every id in the columns; returns the number of bytes that were read."""
    return int(_read_steadily(Path(directory), _verify))


def _verify(directory: Path, manifest: Manifest) -> int:
    stored = _open(directory, manifest)  # which checks segments whole
    check_hashes(directory, manifest, manifest.files)
    for pages in stored.pages.values():
        pages.check_whole()
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


def fetch_columns(stored: Stored, ids: NDArray[np.integer]) -> None:
    """Ask the system for columns all at once: from a disk, one after the other takes ages."""
    starts, stops = stored.columns.starts[ids], stored.columns.stops[ids]
    ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
    for array in stored.column_maps:
        array.will_need(ranges)


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


def _open_items(
    base: Path,
    manifest: Manifest,
    offsets: NDArray[np.int64] | None,
    more: Segment,
    ids: Ids,
    pages: dict[str, Pages],
) -> Items:
    if (offsets is None) != (ITEMS_FILE not in manifest.files):
        raise IndexBroken(f"only one of {ITEMS_FILE} and item_offsets.npy is there; copy or build the index again")
    text = None if offsets is None else _map_text(base, manifest, int(offsets[-1]))
    if len(more.item_text):
        if offsets is None:
            offsets = np.zeros(manifest.counts["images"] + 1, np.int64)
        offsets = np.concatenate([offsets, more.item_offsets[1:] + offsets[-1]])
    elif offsets is not None and len(more.ids):
        offsets = np.concatenate([offsets, np.repeat(offsets[-1:], len(more.ids))])
    checks = (pages["item_offsets.npy"], pages[ITEMS_FILE]) if text is not None else ()
    return Items(ids, text, offsets, memoryview(more.item_text.tobytes()), checks)


def _map_text(base: Path, manifest: Manifest, end: int) -> memoryview:
    path = base / ITEMS_FILE
    promised = manifest.files[ITEMS_FILE]["bytes"]
    text = map_file(path)
    if not len(text) == promised == end:
        raise IndexBroken(
            f"{ITEMS_FILE} has {len(text)} bytes, the manifest says {promised} and item_offsets.npy {end};"
            " copy or build the index again"
        )
    return memoryview(text)
