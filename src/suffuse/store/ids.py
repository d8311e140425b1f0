"""The ids of images, which stay, and their rows, which change when an index is compacted."""

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput


class Ids:
    """Which id the image in each row has, and which rows are hidden because their image was removed or replaced."""

    def __init__(
        self, count: int, ids: NDArray[np.int64] | None = None, hidden: NDArray[np.uint8] | None = None
    ) -> None:
        """`ids` (count,) unless they are 0, 1, 2, ...; `hidden` (count,), 1 for hidden rows, if there are any."""
        self.count = count
        self.numbers = ids
        self.hidden = np.empty(0, np.uint8) if hidden is None or not hidden.any() else hidden
        self.visible = count - int(self.hidden.sum())
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if ids is not None:
            rows = self.list_visible_rows()
            order = rows[np.argsort(ids[rows], kind="stable")]
            self._sorted = ids[order], order

    def list_visible_rows(self) -> NDArray[np.int64]:
        """All rows that are not hidden, ascending."""
        return np.flatnonzero(self.hidden == 0) if len(self.hidden) else np.arange(self.count)

    def list_visible(self) -> NDArray[np.int64]:
        """The ids of all images, ascending."""
        return self.list_visible_rows() if self._sorted is None else self._sorted[0]

    def find_row(self, id: int) -> int:
        """The row of the image with this id."""
        row = int(self.find_rows(np.array([id]))[0]) if 0 <= id < 2**62 else -1
        if row < 0:
            raise InvalidInput(self._name_missing(id))
        return row

    def find_rows(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """The rows of the images with these ids, -1 for ids that no image has."""
        ids = np.asarray(ids, np.int64)
        if self._sorted is None:
            known = (ids >= 0) & (ids < self.count)
            rows = np.where(known, ids, -1)
            if len(self.hidden):
                rows[known & (self.hidden[np.maximum(rows, 0)] != 0)] = -1
            return rows
        names, order = self._sorted
        at = np.minimum(np.searchsorted(names, ids), len(names) - 1)
        return np.where(names[at] == ids, order[at], -1) if len(names) else np.full(ids.shape, -1)

    def _name_missing(self, id: int) -> str:
        if not self.visible:
            return f"there is no image {id}; all images were removed"
        ids = self.list_visible()
        return f"there is no image {id}; ids go from {ids[0]} to {ids[-1]}" + (
            "" if len(ids) == ids[-1] - ids[0] + 1 else ", and some of them were removed"
        )
