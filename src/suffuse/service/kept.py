"""Values that are kept as long as there is room, those that were used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """The values that were used last, as many as fit."""

    def __init__(self, room: int, size: Callable[[V], int]) -> None:
        self._room, self._size, self._used = room, size, 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which is now the last used one; None if it is not there, or no more."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of what was used longest ago."""
        with self._lock:
            if key in self._values:
                self._used -= self._size(self._values.pop(key))
            self._values[key] = value
            self._used += self._size(value)
            while self._used > self._room:
                self._used -= self._size(self._values.popitem(last=False)[1])
