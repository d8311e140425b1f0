"""A new base for an index that was changed: what a build from its images would make, with the k-NN lists it has."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import cores
from suffuse.core.features import Whitening
from suffuse.core.growth import enter_lists
from suffuse.core.neighbors import Features, Neighbors, nearest_to_elements, reorder_lists
from suffuse.core.params import Params, Progress
from suffuse.errors import InvalidInput
from suffuse.index.snapshot import Snapshot
from suffuse.offline.build import Stages, assemble, remove, run_stages
from suffuse.store.files import sync_directory, write_array, write_blocks, write_bytes, write_json
from suffuse.store.items import encode_items
from suffuse.store.locks import COMPACTING
from suffuse.store.manifest import ITEMS_FILE, LIST_FILES, Manifest
from suffuse.store.segments import Segment

# Rows that are copied, or whose lists are searched again, at a time.
_ROWS = 4096
# What goes from the old base into the new one, where it gets a fresh hash: damage must not come along. Columns, graph
# and links are made anew.
_COPIED = ("features.npy", "owners.npy", "ids.npy", "whitening_mean.npy", "whitening_projection.npy", *LIST_FILES)
_COPIED_NAMES = (ITEMS_FILE, "item_offsets.npy")


class Content(NamedTuple):
    """An index and a change of it that is not written yet."""

    directory: Path
    stored: Snapshot
    segment: Segment  # rows, owners, ids, names and what is removed; lists and columns are not looked at
    next_id: int
    params: Params  # of the new base


def make_base(content: Content, generation: int, progress: Progress | None) -> Manifest:
    """Make the new base; returns its manifest, which is yet to be written."""
    stored, segment = content.stored, content.segment
    manifest = stored.manifest
    stored.check_hashes(_COPIED + _COPIED_NAMES)
    params = dataclasses.replace(content.params, with_lists=True)
    features = np.concatenate([stored.features, segment.features]) if len(segment.features) else stored.features
    owners = None if stored.owners is None else np.concatenate([stored.owners, segment.owners])
    ids = np.concatenate([stored.name_rows(np.arange(stored.ids.count)), segment.ids])
    hidden = np.zeros(len(ids), bool)
    hidden[: len(stored.ids.hidden)] = stored.ids.hidden != 0
    hidden[segment.removed] = True
    images = np.flatnonzero(~hidden)
    images = images[np.argsort(ids[images], kind="stable")]
    elements = images if owners is None else _elements_of(owners, images, len(ids))
    if not len(elements):
        raise InvalidInput("no image would be left, and an index cannot be empty; add others first")
    work = content.directory / COMPACTING
    remove(work)
    (work / "index").mkdir(parents=True)
    (work / "lists").mkdir()
    write_json(work / "plan.json", {"params": params.to_dict()})
    index = work / "index"
    blocks = (features[elements[start : start + _ROWS]] for start in range(0, len(elements), _ROWS))
    write_blocks(index / "features.npy", np.float32, (len(elements), features.shape[1]), blocks)
    if owners is not None:
        row = np.full(len(ids), -1, np.int32)
        row[images] = np.arange(len(images))
        write_array(index / "owners.npy", row[owners[elements]])
    if (ids[images] != np.arange(len(images))).any():
        write_array(index / "ids.npy", ids[images])
    _write_whitening(index, stored.whitening)
    _write_items(index, stored, segment, images)
    if stored.has_lists:
        lists = _lists(stored, segment, features, owners, hidden)
        _write_lists(work / "lists", lists, elements, features)
    with ThreadPoolExecutor(cores()) as pool:
        build = Stages(work, len(elements), pool, progress)
        run_stages(build, params)
        made = assemble(build, params, len(images), manifest.pictures, content.next_id)
    base = f"base-{generation:06d}"
    remove(content.directory / base)
    index.rename(content.directory / base)
    sync_directory(content.directory)
    return dataclasses.replace(made, generation=generation, base=base)


def _elements_of(owners: NDArray[np.int32], images: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The regions of these images, those of the first image first."""
    rank = np.full(count, -1, np.int64)
    rank[images] = np.arange(len(images))
    kept = np.flatnonzero(rank[owners] >= 0)
    return kept[np.argsort(rank[owners[kept]], kind="stable")]


def _lists(
    stored: Snapshot, segment: Segment, features: Features, owners: NDArray[np.int32] | None, hidden: NDArray[np.bool_]
) -> Neighbors:
    """The k-NN lists of all elements after the change, hidden ones among them."""
    before = stored.lists()
    if not len(segment.features):
        return before
    return enter_lists(features, before, hidden if owners is None else hidden[owners]).lists


def _write_lists(directory: Path, lists: Neighbors, elements: NDArray[np.int64], features: Features) -> None:
    """The lists of the elements that are kept, by their new rows; those that lose somebody are searched again."""
    count, k = len(elements), lists.ids.shape[1]
    width = min(k, count)
    row = np.full(len(features), -1, np.int32)
    row[elements] = np.arange(count, dtype=np.int32)
    kept = Neighbors(row[lists.ids[elements]], lists.sims[elements])
    own = np.arange(count, dtype=np.int32)
    short = (kept.ids[:, 1:] == own[:, None]).any(axis=1)  # an element behind itself stands for nothing
    again = np.flatnonzero((kept.ids < 0).any(axis=1) | (short if width == k else True))
    if len(again):
        rows = np.ascontiguousarray(features[elements])
        for start in range(0, len(again), _ROWS):
            block = again[start : start + _ROWS]
            found = nearest_to_elements(rows, block, width)
            kept.ids[block, :width], kept.sims[block, :width] = found
    kept = Neighbors(kept.ids[:, :width], kept.sims[:, :width])
    if (np.diff(elements) < 0).any():
        # Images that were replaced stand elsewhere now, and equal similarities are listed by row.
        kept = reorder_lists(kept, np.lexsort((kept.ids, -kept.sims, kept.ids != own[:, None]), axis=1))
    write_array(directory / "ids.npy", np.ascontiguousarray(kept.ids))
    write_array(directory / "sims.npy", np.ascontiguousarray(kept.sims))


def _write_whitening(index: Path, whitening: Whitening | None) -> None:
    if whitening is not None:
        write_array(index / "whitening_mean.npy", whitening.mean)
        write_array(index / "whitening_projection.npy", whitening.projection)


def _write_items(index: Path, stored: Snapshot, segment: Segment, images: NDArray[np.int64]) -> None:
    """The lines of the images that are kept, as they are, where anybody has a name."""
    before = stored.ids.count

    def item(row: int) -> dict[str, Any]:
        if row < before:
            return stored.items.at(row)
        start, stop = segment.item_offsets[row - before : row - before + 2]
        found: dict[str, Any] = json.loads(segment.item_text[start:stop].tobytes()) if stop > start else {}
        return found

    items = [item(row) for row in images.tolist()]
    if any(items):
        text, offsets = encode_items(items)
        write_bytes(index / ITEMS_FILE, [text])
        write_array(index / "item_offsets.npy", offsets)
