"""One generation of an index: memory-mapped, immutable, and the only way to read one.

Every array is behind an accessor that checks what it gives out against the checksums of the files, so an unchecked read
cannot be written. Inside, images and elements go by their rows; ids are what callers give and get (`store.ids`).
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.ann import HnswGraph
from suffuse.core.columns import Columns
from suffuse.core.districts import Districts
from suffuse.core.features import Whitening, apply_whitening, check_matrix, unit_rows
from suffuse.core.graph import transition_of
from suffuse.core.kernels.checksums import first_damaged_column
from suffuse.core.neighbors import Features, Neighbors, take_marks
from suffuse.core.regions import Regions, pooling_weights
from suffuse.errors import IndexBroken
from suffuse.index.catalogue import Catalogue
from suffuse.store.files import (
    CHECKSUMS_FILE,
    Checksums,
    Mapped,
    blocks_read,
    map_array,
    map_extended,
    map_file,
    report_damage,
    sha256_of,
    split_checksums,
)
from suffuse.store.ids import Ids
from suffuse.store.items import Items
from suffuse.store.manifest import (
    ARRAY_TYPES,
    DISTRICT_FILES,
    GRAPH_FILES,
    HNSW_FILES,
    IMAGE_FILES,
    ITEMS_FILE,
    LIST_FILES,
    MANIFEST,
    MARKS_FILE,
    MEMBER_FILES,
    Manifest,
    base_of,
    check_shapes,
    column_files,
    has_districts,
    read_manifest,
    size_on_disk,
)
from suffuse.store.segments import Segment, empty_segment, merge_segments, read_segments

T = TypeVar("T")

# Files that are read whole where changes are laid over them.
_LAID_OVER = {"indptr.npy", "scales.npy", "image_indptr.npy", "item_offsets.npy", MARKS_FILE, *MEMBER_FILES}

# Columns that `verify` reads at a time.
_VERIFY_BLOCK = 4096


class Transition(NamedTuple):
    """S of an index that holds its graph: row i is indices[indptr[i]:indptr[i + 1]], and the same of weights."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


class Searcher(Protocol):
    """What a query needs to know of an index, wherever that is."""

    @property
    def dimensions(self) -> int:
        """Of the vectors that it is asked with."""

    @property
    def shape(self) -> tuple[int, int]:
        """Elements, and their dimensions."""

    @property
    def is_regional(self) -> bool:
        """Whether elements are regions of images."""

    @property
    def ids(self) -> Any:
        """Where images are: `find_row(id)` and `find_rows(ids)`."""

    @property
    def items(self) -> Any:
        """What images are called: `name(id)`."""

    def prepare(self, queries: NDArray[Any], /) -> Features:
        """Vectors in the space of the index."""

    def elements(self, image: int, /) -> NDArray[np.int64]:
        """The elements of the image in a row."""


