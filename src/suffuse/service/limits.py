"""How much one request may ask for, and how much the service keeps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The first group is shown by /api/info; bytes and pixels are counted while they come, not after."""

    top: int = 1000  # hits
    seeds: int = 1000
    positive: int = 100  # pictures that are wanted
    negative: int = 100
    vectors: int = 100
    upload_bytes: int = 20_000_000
    pixels: int = 100_000_000  # of one picture: a small file can hold a huge one

    json_bytes: int = 8_000_000  # a hundred vectors of 2,048 numbers take half of it
    seconds: float = 30.0  # from the first byte to the answer; a change has more, from when it has come in
    waiting: int = 256  # requests in work or in line; the next one is told to come again
    remembered: int = 1000  # queries that can be asked again by their token
    remembered_bytes: int = 200_000_000  # uploaded files that are kept, so that a part of one can be searched
    thumb_bytes: int = 64_000_000  # thumbnails in memory

    added: int = 1000  # vectors of one change
    change_bytes: int = 64_000_000  # of the JSON of one
    changes_waiting: int = 16  # changes in work or in line
    refresh_seconds: float = 1.0  # between two looks whether another process has changed the index

    def shown(self) -> dict[str, int]:
        """What a client has to know."""
        names = ("top", "seeds", "positive", "negative", "vectors", "upload_bytes", "pixels")
        return {name: getattr(self, name) for name in names}
