"""What a request looks for: pictures, vectors, an upload, a part of one; and the queries that are remembered."""

import re
import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from suffuse.core.neighbors import Features
from suffuse.errors import InvalidInput
from suffuse.index import similar
from suffuse.index.online import Generation
from suffuse.index.similar import Wanted
from suffuse.server.models import Limits, SearchRequest
from suffuse.server.pictures import Kept, Pictures, decoded, part
from suffuse.server.problems import Problem

_ITEMS = re.compile(r"i:-?[0-9]{1,16}(,-?[0-9]{1,16})*")


class Form(NamedTuple):
    """A picture, what its file was called, and the JSON beside it."""

    text: bytes
    image: bytes
    called: str


class Extractor(Protocol):
    """A model that makes vectors of pictures, as `suffuse.images` has them."""

    def extract(self, picture: Image.Image, /) -> NDArray[np.float32]:
        """The vector of a picture, (d,)."""
        ...

    def extract_regions(self, picture: Image.Image, /) -> NDArray[np.float32]:
        """The vectors of its regions, (r, d)."""
        ...


class Understood(NamedTuple):
    """A query, and the token by which it can be explained and asked again."""

    token: str
    query: Wanted


@dataclass(frozen=True, eq=False)
class _Remembered:
    """A query in words that hold for every generation of an index: ids, and vectors in its space."""

    vectors: Features | None
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    left_out: tuple[int, ...] = ()
    file: str | None = None  # under which the uploaded file is kept

    def over(self, index: Generation) -> Wanted:
        """The same by the places of one generation; a picture that is no longer there is told."""
        if self.vectors is not None and self.vectors.shape[1] != index.shape[1]:
            raise InvalidInput("the query was made for an index that has been replaced by another one; search again")
        query = similar.wanted(index, self.positive, self.negative, self.vectors)
        # What has been removed cannot be a hit anyway.
        places = index.ids.places(np.array(self.left_out, np.int64)).tolist()
        return replace(query, left_out=tuple(place for place in places if place >= 0))


class Queries:
    """Requests become queries; those that cannot be told by the ids of items are remembered under random tokens.

    What is remembered outlives the generation of the index that it was asked of: each method takes the one to ask now.
    """

    def __init__(self, pictures: Pictures | None, extractor: Extractor | None, limits: Limits) -> None:
        self._pictures, self._extractor, self._limits = pictures, extractor, limits
        self._remembered = Kept[str, _Remembered](limits.remembered, lambda _: 1)
        # Only so many bytes: the query itself outlives its file.
        self._files = Kept[str, bytes](limits.remembered_bytes, len)

    def __len__(self) -> int:
        return len(self._remembered)

    def recalled(self, index: Generation, token: str) -> Wanted:
        """The query of a token."""
        return self._recall(token).over(index)

    def understood(self, index: Generation, request: SearchRequest, upload: bytes | None = None) -> Understood:
        """What a request looks for; `upload` is the file it is about."""
        if sum(kind is not None for kind in (request.vectors, request.query, upload)) > 1:
            raise InvalidInput("the request has several queries; give vectors, or a query, or an image")
        before = None if request.query is None else self._recall(request.query)
        positive, negative = request.positive, request.negative
        if before is not None:
            # Feedback replaces what was given before, so that it can be taken back.
            positive = list(before.positive) if positive is None else positive
            negative = list(before.negative) if negative is None else negative
        file = None if before is None else before.file
        left_out: tuple[int, ...] = ()
        if upload is not None:
            vectors: Features | None = index.prepare(self.extracted(index, upload, request.box))
            file = secrets.token_urlsafe(9)
            self._files.put(file, upload)
        elif request.box is not None:
            if before is None:
                positive, left_out = _one_item(index, request)
            vectors = index.prepare(self.extracted(index, self._file(index, file, left_out), request.box))
        elif request.vectors is not None:
            vectors = index.prepare(matrix(request.vectors))
        else:
            vectors = None if before is None else before.vectors
            left_out = () if before is None else before.left_out
        asked = _Remembered(
            vectors, tuple(dict.fromkeys(positive or ())), tuple(dict.fromkeys(negative or ())), left_out, file
        )
        query = asked.over(index)
        return Understood(self._named(asked), query)

    def _file(self, index: Generation, file: str | None, item: tuple[int, ...]) -> bytes:
        """The picture that a box is a part of."""
        if item:
            if self._pictures is None:
                raise Problem(409, "the index has no pictures to take a part of", "give their folder by --images")
            return self._pictures.read(index.items.name(item[0]))
        data = None if file is None else self._files.get(file)
        if data is None:
            raise Problem(409, "the picture of this query is not kept (any more)", "upload it again")
        return data

    def extracted(
        self, index: Generation, data: bytes, box: tuple[float, float, float, float] | None = None
    ) -> NDArray[np.float32]:
        """The vectors of a picture, or of a part of it, as an index is built from them."""
        if self._extractor is None:
            raise Problem(
                409, "there is no model here to make vectors of pictures", "build the index with: suffuse images"
            )
        if box is not None and not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise InvalidInput("box must be x0, y0, x1, y1 with 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1")
        picture = decoded(data, self._limits.pixels)
        if box is not None:
            picture = part(picture, box)
        regional = index.owners is not None
        rows = self._extractor.extract_regions(picture) if regional else self._extractor.extract(picture)[None]
        if rows.shape[1] != index.dimensions:
            raise Problem(409, f"the model makes {rows.shape[1]} numbers, the index has {index.dimensions}")
        return rows

    def _named(self, asked: _Remembered) -> str:
        if asked.vectors is None:
            return "i:" + ",".join([*map(str, asked.positive), *(f"-{id}" for id in asked.negative)])
        # Random, so that nobody comes upon the query of another by counting.
        token = "q-" + secrets.token_urlsafe(9)
        self._remembered.put(token, asked)
        return token

    def _recall(self, token: str) -> _Remembered:
        if _ITEMS.fullmatch(token):
            signed = token[2:].split(",")
            positive = tuple(int(id) for id in signed if not id.startswith("-"))
            negative = tuple(int(id[1:]) for id in signed if id.startswith("-"))
            if len(positive) > self._limits.positive or len(negative) > self._limits.negative:
                raise InvalidInput(
                    f"a query has at most {self._limits.positive} positive and {self._limits.negative} negative items"
                )
            return _Remembered(None, positive, negative)
        if not token.startswith("q-"):
            raise InvalidInput("a query is i:3,8,-5 for items, or a token q-... of an earlier answer")
        if (kept := self._remembered.get(token)) is None:
            raise Problem(404, "this query is not remembered (any more)", "search again")
        return kept


def _one_item(index: Generation, request: SearchRequest) -> tuple[list[int], tuple[int, ...]]:
    """A part of one picture of the index: it is no positive any more, as other parts of it do not count."""
    if request.vectors is not None or request.positive is None or len(set(request.positive)) != 1:
        raise InvalidInput("a box is a part of one picture; give exactly one positive item, an image or a query")
    similar.wanted(index, request.positive)
    return [], tuple(request.positive[:1])


def matrix(vectors: list[list[float]]) -> NDArray[np.float64]:
    """Lists of numbers as an array, if they have the same length."""
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise InvalidInput(f"vectors have {min(lengths)} to {max(lengths)} numbers; give all of them the same length")
    return np.array(vectors, np.float64)