class Snapshot:
    """One generation of an index; safe to read from many threads at once."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        """Map the files of this generation; `open` is for everybody else."""
        self.manifest, self._directory = manifest, directory
        self.params = params = manifest.params
        self.is_coded = params.values == "uint8"  # whether the columns are in the compact code
        self.has_lists = params.with_lists  # the k-NN lists, which changes need
        self.seeds_are_exact = params.seed_search != "hnsw"  # and not found along links
        base = base_of(directory, manifest)
        segments, extent = read_segments(directory, manifest)
        mapped = {name: _map_typed(base, name, manifest) for name in manifest.files if name in ARRAY_TYPES}
        arrays = {name: entry.array for name, entry in mapped.items()}
        check_shapes(manifest, arrays)
        self._checksums = _checksums_of(base, manifest, mapped)
        if segments:
            for name in _LAID_OVER & set(self._checksums):  # these are read now
                self._checksums[name].check_whole()
        more = self._more = merge_segments([empty_segment(params, manifest.counts["dimensions"]), *segments])

        def extend(name: str, rows: NDArray[Any]) -> Mapped:
            return map_extended(base / name, rows) if len(rows) else mapped[name]

        entries, values = column_files(params)
        self._column_maps = [extend(entries, more.column_entries)]
        if self.is_coded:
            numbers = _lay_over(arrays[values], more.column_of, more.column_values, extent.elements)
        else:
            self._column_maps.append(extend(values, more.column_values))
            numbers = self._column_maps[1].array
        for array in self._column_maps:
            array.expect_random_access()
        spans = _spans(arrays["indptr.npy"], more.column_of, more.column_indptr, extent.elements)
        self._columns = Columns(*spans, self._column_maps[0].array, numbers)
        self._kernel_columns = self._columns.for_kernels()
        self._column_files = ("indptr.npy", *column_files(params))
        self._images: Columns | None = None  # what the second look compares with, where elements are regions
        if "image_rows.npy" in arrays:
            vectors = (extend(IMAGE_FILES[1], more.image_rows), extend(IMAGE_FILES[2], more.image_values))
            of_images = _spans(arrays[IMAGE_FILES[0]], more.image_of, more.image_indptr, extent.images)
            self._images = Columns(*of_images, *(mapping.array for mapping in vectors))
        # 1 for each column, and each vector of an image, that was read and found sound.
        self._sound = np.zeros(extent.elements, np.uint8), np.zeros(extent.images, np.uint8)
        self._features: Features = extend("features.npy", more.features).array
        self._marks: NDArray[np.float16] | None = arrays.get(MARKS_FILE)
        if self._marks is not None and len(more.list_of):
            changed = take_marks(Neighbors(more.list_ids, more.list_sims), params.k, more.list_of)
            self._marks = _lay_over(self._marks, more.list_of, changed, extent.elements)
        self.has_districts = has_districts(manifest)  # which order what columns do not reach
        if self.has_districts:
            of = np.arange(manifest.counts["elements"], extent.elements, dtype=np.int32)
            new = more.districts, more.district_shares
            self._members = [_lay_over(arrays[MEMBER_FILES[i]], of, new[i], extent.elements) for i in (0, 1)]
        self._owners = extend("owners.npy", more.owners).array if "owners.npy" in arrays else None
        self._arrays = arrays
        self.shape: tuple[int, int] = self._features.shape  # elements, removed ones too, and dimensions after whitening
        mean = arrays.get("whitening_mean.npy")
        self.dimensions = self.shape[1] if mean is None else len(mean)  # that queries must have
        self.is_regional = self._owners is not None  # whether elements are regions of images
        self.is_pooled = self.is_regional and params.pool == "sum"  # whether the columns of regions hold images
        self.has_image_vectors = self._images is not None  # for the second look of an index of pooled regions
        self.stale_elements = more.stale  # whose columns changes concern that did not solve them again
        # Whether the last read came from disk: then the next one is worth asking for beforehand.
        self._columns_on_disk = self._links_on_disk = True
        if HNSW_FILES[0] in mapped:
            mapped[HNSW_FILES[0]].expect_random_access()
        self.check_hashes(("ids.npy",))  # the one file that is read whole: no hit may have another's id
        self.ids = _ids(arrays.get("ids.npy"), more, extent.images)
        self.image_rows = self.ids.count  # rows of images, those of removed ones too
        self.items = self._open_items(base, arrays.get("item_offsets.npy"))

    @classmethod
    @report_damage
    def open(cls, path: str | Path) -> Self:
        """Open the index directory at `path`; reads no data but changes, so it is immediate."""
        return _read_steadily(Path(path), cls)

    # --- what it is

    def __len__(self) -> int:
        """The number of images."""
        return self.ids.visible

    @property
    def stale(self) -> float:
        """The share of columns that changes concern and that were not solved again."""
        return len(self.stale_elements) / self.shape[0]

    def name_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of the images in these rows; -1 stays -1."""
        numbers = self.ids.numbers
        return rows if numbers is None else np.where(rows < 0, -1, numbers[rows])

    # --- what it holds, checked

    @property
    @report_damage
    def features(self) -> Features:
        """The unit rows that are searched, (n, d), after whitening."""
        self._checksums["features.npy"].check_whole()
        return self._features

    @report_damage
    def rows(self, elements: NDArray[np.integer]) -> Features:
        """The features of these elements alone."""
        self._checksums["features.npy"].check_rows(elements)
        chosen: Features = self._features[elements]
        return chosen

    @report_damage
    def marks(self, elements: NDArray[np.integer]) -> NDArray[np.float16]:
        """How near the lists of these elements are at the known ranks (`neighbors.known_ranks`)."""
        assert self._marks is not None
        self._checksums[MARKS_FILE].check_rows(elements)
        chosen: NDArray[np.float16] = self._marks[elements]
        return chosen

    @functools.cached_property
    @report_damage
    def districts(self) -> Districts:
        """The districts of all elements, and the columns of districts; read when they are first asked for."""
        for name in (*MEMBER_FILES, *DISTRICT_FILES):
            self._checksums[name].check_whole()
        columns = Columns.of(*(self._arrays[name] for name in DISTRICT_FILES))
        members, shares = self._members
        if members.size and not -1 <= members.min() <= members.max() < len(columns.starts):
            raise Damaged(f"{MEMBER_FILES[0]} holds a district outside 0..{len(columns.starts) - 1}")
        return Districts(members, shares, columns)

    @functools.cached_property
    @report_damage
    def owners(self) -> NDArray[np.int32] | None:
        """The image of each region; None if elements are images."""
        owners = self._owners
        if owners is not None:
            self._checksums["owners.npy"].check_whole()
            _check_ids("owners.npy", owners, self.image_rows)
        return owners

    def elements(self, image: int) -> NDArray[np.int64]:
        """The elements of the image in a row: itself, or its regions."""
        return np.array([image]) if self.owners is None else np.flatnonzero(self.owners == image)

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        """Names and metadata of all images, to filter by; read when it is first asked for."""
        return Catalogue(self.ids, self.items)

    @functools.cached_property
    @report_damage
    def whitening(self) -> Whitening | None:
        """What queries are whitened with."""
        names = ("whitening_mean.npy", "whitening_projection.npy")
        if names[0] not in self._arrays:
            return None
        for name in names:
            self._checksums[name].check_whole()
        return Whitening(*(self._arrays[name] for name in names))

    def prepare(self, queries: NDArray[Any], what: str = "queries") -> Features:
        """Check vectors and bring them into the space of the index: unit length, and whitened as the gallery was."""
        check_matrix(queries, what, least_rows=1, dimensions=self.dimensions)
        rows, whitening = unit_rows(queries, what), self.whitening
        return rows if whitening is None else apply_whitening(rows, whitening, what)

    @functools.cached_property
    def hidden_elements(self) -> NDArray[np.bool_] | None:
        """(elements,), those of images that were removed or replaced; None if there are none."""
        hidden = self.ids.hidden.astype(bool)
        if not len(hidden):
            return None
        return hidden if self.owners is None else hidden[self.owners]

    @functools.cached_property
    def pooling_weights(self) -> NDArray[np.float64]:
        """What the regions of an image count in generalised max pooling."""
        assert self.owners is not None
        return pooling_weights(Regions(self.features, self.owners, self.image_rows))

    @report_damage
    def lists(self) -> Neighbors:
        """The k-NN lists of all elements (elements, k), in memory; short ones end as `Neighbors` says."""
        for name in LIST_FILES:
            self._checksums[name].check_whole()
        n, k, more = self.shape[0], self.params.k, self._more
        ids, sims = np.empty((n, k), np.int32), np.zeros((n, k), np.float32)
        ids[:] = np.arange(n, dtype=np.int32)[:, None]
        base_ids, base_sims = (self._arrays[name] for name in LIST_FILES)
        base, width = base_ids.shape
        ids[:base, :width], sims[:base, :width] = base_ids, base_sims
        ids[more.list_of], sims[more.list_of] = more.list_ids, more.list_sims
        _check_ids("list_ids.npy", ids, n)
        return Neighbors(ids, sims)

    @functools.cached_property
    @report_damage
    def graph(self) -> Transition | None:
        """S, the normalised graph of elements; None unless it was built with `with_graph`."""
        if not self.params.with_graph or (self.manifest.segments and not self.has_lists):
            return None
        if not self.manifest.segments:
            for name in GRAPH_FILES:  # a chain may go anywhere
                self._checksums[name].check_whole()
            return Transition(*(self._arrays[name] for name in GRAPH_FILES))
        lists, hidden = self.lists(), self.hidden_elements
        if hidden is not None:
            gone = hidden[lists.ids] | hidden[:, None]
            lists.ids[gone] = np.broadcast_to(np.arange(len(hidden), dtype=np.int32)[:, None], gone.shape)[gone]
        s = transition_of(lists, self.params)
        return Transition(s.indptr.view(np.int64), s.indices.view(np.int32), s.weights.astype(np.float32))

    @contextlib.contextmanager
    def reading_links(self) -> Iterator[tuple[HnswGraph, Features, bool, Sequence[Checksums]]]:
        """The links and features for a search that checks what it reads, and whether it should ask for it beforehand.

        The checksums are those of the features, the links, and the first and the other links of upper levels.
        """
        names = ("features.npy", "hnsw_links.npy", "hnsw_upper_start.npy", "hnsw_upper.npy")
        for name in ("hnsw_copies.npy", "hnsw_entry.npy"):  # these are small
            self._checksums[name].check_whole()
        links, before = HnswGraph(*(self._arrays[name] for name in HNSW_FILES)), blocks_read()
        yield links, self._features, self._links_on_disk, [self._checksums[name] for name in names]
        self._links_on_disk = blocks_read() != before

    @contextlib.contextmanager
    def reading_columns(self, ids: NDArray[np.integer]) -> Iterator[Columns]:
        """All columns as kernels take them, of which those of these elements were checked, to be read inside."""
        before = blocks_read()
        if self._columns_on_disk:
            self._fetch_columns(ids)
        yield self.kernel_columns(ids)
        self._columns_on_disk = blocks_read() != before

    @report_damage
    def columns(self, ids: NDArray[np.integer] | None = None) -> Columns:
        """All columns, of which those of these elements were checked; or all of them."""
        self._check_columns(self._column_files, self._columns, self._sound[0], ids)
        return self._columns

    def kernel_columns(self, ids: NDArray[np.integer]) -> Columns:
        """The same as kernels take them."""
        self.columns(ids)
        return self._kernel_columns

    @report_damage
    def candidates(self, images: NDArray[np.integer]) -> Columns:
        """What the second look compares with, checked for these images and as kernels take it: vectors, or columns."""
        if self._images is None:
            if self._columns_on_disk:
                self._fetch_columns(images)
            return self.kernel_columns(images)
        self._check_columns(IMAGE_FILES, self._images, self._sound[1], images)
        return self._images.for_kernels()

    def _fetch_columns(self, ids: NDArray[np.integer]) -> None:
        """Ask the system for columns all at once: from a disk, one after the other takes ages."""
        starts, stops = self._columns.starts[ids], self._columns.stops[ids]
        ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
        for array in self._column_maps:
            array.will_need(ranges)

    def _check_columns(
        self, names: Sequence[str], columns: Columns, sound: NDArray[np.uint8], ids: NDArray[np.integer] | None
    ) -> None:
        indptr, entries, values = files = [self._checksums[name] for name in names]
        if ids is None:
            for file in files:
                file.check_whole()
        if ids is None or all(file.complete for file in files):
            return
        one_value = columns.entries.dtype == np.uint8  # the scale of the column
        first = first_damaged_column(
            indptr.kernel, entries.kernel, columns.entries.itemsize, values.kernel, columns.values.itemsize, one_value,
            columns.starts, columns.stops, sound, np.ascontiguousarray(ids, np.int64),
        )  # fmt: skip
        if first >= 0:  # one of these knows its name
            column = ids[first : first + 1]
            span = columns.starts[column], columns.stops[column]
            indptr.check_rows(np.append(column, column + 1))
            entries.check_spans(*span)
            values.check_rows(column) if one_value else values.check_spans(*span)

    # --- all of it

    @report_damage
    def check_files(self, names: Iterable[str] | None = None) -> None:
        """Raise unless these files of the base, or all of them, are what was written."""
        wanted = set(self.manifest.files if names is None else names)
        if CHECKSUMS_FILE not in self.manifest.files:
            self.check_hashes(wanted)
        for name in wanted & set(self._checksums):
            self._checksums[name].check_whole()

    @report_damage
    def check_hashes(self, names: Iterable[str]) -> None:
        """The same by the hashes in the manifest: slower, but no attacker can pass them."""
        for name in set(names) & set(self.manifest.files):
            promised = self.manifest.files[name]["sha256"]
            if (found := sha256_of(base_of(self._directory, self.manifest) / name)) != promised:
                raise Damaged(
                    f"{name} has the hash {found[:12]}..., the manifest says {promised[:12]}...: it was changed or"
                    " damaged"
                )

    def check_contents(self) -> None:
        """Raise unless every file has its hash, and every id in it exists."""
        self.check_hashes(self.manifest.files)
        for checksums in self._checksums.values():
            checksums.check_whole()
        if (self._columns.stops < self._columns.starts).any():
            raise Damaged("indptr.npy goes backwards")
        elements, arrays = self.manifest.counts["elements"], self._arrays
        if self.owners is not None and self._images is not None:
            _check_ids("image_rows.npy", self._images.entries, self.image_rows)
        for name in ("hnsw_links.npy", "hnsw_upper.npy"):
            if name in arrays:
                _check_ids(name, np.maximum(arrays[name], 0), elements)  # -1 ends a list
        if self.params.with_graph:
            _check_ids("graph_indices.npy", arrays["graph_indices.npy"], elements)
            if (np.diff(arrays["graph_indptr.npy"]) < 0).any():
                raise Damaged("graph_indptr.npy goes backwards")
        if self.has_lists:
            _check_ids("list_ids.npy", arrays["list_ids.npy"], elements)
            if not np.isfinite(arrays["list_sims.npy"]).all():
                raise Damaged("list_sims.npy holds numbers that are not finite")
        if self.has_districts:
            read = self.districts.columns.decode(np.arange(len(self.districts.columns.starts)))
            _check_ids(DISTRICT_FILES[1], read.entries, len(self.districts.columns.starts))
        ids = self.ids.list_visible()
        if len(ids) and ((np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= self.manifest.next_id):
            raise Damaged("ids.npy holds an id twice, or one that was never given")
        reach = self.image_rows if self.is_pooled else self.shape[0]
        if self.is_coded:
            self._check_codes(reach)
        else:
            _check_ids("rows.npy", self._columns.entries, reach)

    def _check_codes(self, reach: int) -> None:
        columns, entries = self._columns, 0
        for start in range(0, len(columns.starts), _VERIFY_BLOCK):
            read = columns.decode(np.arange(start, min(start + _VERIFY_BLOCK, len(columns.starts))))
            _check_ids("codes.npy", read.entries, reach)
            entries += len(read.entries)
        counted = self.manifest.counts["entries"]
        if not self.manifest.segments and entries != counted:
            raise Damaged(f"codes.npy holds {entries} entries, {MANIFEST} counts {counted}")
        if not (np.isfinite(columns.values) & (columns.values >= 0)).all():
            raise Damaged("scales.npy holds numbers that are no largest entry of a column")

    def _open_items(self, base: Path, offsets: NDArray[np.int64] | None) -> Items:
        manifest, more = self.manifest, self._more
        if (offsets is None) != (ITEMS_FILE not in manifest.files):
            raise Damaged(f"only one of {ITEMS_FILE} and item_offsets.npy is there")
        text, checks = None, list[Checksums]()
        if offsets is not None:
            text, promised = map_file(base / ITEMS_FILE), manifest.files[ITEMS_FILE]["bytes"]
            if not len(text) == promised == offsets[-1]:
                raise Damaged(
                    f"{ITEMS_FILE} has {len(text)} bytes, the manifest says {promised} and item_offsets.npy"
                    f" {offsets[-1]}"
                )
            checks = [self._checksums["item_offsets.npy"], self._checksums[ITEMS_FILE]]
        if len(more.item_text):
            if offsets is None:
                offsets = np.zeros(manifest.counts["images"] + 1, np.int64)
            offsets = np.concatenate([offsets, more.item_offsets[1:] + offsets[-1]])
        elif offsets is not None and len(more.ids):
            offsets = np.concatenate([offsets, np.repeat(offsets[-1:], len(more.ids))])
        lines = None if text is None else memoryview(text)
        return Items(self.ids, lines, offsets, memoryview(more.item_text.tobytes()), checks)


@report_damage
def verify(directory: str | Path) -> int:
    """Check every hash, and every id in the columns; returns the number of bytes that were read.

    Raises `IndexBroken`, which names the file, if anything is not what was written.
    """

    def check(directory: Path, manifest: Manifest) -> int:
        Snapshot(directory, manifest).check_contents()  # opening it checks segments whole
        return size_on_disk(manifest)

    return _read_steadily(Path(directory), check)


def _read_steadily(directory: Path, read: Callable[[Path, Manifest], T]) -> T:
    """What `read` makes of an index, from files of one generation: if a writer or a forced build ends, once more."""
    while True:
        manifest = None
        try:
            before = directory.stat()
            manifest = read_manifest(directory)
            found = read(directory, manifest)
            if os.path.samestat(before, directory.stat()):
                return found
        except (Damaged, IndexBroken, OSError) as error:
            if read_manifest(directory) == manifest:
                if isinstance(error, OSError):
                    raise Damaged(f"{error.filename} cannot be read: {error.strerror}") from error
                raise


def _map_typed(directory: Path, name: str, manifest: Manifest) -> Mapped:
    mapped = map_array(directory / name)
    dtype, shape = mapped.array.dtype.name, list(mapped.array.shape)
    promised = (manifest.files[name].get("dtype"), manifest.files[name].get("shape"))
    if dtype not in ARRAY_TYPES[name]:
        raise Damaged(f"{name} holds {dtype}, expected {' or '.join(ARRAY_TYPES[name])}")
    if (dtype, shape) != promised:
        raise Damaged(f"{name} holds {dtype} of shape {shape}, the manifest says {promised[0]} of shape {promised[1]}")
    return mapped


def _checksums_of(base: Path, manifest: Manifest, mapped: dict[str, Mapped]) -> dict[str, Checksums]:
    """The checksums of all files but their own; an index from before there were any has none."""
    names = [name for name in manifest.files if name != CHECKSUMS_FILE]
    if CHECKSUMS_FILE not in mapped:
        return {name: Checksums(name) for name in names}
    sums = split_checksums(mapped[CHECKSUMS_FILE].array, manifest.files)
    found = {name: Checksums(name) for name in names if not len(sums[name])}
    for name in names:
        if name in mapped:
            array, map, offset = mapped[name]
            found[name] = Checksums.of(name, map, offset, array.itemsize * math.prod(array.shape[1:]), sums[name])
        elif name not in found:
            found[name] = Checksums.of(name, map_file(base / name), 0, 1, sums[name])
    return found


def _lay_over(base: NDArray[Any], of: NDArray[np.int32], values: NDArray[Any], count: int) -> NDArray[Any]:
    """The values of `count` elements: those of the base, but for the elements `of`, which have these."""
    if len(base) == count and not len(of):
        return base
    together = np.zeros((count, *base.shape[1:]), base.dtype)
    together[: len(base)] = base
    together[of] = values
    return together


def _spans(
    indptr: NDArray[np.int64], of: NDArray[np.int32], more: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the columns of `count` elements start and stop, if those of the elements `of` lie behind all others."""
    behind = indptr[-1]
    return (
        _lay_over(indptr[:-1], of, more[:-1] + behind, count),
        _lay_over(indptr[1:], of, more[1:] + behind, count),
    )


def _ids(base: NDArray[np.int64] | None, more: Segment, images: int) -> Ids:
    hidden = np.zeros(images, np.uint8)
    hidden[more.removed] = 1
    if base is None and (more.ids == np.arange(images - len(more.ids), images)).all():
        return Ids(images, None, hidden)
    before = np.arange(images - len(more.ids)) if base is None else base
    return Ids(images, np.concatenate([before, more.ids]), hidden)


def _check_ids(name: str, array: NDArray[np.int32], count: int) -> None:
    if array.size and not 0 <= array.min() <= array.max() < count:
        raise Damaged(f"{name} holds an id outside 0..{count - 1}")
