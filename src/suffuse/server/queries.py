"""What a request searches for: pictures, vectors, an upload, a part of one; and the queries that are remembered."""

import re
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.neighbors import Features
from suffuse.errors import InvalidInput
from suffuse.images import Extractor
from suffuse.images.network import Box
from suffuse.images.pictures import crop
from suffuse.index.search import Query, compose
from suffuse.index.snapshot import Searcher
from suffuse.server.models import Between, Limits, SearchRequest
from suffuse.server.pictures import LruCache, Pictures, decode_picture
from suffuse.server.problems import Problem

_ITEMS = re.compile(r"i:-?[0-9]{1,16}(,-?[0-9]{1,16})*")


class Form(NamedTuple):
    """The JSON of a request, and an uploaded picture with the name of its file."""

    text: bytes
    image: bytes | None = None
    called: str = ""


class NamedQuery(NamedTuple):
    """A query, and the token by which it can be explained and searched again."""

    token: str
    query: Query


@dataclass(frozen=True, eq=False)
class _Remembered:
    """A query that holds for every generation of an index: by ids, and by vectors in its space."""

    vectors: Features | None
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    left_out: tuple[int, ...] = ()
    file: str | None = None  # the key of the uploaded file

    def bind(self, index: Searcher) -> Query:
        """The same by the rows of one generation; a picture that is no longer there is an error."""
        if self.vectors is not None and self.vectors.shape[1] != index.shape[1]:
            raise InvalidInput("the query was made for an index that has been replaced by another one; search again")
        query = compose(index, self.positive, self.negative, self.vectors)
        # A removed picture cannot be a hit, and has no row.
        rows = index.ids.find_rows(np.array(self.left_out, np.int64)).tolist()
        return query._replace(left_out=tuple(row for row in rows if row >= 0))


class Queries:
    """Turns requests into queries; those that ids of items do not describe are remembered under random tokens.

    What is remembered outlives the generation of the index that it was made for: each method takes that of today.
    """

    def __init__(self, pictures: Pictures | None, extractor: Extractor | None, limits: Limits) -> None:
        self.pictures, self.extractor, self.limits = pictures, extractor, limits
        self._remembered = LruCache[str, _Remembered](limits.remembered, lambda _: 1)
        # Files have a limit of their own, in bytes: a query outlives its file.
        self._files = LruCache[str, bytes](limits.remembered_bytes, len)

    def __len__(self) -> int:
        return len(self._remembered)

    def recall(self, index: Searcher, token: str) -> Query:
        """The query of a token."""
        return self._find(token).bind(index)

    def understand(self, index: Searcher, request: SearchRequest, upload: bytes | None = None) -> NamedQuery:
        """The query of a request; `upload` is the file it is about."""
        if sum(kind is not None for kind in (request.vectors, request.query, upload)) > 1:
            raise InvalidInput("the request has several queries; give vectors, or a query, or an image")
        before = _Remembered(None, (), ()) if request.query is None else self._find(request.query)
        # Feedback replaces what was given before, so that it can be taken back.
        positive = before.positive if request.positive is None else request.positive
        negative = before.negative if request.negative is None else request.negative
        vectors, left_out, file = before.vectors, before.left_out, before.file
        if upload is not None:
            vectors, file = index.prepare(self.extract(index, upload, request.box)), secrets.token_urlsafe(9)
            self._files.put(file, upload)
        elif request.box is not None:
            left_out = ()
            if request.query is None:
                if request.vectors is not None or len(set(positive)) != 1:
                    wanted = "exactly one positive item, an image or a query"
                    raise InvalidInput(f"a box is a part of one picture; give {wanted}")
                compose(index, positive)
                # The other parts of the picture do not count, so it is no positive one.
                left_out, positive = tuple(positive[:1]), ()
            vectors = index.prepare(self.extract(index, self._read_file(index, file, left_out), request.box))
        elif request.vectors is not None:
            vectors = index.prepare(to_matrix(request.vectors))
        made = _Remembered(vectors, tuple(dict.fromkeys(positive)), tuple(dict.fromkeys(negative)), left_out, file)
        query = made.bind(index)
        return NamedQuery(self._remember(made), query)

    def _read_file(self, index: Searcher, file: str | None, item: tuple[int, ...]) -> bytes:
        """The picture that a box is a part of."""
        if item:
            if self.pictures is None:
                hint = "start the service with a folder of pictures"
                raise Problem(409, "the index has no pictures to take a part of", hint)
            return self.pictures.read(index.items.name(item[0]))
        data = None if file is None else self._files.get(file)
        if data is None:
            raise Problem(409, "the picture of this query is not kept (any more)", "upload it again")
        return data

    def extract(self, index: Searcher, data: bytes, box: Box | None = None) -> NDArray[np.float32]:
        """The vectors of a picture, or of a part of it, like those that the index was built from."""
        if self.extractor is None:
            raise Problem(409, "the service has no model to make vectors", "build the index with: suffuse images")
        picture = decode_picture(data, self.limits.pixels)
        if box is not None:
            picture = crop(picture, box)
        rows = self.extractor.extract_regions(picture) if index.is_regional else self.extractor.extract(picture)[None]
        if rows.shape[1] != index.dimensions:
            raise Problem(409, f"the model makes {rows.shape[1]} numbers, the index has {index.dimensions}")
        return rows

    def _remember(self, made: _Remembered) -> str:
        if made.vectors is None:
            return "i:" + ",".join([*map(str, made.positive), *(f"-{id}" for id in made.negative)])
        # Random, so that nobody finds the query of another by counting.
        token = "q-" + secrets.token_urlsafe(9)
        self._remembered.put(token, made)
        return token

    def _find(self, token: str) -> _Remembered:
        if _ITEMS.fullmatch(token):
            signed = token[2:].split(",")
            positive = tuple(int(id) for id in signed if not id.startswith("-"))
            negative = tuple(int(id[1:]) for id in signed if id.startswith("-"))
            most = self.limits
            if len(positive) > most.positive or len(negative) > most.negative:
                raise InvalidInput(f"a query has at most {most.positive} positive and {most.negative} negative items")
            return _Remembered(None, positive, negative)
        if not token.startswith("q-"):
            raise InvalidInput("a query is i:3,8,-5 for items, or a token q-... of an earlier answer")
        if (found := self._remembered.get(token)) is None:
            raise Problem(404, "this query is not remembered (any more)", "search again")
        return found


def to_matrix(vectors: list[list[float]]) -> NDArray[np.float64]:
    """Lists of numbers as an array, if they have the same length."""
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise InvalidInput(f"vectors have {min(lengths)} to {max(lengths)} numbers; give all of them the same length")
    return np.array(vectors, np.float64)


def plain_filters(request: SearchRequest) -> dict[str, Any]:
    """The filters of a request as the library takes them: a value, a list of values, or {"min": ..., "max": ...}."""
    filters = request.filter or {}
    return {name: one.model_dump() if isinstance(one, Between) else one for name, one in filters.items()}
