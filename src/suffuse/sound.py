"""What is read of an index, once its pages were checked: an answer is right, or it is an error."""

import numpy as np
from numpy.typing import NDArray

from suffuse.features import Whitening
from suffuse.manifest import GRAPH_FILES, IMAGE_FILES, LIST_FILES, column_files
from suffuse.pages import Pages
from suffuse.store import Stored, StoredLists, Transition


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
    entries, values = column_files(stored.manifest.params)
    _check_spans(stored, ids, stored.columns.starts, stored.columns.stops, ("indptr.npy", entries, values))


def check_candidates(stored: Stored, seeds: NDArray[np.integer], images: NDArray[np.integer]) -> None:
    """The same of what the second look reads: columns of seeds, and of these images, or their vectors if there are."""
    check_columns(stored, seeds)
    if stored.images is None:
        check_columns(stored, images)
    else:
        _check_spans(stored, images, stored.images.starts, stored.images.stops, IMAGE_FILES)


def _check_spans(
    stored: Stored,
    ids: NDArray[np.integer],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    names: tuple[str, str, str],
) -> None:
    indptr, *parts = names
    stored.pages[indptr].check_rows(ids)
    stored.pages[indptr].check_rows(ids + 1)
    first, last = starts[ids], stops[ids]
    for name in parts:
        if name == "scales.npy":
            stored.pages[name].check_rows(ids)
        else:
            stored.pages[name].check_spans(first, last)
