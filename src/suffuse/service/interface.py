"""What the endpoints need of an engine, wherever its index is."""

from typing import Any, NamedTuple, Protocol

from suffuse.service.limits import Limits
from suffuse.service.models import SearchRequest
from suffuse.service.pictures import Pictures
from suffuse.service.queries import Queries


class Summary(NamedTuple):
    """A generation in numbers."""

    generation: int
    images: int
    stale: float  # the share of columns that changes concern and that were not solved again


class Searching(Protocol):
    """An index that can be served; safe to use from many threads."""

    limits: Limits
    pictures: Pictures | None
    queries: Queries
    threads: int  # searches at the same time

    def summary(self) -> Summary:
        """The generation that is served, as far as it is known; asked for by the event loop, so it must not wait."""
        ...

    def warm(self) -> None:
        """Do now what would make the first request slow."""
        ...

    def follow(self) -> None:
        """Notice from now on when another process changes the index."""
        ...

    def check(self) -> None:
        """Raise a `Problem` if requests cannot be answered now."""
        ...

    def close(self) -> None:
        """Give back what is held open; it may be used again later."""
        ...

    def info(self) -> dict[str, Any]:
        """What the index holds, and what can be done with it."""
        ...

    def item(self, id: int) -> dict[str, Any]:
        """A picture as clients see it."""
        ...

    def listed(self, offset: int, limit: int, text: str, shuffle: int | None) -> dict[str, Any]:
        """A page of items."""
        ...

    def search(self, request: SearchRequest, upload: bytes | None = None) -> dict[str, Any]:
        """Hits of each method that is asked for; `upload` is the file that is searched by."""
        ...

    def explain(self, token: str, item: int, seeds: int) -> dict[str, Any]:
        """Why an item has its score for a query, by the query's token."""
        ...
