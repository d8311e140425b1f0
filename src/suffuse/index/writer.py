"""Change an index: add, remove and replace images, and compact what that leaves behind.

A change writes one segment beside the files of the index, or, if it is exact or compacts, a new base; then it switches
the manifest. A reader has the old generation or the new one, and so has whoever looks after a crash.

    fast   the k-NN lists and the columns of what is new and of its neighbours; columns further away go stale. What is
           removed is hidden, and leaves the graph when the index is compacted.
    exact  everything as if the index had been built from what is left: the lists are kept, all columns are solved again
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged
from suffuse.core.columns import Columns, image_type, image_vectors
from suffuse.core.districts import adopt_homes, place_columns
from suffuse.core.features import check_owners
from suffuse.core.growth import alpha_s_of, concerned, enter_lists, extend_stale, solve, to_solve, touched_nodes
from suffuse.core.neighbors import Features
from suffuse.core.params import Params, Progress
from suffuse.errors import ChangeFailed, IndexProblem, InvalidInput, InvalidParams
from suffuse.index.compact import Content, make_base
from suffuse.index.snapshot import Snapshot
from suffuse.store.files import map_extended, report_damage, sync_directory
from suffuse.store.items import check_items, encode_items
from suffuse.store.locks import lock_writer, remove_leftovers
from suffuse.store.manifest import (
    FORMAT_VERSION,
    LIST_FILES,
    Manifest,
    base_of,
    column_files,
    read_manifest,
    write_manifest,
)
from suffuse.store.segments import (
    Extent,
    Segment,
    empty_segment,
    find_misfit,
    merge_segments,
    read_segments,
    update_stale,
    write_segment,
)

Mode = Literal["fast", "exact"]
MODES = ("fast", "exact")

# Bytes of a segment below which its size does not matter: it is always written together with other small ones.
_SMALL = 1 << 16

# The files of the base that a fast change reads whole; damage of them would enter the segment.
_READ_ALWAYS = ("indptr.npy", "owners.npy", "ids.npy")
_READ_TO_ADD = ("features.npy", "whitening_mean.npy", "whitening_projection.npy", *LIST_FILES)


class ChangeSummary(NamedTuple):
    """What a change did, and what it took."""

    ids: NDArray[np.int64]  # of the images that were added or replaced
    removed: int  # images that are no longer there
    lists: int  # k-NN lists of other elements that it changed
    solved: int  # columns that were solved
    stale: float  # the share of all columns that later changes concern and that are not solved again
    images: int
    generation: int
    seconds: float


class Addition(NamedTuple):
    """Images to be added: rows as `build` takes them, and where elements are regions, which image each belongs to."""

    features: NDArray[Any]
    owners: NDArray[Any] | None = None
    names: Sequence[Any] | None = None


def change(
    path: str | Path,
    *,
    added: Addition | None = None,
    removed: Sequence[int] | NDArray[np.integer] = (),
    replace: bool = False,
    mode: Mode = "fast",
    progress: Progress | None = None,
) -> ChangeSummary:
    """Add images, remove others, or both at once; with `replace`, what is added takes the ids of what is removed."""
    if mode not in MODES:
        raise InvalidParams(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    return _write(path, lambda writer: writer.change(added, removed, replace=replace, mode=mode, progress=progress))


def upgrade(path: str | Path, *, progress: Progress | None = None) -> ChangeSummary:
    """Make the index what a build by the rules of today would make; its lists are kept, nothing is searched again."""
    return _write(path, lambda writer: writer.upgrade(progress))


def compact(path: str | Path, *, progress: Progress | None = None) -> ChangeSummary:
    """Make the index what a build from its images would make: without what was removed, and with no stale column."""
    return _write(path, lambda writer: writer.compact(progress))


@report_damage
def _write(path: str | Path, work: "Callable[[_Writer], ChangeSummary]") -> ChangeSummary:
    directory = Path(path)
    read_manifest(directory)  # so that nothing is put into a directory that is no index
    try:
        with lock_writer(directory):
            writer = _Writer(directory)  # where this fails, the manifest may be damaged: nothing must be removed by it
            try:
                return work(writer)
            except BaseException:
                _tidy_up(directory)
                raise
    except IndexProblem:
        raise  # some of them are also an OSError
    except OSError as error:
        raise ChangeFailed(
            f"{error.strerror or error} ({error.filename or directory}); the index is as it was before"
        ) from error


def _tidy_up(directory: Path) -> None:
    """Remove what a change that failed has written: on a full disk, others wait for the room."""
    with contextlib.suppress(OSError, IndexProblem):
        remove_leftovers(directory, read_manifest(directory))


class _Writer:
    """The only writer of an index, for one change."""

    def __init__(self, directory: Path) -> None:
        self._began = time.perf_counter()
        self._directory = directory
        self._stored = Snapshot.open(directory)
        self._manifest = self._stored.manifest
        remove_leftovers(directory, self._manifest)  # not before the index is known to be whole without them

    def change(
        self,
        added: Addition | None,
        removed: Sequence[int] | NDArray[np.integer],
        *,
        replace: bool,
        mode: Mode,
        progress: Progress | None,
    ) -> ChangeSummary:
        stored = self._stored
        rows = self._find_rows(removed)
        segment = empty_segment(self._manifest.params, stored.shape[1])._replace(removed=rows.astype(np.int32))
        next_id = self._manifest.next_id
        if added is not None:
            segment = self._add_rows(segment, added, replace)
            if not replace:
                segment = segment._replace(ids=np.arange(next_id, next_id + len(segment.ids)))
                next_id += len(segment.ids)
        if not len(segment.ids) and not len(rows):
            return self._summarize(segment, self._manifest, 0, 0)
        if mode == "exact" or (not stored.has_lists and len(segment.ids)):
            return self._rebuild(segment, next_id, progress)
        read = _READ_ALWAYS + column_files(stored.manifest.params) + (_READ_TO_ADD if len(segment.features) else ())
        stored.check_files(read)
        lists = solved = 0
        if len(segment.features):
            segment, lists, solved = self._solve(segment)
        if len(rows):
            segment = self._mark_stale(segment, rows)
        return self._summarize(segment, self._commit_segment(segment, next_id), lists, solved)

    def compact(self, progress: Progress | None) -> ChangeSummary:
        segment = empty_segment(self._manifest.params, self._stored.shape[1])
        if not self._manifest.segments:
            return self._summarize(segment, self._manifest, 0, 0)
        return self._rebuild(segment, self._manifest.next_id, progress)

    def upgrade(self, progress: Progress | None) -> ChangeSummary:
        params = self._manifest.params
        segment = empty_segment(params, self._stored.shape[1])
        if params.graph != "paper":
            return self._summarize(segment, self._manifest, 0, 0)
        newer = dataclasses.replace(params, graph="local")
        return self._rebuild(segment, self._manifest.next_id, progress, newer)

    def _find_rows(self, ids: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
        """Where the images are that are to go."""
        wanted = np.asarray(ids)
        if wanted.size and (wanted.ndim != 1 or wanted.dtype.kind not in "iu"):
            raise InvalidInput(f"ids must be a list of whole numbers, got {wanted.dtype} of shape {wanted.shape}")
        names, counts = np.unique(wanted.astype(np.int64), return_counts=True)
        if (counts > 1).any():
            raise InvalidInput(f"image {names[counts > 1][0]} is named {counts[counts > 1][0]} times; name it once")
        for id in wanted[self._stored.ids.find_rows(wanted.astype(np.int64)) < 0][:1].tolist():
            self._stored.ids.find_row(id)  # which says what there is
        return self._stored.ids.find_rows(wanted.astype(np.int64))

    def _add_rows(self, segment: Segment, added: Addition, replace: bool) -> Segment:
        """The rows, owners and names of what is added, as the index holds them."""
        stored = self._stored
        regional, rows = stored.is_regional, stored.prepare(added.features, "features")
        if regional != (added.owners is not None):
            raise InvalidInput(
                "this index holds regions: give owners, the image of each row"
                if regional
                else "this index holds images, and owners were given; leave them out, or add to an index of regions"
            )
        owners = None if added.owners is None else check_owners(added.owners, len(rows), "owners")
        images = len(rows) if owners is None else int(owners.max()) + 1
        if added.names is not None and owners is not None:
            images = max(images, len(added.names))
        if replace and images != len(segment.removed):
            raise InvalidInput(f"{images} images for {len(segment.removed)} ids; give one image for each id")
        if stored.shape[0] + len(rows) > 2**31 - 1:
            raise InvalidInput(f"the index would hold {stored.shape[0] + len(rows)} elements, more than 2**31 - 1")
        if added.names is not None:
            items = check_items(added.names, images)
        elif replace:
            items = [stored.items.at(row) for row in segment.removed.tolist()]
        else:
            items = [{}] * images
        text, offsets = encode_items(items) if any(items) else (b"", np.zeros(images + 1, np.int64))
        first = stored.ids.count
        return segment._replace(
            features=np.ascontiguousarray(rows, np.float32),
            owners=segment.owners if owners is None else (owners + first).astype(np.int32),
            ids=stored.name_rows(segment.removed.astype(np.int64)) if replace else np.arange(images),
            item_text=np.frombuffer(text, np.uint8),
            item_offsets=offsets,
        )

    def _solve(self, segment: Segment) -> tuple[Segment, int, int]:
        """The segment with the lists that change and the columns of what is new and of its neighbours.

        And how many lists and columns that are. Stale columns get entries for what is new, unless they hold images.
        """
        stored, params = self._stored, self._manifest.params
        old, rows = stored.shape[0], stored.ids.count + len(segment.ids)
        features = self._extend_features(segment)
        owners = None if stored.owners is None else np.concatenate([stored.owners, segment.owners])
        hidden = self._hide_elements(segment, owners, rows)
        before = stored.lists()
        grown = enter_lists(features, before, hidden)
        graph = alpha_s_of(grown.lists, params)
        new = np.arange(old, len(features))
        pooled = stored.is_pooled
        pool = owners if pooled else None
        order, solved = solve(graph, to_solve(graph, new, hidden), params, features, pool, stored.columns())
        touched = touched_nodes(before, grown, graph, params)
        met = touched if not pooled else np.unique(stored.owners[touched[touched < old]])  # type: ignore[index]
        reach = stored.ids.count if pooled else old
        known = np.concatenate([stored.stale_elements, order[order < old]])
        stale = update_stale(concerned(stored.columns(), met, reach, known), order, order[:0])
        stale = stale[~hidden[stale]]
        column_of, count, columns = order, len(order), solved.columns
        if not pooled:
            is_stale = np.zeros(old, bool)
            is_stale[stale] = True
            of_new = np.flatnonzero(order >= old)
            found = columns.decode(of_new)
            others, more = extend_stale(stored.columns(), found, order[of_new], params, is_stale)
            column_of, columns = np.concatenate([order, others]), Columns.concat([columns, *more])
        if stored.has_districts:
            segment = self._place(segment, grown.lists.ids[old:], found, order[of_new])
        changed = np.concatenate([grown.changed, new])
        segment = segment._replace(
            list_of=changed.astype(np.int32),
            list_ids=grown.lists.ids[changed],
            list_sims=grown.lists.sims[changed],
            column_of=column_of,
            column_indptr=columns.indptr,
            column_entries=columns.entries,
            column_values=columns.values,
            stale=stale,
        )
        if stored.has_image_vectors and owners is not None:
            segment = self._add_image_vectors(segment, owners, rows)
        return segment, len(grown.changed), count

    def _place(self, segment: Segment, lists: NDArray[np.int32], found: Columns, of: NDArray[np.int32]) -> Segment:
        """The segment with the districts of new elements, by their lists and columns; `found` are those `of` them."""
        members, new = self._stored.districts.members, len(segment.features)
        home = np.concatenate([members[:, 0], np.full(new, -1, np.int32)])
        home = adopt_homes(home, home < 0, np.arange(len(members), len(home)), lists)
        placed = place_columns(found.heads(np.argsort(of)), home)
        return segment._replace(districts=placed[0], district_shares=placed[1])

    def _extend_features(self, segment: Segment) -> Features:
        """All rows in one array; only those of segments are copied."""
        mapped = base_of(self._directory, self._manifest) / "features.npy"
        since = self._stored.features[self._manifest.counts["elements"] :]
        return map_extended(mapped, np.concatenate([since, segment.features])).array

    def _hide_elements(self, segment: Segment, owners: NDArray[np.int32] | None, rows: int) -> NDArray[np.bool_]:
        hidden = np.zeros(rows, bool)
        before = self._stored.ids.hidden
        hidden[: len(before)] = before != 0
        hidden[segment.removed] = True
        return hidden if owners is None else hidden[owners]

    def _add_image_vectors(self, segment: Segment, owners: NDArray[np.int32], rows: int) -> Segment:
        """The vectors of the images whose regions have other columns now."""
        stored, params = self._stored, self._manifest.params
        solved = Columns.of(segment.column_indptr, segment.column_entries, segment.column_values)
        number_of = np.full(len(owners), -1, np.int64)
        number_of[segment.column_of] = np.arange(len(segment.column_of))
        images = np.unique(owners[segment.column_of])
        vectors = image_vectors(
            lambda ids: _check_poolable(_take_newest(stored.columns(), solved, ids, number_of[ids]), rows),
            owners, rows, params.keep, image_type(params), images,
        )  # fmt: skip
        return segment._replace(
            image_of=images.astype(np.int32),
            image_indptr=vectors.indptr,
            image_rows=vectors.entries,
            image_values=vectors.values,
        )

    def _mark_stale(self, segment: Segment, rows: NDArray[np.int64]) -> Segment:
        """The segment with the columns that removed images concern as stale ones."""
        stored = self._stored
        nodes = rows
        if stored.owners is not None and not stored.is_pooled:
            nodes = np.flatnonzero(np.isin(stored.owners, rows))
        reach = stored.ids.count if stored.is_pooled else stored.shape[0]
        known = np.concatenate([stored.stale_elements, segment.column_of])
        met = concerned(stored.columns(), nodes, reach, known[known < stored.shape[0]])
        stale = update_stale(met, segment.column_of, segment.stale)
        owners = stored.owners
        hidden = self._hide_elements(segment._replace(ids=segment.ids[:0]), owners, stored.ids.count)
        stale = stale[(stale >= len(hidden)) | ~hidden[np.minimum(stale, len(hidden) - 1)]]
        return segment._replace(stale=stale)

    def _commit_segment(self, segment: Segment, next_id: int) -> Manifest:
        """Write the segment, together with older ones that are not much larger, so that there are never many."""
        manifest, directory = self._manifest, self._directory
        extent = Extent(self._stored.shape[0] + len(segment.features), self._stored.ids.count + len(segment.ids))
        kept = list(manifest.segments)
        size = max(_SMALL, sum(array.nbytes for array in segment))
        if kept and kept[-1]["bytes"] <= 2 * size:
            older, _ = read_segments(directory, manifest)
            while kept and kept[-1]["bytes"] <= 2 * size:
                size += kept.pop()["bytes"]
                segment = merge_segments([older[len(kept)], segment])
        generation = manifest.generation + 1
        now = dataclasses.replace(manifest, generation=generation, next_id=next_id, version=FORMAT_VERSION)
        if what := find_misfit(segment, now, extent):
            # Nothing that was given can lead to this: checked so that a damaged base does not spoil what is opened.
            raise Damaged(f"the change would not fit the index: {what}")
        written = write_segment(directory, f"segment-{generation:06d}.npz", segment)
        sync_directory(directory)
        return self._switch(dataclasses.replace(now, segments=[*kept, written]))

    def _rebuild(
        self, segment: Segment, next_id: int, progress: Progress | None, params: Params | None = None
    ) -> ChangeSummary:
        """A new base of everything that is left, with other parameters if any are given."""
        generation = self._manifest.generation + 1
        content = Content(self._directory, self._stored, segment, next_id, params or self._manifest.params)
        manifest = make_base(content, generation, progress)
        manifest = self._switch(manifest)
        return self._summarize(segment, manifest, 0, manifest.counts["elements"])

    def _switch(self, manifest: Manifest) -> Manifest:
        """Make a generation the one that is opened, and remove what only older ones need."""
        write_manifest(self._directory, manifest)
        try:
            sync_directory(self._directory)
        except OSError as error:
            raise ChangeFailed(
                f"{error.strerror or error} ({self._directory}); the change is there and can be searched, but may be"
                " gone after a power failure"
            ) from error
        with contextlib.suppress(OSError):
            remove_leftovers(self._directory, manifest)
        return manifest

    def _summarize(self, segment: Segment, manifest: Manifest, lists: int, solved: int) -> ChangeSummary:
        stored, rebuilt = self._stored, manifest.base != self._manifest.base
        stale = update_stale(stored.stale_elements, segment.column_of, segment.stale)
        return ChangeSummary(
            ids=segment.ids,
            removed=len(segment.removed),
            lists=lists,
            solved=solved,
            stale=0.0 if rebuilt else len(stale) / (stored.shape[0] + len(segment.features)),
            images=stored.ids.visible - len(segment.removed) + len(segment.ids),
            generation=manifest.generation,
            seconds=time.perf_counter() - self._began,
        )


def _check_poolable(columns: Columns, images: int) -> Columns:
    """Columns over images as the kernel can take them, which checks nothing; the base they are from may be damaged."""
    rows, values = columns.entries, columns.values
    if len(rows) and not (0 <= rows.min() <= rows.max() < images and np.isfinite(values).all() and values.min() >= 0):
        raise Damaged("codes.npy, scales.npy, rows.npy or values.npy holds what no column holds")
    # The kernel takes an image whose sum is zero for one that it has not met.
    return columns._replace(values=np.maximum(values, np.finfo(values.dtype).smallest_subnormal))


def _take_newest(stored: Columns, solved: Columns, ids: NDArray[np.integer], at: NDArray[np.int64]) -> Columns:
    """The columns of these elements, plain: that of what was solved with the number `at`, or the stored one for -1."""
    new = at >= 0
    both = Columns.concat([stored.decode(ids[~new]), solved.decode(at[new])])
    order = np.empty(len(ids), np.int64)
    order[np.concatenate([np.flatnonzero(~new), np.flatnonzero(new)])] = np.arange(len(ids))
    return both.decode(order)
