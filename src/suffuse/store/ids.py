"""The ids of images, which stay, and the places of their rows, which change when an index is compacted."""

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput


class Ids:
    """Which id the image at each place has, and which places are hidden because their image was removed or replaced."""

    def __init__(
        self, count: int, ids: NDArray[np.int64] | None = None, hidden: NDArray[np.uint8] | None = None
    ) -> None:
        """`ids` (count,) unless they are 0, 1, 2, ...; `hidden` (count,), 1 for hidden places, if there are any."""
        self.count = count
        self._ids = ids
        self.hidden = np.empty(0, np.uint8) if hidden is None or not hidden.any() else hidden
        self.visible = count - int(self.hidden.sum())
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if ids is not None:
            places = self.shown_places()
            order = places[np.argsort(ids[places], kind="stable")]
            self._sorted = ids[order], order

    def shown_places(self) -> NDArray[np.int64]:
        """All places that are not hidden, ascending."""
        return np.flatnonzero(self.hidden == 0) if len(self.hidden) else np.arange(self.count)

    def shown(self) -> NDArray[np.int64]:
        """The ids of all images, ascending."""
        return self.shown_places() if self._sorted is None else self._sorted[0]

    def of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of the images at these places; -1 stays -1."""
        if self._ids is None:
            return places
        return np.where(places < 0, -1, self._ids[places])

    def place(self, id: int) -> int:
        """Where the image with this id is."""
        place = int(self.places(np.array([id]))[0]) if 0 <= id < 2**62 else -1
        if place < 0:
            raise InvalidInput(self._missing(id))
        return place

    def places(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where the images with these ids are, -1 for ids that no image has."""
        ids = np.asarray(ids, np.int64)
        if self._sorted is None:
            known = (ids >= 0) & (ids < self.count)
            places = np.where(known, ids, -1)
            if len(self.hidden):
                places[known & (self.hidden[np.maximum(places, 0)] != 0)] = -1
            return places
        names, order = self._sorted
        at = np.minimum(np.searchsorted(names, ids), len(names) - 1)
        return np.where(names[at] == ids, order[at], -1) if len(names) else np.full(ids.shape, -1)

    def _missing(self, id: int) -> str:
        if not self.visible:
            return f"there is no image {id}; all images were removed"
        shown = self.shown()
        return f"there is no image {id}; ids go from {shown[0]} to {shown[-1]}" + (
            "" if len(shown) == shown[-1] - shown[0] + 1 else ", and some of them were removed"
        )
