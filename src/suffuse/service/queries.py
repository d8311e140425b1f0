"""What a request looks for: pictures, vectors, an upload, a part of one; and the queries that are remembered."""

import copy
import re
import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from suffuse import similar
from suffuse.errors import InvalidInput
from suffuse.neighbors import Features
from suffuse.online import Generation
from suffuse.service.limits import Limits
from suffuse.service.models import SearchRequest
from suffuse.service.pictures import Kept, Pictures, decoded, part
from suffuse.service.problems import Problem
from suffuse.similar import Wanted

_ITEMS = re.compile(r"i:-?[0-9]{1,10}(,-?[0-9]{1,10})*")
_NO_MODEL = Problem(409, "there is no model here to make vectors of pictures", "build the index with: suffuse images")


class Extractor(Protocol):
    """A model that makes vectors of pictures, as `suffuse.extract` has them."""

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
    query: Wanted
    file: str | None  # under which the uploaded file is kept


class Queries:
    """Requests become queries; those that cannot be told by the ids of items are remembered under random tokens."""

    def __init__(
        self, index: Generation, pictures: Pictures | None, extractor: Extractor | None, limits: Limits
    ) -> None:
        self._index, self._pictures, self._extractor, self._limits = index, pictures, extractor, limits
        self._remembered = Kept[str, _Remembered](limits.remembered, lambda _: 1)
        # Only so many bytes: the query itself outlives its file.
        self._files = Kept[str, bytes](limits.remembered_bytes, len)

    def __len__(self) -> int:
        return len(self._remembered)

    def over(self, index: Generation) -> Self:
        """The same queries, understood by another index."""
        other = copy.copy(self)
        other._index = index
        return other

    def recalled(self, token: str) -> Wanted:
        """The query of a token."""
        return self._recall(token).query

    def understood(self, request: SearchRequest, upload: bytes | None = None) -> Understood:
        """What a request looks for; `upload` is the file it is about."""
        if sum(kind is not None for kind in (request.vectors, request.query, upload)) > 1:
            raise InvalidInput("the request has several queries; give vectors, or a query, or an image")
        before = None if request.query is None else self._recall(request.query)
        positive, negative = request.positive, request.negative
        if before is not None:
            # Feedback replaces what was given before, so that it can be taken back.
            positive = list(before.query.positive) if positive is None else positive
            negative = list(before.query.negative) if negative is None else negative
        file = None if before is None else before.file
        left_out: tuple[int, ...] = ()
        if upload is not None:
            vectors: Features | None = self._extracted(upload, request.box)
            file = secrets.token_urlsafe(9)
            self._files.put(file, upload)
        elif request.box is not None:
            if before is None:
                positive, left_out = self._one_item(request)
            vectors = self._extracted(self._file(file, left_out), request.box)
        elif request.vectors is not None:
            vectors = self._index.prepare(_matrix(request.vectors))
        else:
            vectors = None if before is None else before.query.vectors
            left_out = () if before is None else before.query.left_out
        query = similar.wanted(self._index, positive or (), negative or (), vectors)
        return self._named(replace(query, left_out=left_out), file)

    def _one_item(self, request: SearchRequest) -> tuple[list[int], tuple[int, ...]]:
        """A part of one picture of the index: it is no positive any more, as other parts of it do not count."""
        if request.vectors is not None or request.positive is None or len(set(request.positive)) != 1:
            raise InvalidInput("a box is a part of one picture; give exactly one positive item, an image or a query")
        similar.wanted(self._index, request.positive)
        return [], tuple(request.positive[:1])

    def _file(self, file: str | None, item: tuple[int, ...]) -> bytes:
        """The picture that a box is a part of."""
        if item:
            if self._pictures is None:
                raise Problem(409, "the index has no pictures to take a part of", "give their folder by --images")
            return self._pictures.read(self._index.items.name(item[0]))
        data = None if file is None else self._files.get(file)
        if data is None:
            raise Problem(409, "the picture of this query is not kept (any more)", "upload it again")
        return data

    def _extracted(self, data: bytes, box: tuple[float, float, float, float] | None) -> Features:
        """The vectors of a picture, or of a part of it, in the space of the index."""
        if self._extractor is None:
            raise _NO_MODEL
        if box is not None and not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise InvalidInput("box must be x0, y0, x1, y1 with 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1")
        picture = decoded(data, self._limits.pixels)
        if box is not None:
            picture = part(picture, box)
        regional = self._index.owners is not None
        rows = self._extractor.extract_regions(picture) if regional else self._extractor.extract(picture)[None]
        if rows.shape[1] != self._index.dimensions:
            raise Problem(409, f"the model makes {rows.shape[1]} numbers, the index has {self._index.dimensions}")
        return self._index.prepare(rows)

    def _named(self, query: Wanted, file: str | None) -> Understood:
        if not len(query.vectors):
            ids = [*(str(id) for id in query.positive), *(f"-{id}" for id in query.negative)]
            return Understood("i:" + ",".join(ids), query)
        # Random, so that nobody comes upon the query of another by counting.
        token = "q-" + secrets.token_urlsafe(9)
        self._remembered.put(token, _Remembered(query, file))
        return Understood(token, query)

    def _recall(self, token: str) -> _Remembered:
        if _ITEMS.fullmatch(token):
            signed = token[2:].split(",")
            positive = [int(id) for id in signed if not id.startswith("-")]
            negative = [int(id[1:]) for id in signed if id.startswith("-")]
            if len(positive) > self._limits.positive or len(negative) > self._limits.negative:
                raise InvalidInput(
                    f"a query has at most {self._limits.positive} positive and {self._limits.negative} negative items"
                )
            return _Remembered(similar.wanted(self._index, positive, negative), None)
        if not token.startswith("q-"):
            raise InvalidInput("a query is i:3,8,-5 for items, or a token q-... of an earlier answer")
        if (kept := self._remembered.get(token)) is None:
            raise Problem(404, "this query is not remembered (any more)", "search again")
        return kept


def _matrix(vectors: list[list[float]]) -> NDArray[np.float64]:
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise InvalidInput(f"vectors have {min(lengths)} to {max(lengths)} numbers; give all of them the same length")
    return np.array(vectors, np.float64)
