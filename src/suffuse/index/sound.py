"""What is read of an index, once its pages were checked: an answer is right, or it is an error."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffuse.core.columns import Held
from suffuse.core.features import Whitening
from suffuse.core.kernels.checksums import first_damaged_column
from suffuse.store.checksums import Pages
from suffuse.store.manifest import GRAPH_FILES, IMAGE_FILES, LIST_FILES, column_files
from suffuse.store.opening import Stored, StoredLists, Transition


def features(stored: Stored) -> NDArray[np.float32]:
    """The features, all of them: what a search is compared with that looks at each."""
    stored.pages["features.npy"].check_whole()
    return stored.features


def rows(stored: Stored, elements: NDArray[np.integer]) -> NDArray[np.float32]:
    """The features of these elements alone."""
    stored.pages["features.npy"].check_rows(elements)
    chosen: NDArray[np.float32] = stored.features[elements]
    return chosen


def lists(stored: Stored) -> StoredLists | None:
    """The k-NN lists of the base and of its changes."""
    if stored.lists is not None:
        for name in LIST_FILES:
            stored.pages[name].check_whole()
    return stored.lists


def owners(stored: Stored) -> NDArray[np.int32] | None:
    """The image of each region; None if elements are images."""
    if stored.owners is not None:
        stored.pages["owners.npy"].check_whole()
    return stored.owners


def whitening(stored: Stored) -> Whitening | None:
    """What queries are whitened with."""
    if stored.whitening is not None:
        for name in ("whitening_mean.npy", "whitening_projection.npy"):
            stored.pages[name].check_whole()
    return stored.whitening


def graph(stored: Stored) -> Transition | None:
    """S of the base. A chain may go anywhere, so that it is checked as a whole."""
    if stored.graph is not None:
        for name in GRAPH_FILES:
            stored.pages[name].check_whole()
    return stored.graph


def link_pages(stored: Stored) -> list[Pages]:
    """Those under features and links, for a search that checks what it reads; what is small is checked now."""
    for name in ("hnsw_copies.npy", "hnsw_entry.npy"):
        stored.pages[name].check_whole()
    names = ("features.npy", "hnsw_links.npy", "hnsw_upper_start.npy", "hnsw_upper.npy")
    return [stored.pages[name] for name in names]


def check_columns(stored: Stored, ids: NDArray[np.integer]) -> None:
    """Raise unless the columns of these elements are what was written. After they were read: that fetches them."""
    names = ("indptr.npy", *column_files(stored.manifest.params))
    _check_held(stored, names, stored.columns, stored.known.columns, ids)


def check_candidates(stored: Stored, images: NDArray[np.integer]) -> None:
    """The same of what the second look reads of these images: their columns, or their vectors if they have any."""
    if stored.images is None:
        check_columns(stored, images)
    else:
        _check_held(stored, IMAGE_FILES, stored.images, stored.known.images, images)


def _check_held(
    stored: Stored, names: Sequence[str], held: Held, known: NDArray[np.uint8], ids: NDArray[np.integer]
) -> None:
    indptr, entries, values = files = [stored.pages[name] for name in names]
    if all(file.complete for file in files):
        return
    one_value = held.entries.dtype == np.uint8  # the scale of the column
    place = first_damaged_column(
        indptr.kernel, entries.kernel, held.entries.itemsize, values.kernel, held.values.itemsize, one_value,
        held.starts, held.stops, known, np.ascontiguousarray(ids, np.int64),
    )  # fmt: skip
    if place >= 0:  # one of these knows its name
        column = ids[place : place + 1]
        span = held.starts[column], held.stops[column]
        indptr.check_rows(np.append(column, column + 1))
        entries.check_spans(*span)
        values.check_rows(column) if one_value else values.check_spans(*span)
