"""What requests and answers look like, and how much a request may ask for."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from suffuse.server.problems import CODES


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request may ask for, and how much the service keeps; /api/info shows the first group."""

    top: int = 1000  # hits
    seeds: int = 1000
    positive: int = 100  # pictures that are wanted
    negative: int = 100
    vectors: int = 100
    upload_bytes: int = 20_000_000
    pixels: int = 100_000_000  # of one picture: a small file can hold a huge one

    json_bytes: int = 8_000_000  # a hundred vectors of 2,048 numbers take half of it
    seconds: float = 30.0  # from the first byte to the answer; a change that has begun has no limit
    waiting: int = 256  # requests in work or in the queue; the next one gets 503
    remembered: int = 1000  # queries that can be searched again by their token
    remembered_bytes: int = 200_000_000  # uploaded files, for searches by a part of one
    thumb_bytes: int = 64_000_000  # thumbnails in memory

    added: int = 1000  # vectors of one change
    change_bytes: int = 64_000_000  # of the JSON of one
    changes_waiting: int = 16  # changes in work or in the queue
    refresh_seconds: float = 1.0  # between two checks whether another process has changed the index

    def select_public(self) -> dict[str, int]:
        """The limits that a client has to know."""
        names = ("top", "seeds", "positive", "negative", "vectors", "upload_bytes", "pixels")
        return {name: getattr(self, name) for name in names}


_LIMITS = Limits()

ItemId = Annotated[int, Field(ge=0, le=2**53 - 1)]
Name = Annotated[str, Field(max_length=1000)]
Scalar = Name | bool | int | float


def _give_examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Between(_Strict):
    """A range of numbers, both ends included; one of them may be missing."""

    min: float | None = None
    max: float | None = None


class SearchRequest(_Strict):
    """One query: pictures by id, or vectors, or a query that the service remembers."""

    model_config = _give_examples(
        {"positive": [3, 8], "negative": [5], "top": 24},
        {"positive": [3], "method": "diffusion", "filter": {"year": {"min": 1990}, "place": ["Oxford"]}},
        {"query": "q-3Jm0kq2yQyc", "positive": [17], "seeds": 20},
    )

    positive: list[ItemId] | None = Field(None, max_length=_LIMITS.positive, description="Pictures that are wanted.")
    negative: list[ItemId] | None = Field(None, max_length=_LIMITS.negative, description="Pictures that are not.")
    vectors: list[list[float]] | None = Field(
        None, min_length=1, max_length=_LIMITS.vectors, description="Vectors like those that the index was built from."
    )
    query: str | None = Field(None, max_length=4000, description="The token of an earlier answer, to continue.")
    top: int = Field(24, ge=1, le=_LIMITS.top, description="Hits in each list.")
    seeds: int = Field(10, ge=1, le=_LIMITS.seeds, description="Nearest elements that diffusion starts from.")
    method: Literal["diffusion", "knn", "both"] = "both"
    refine: bool = Field(True, description="Re-rank the first hits of diffusion: the second look.")
    box: tuple[float, float, float, float] | None = Field(
        None, description="Search for a part of the picture: x0, y0, x1, y1 as fractions of its width and height."
    )
    filter: dict[str, Between | list[Scalar] | Scalar] | None = Field(
        None, max_length=20, description="Only pictures with this metadata: a value, one of several, or a range."
    )


class About(_Strict):
    """Name and metadata of an uploaded picture; without a name it has that of the file."""

    name: Name | None = None
    metadata: dict[str, Any] | None = None


class AddRequest(_Strict):
    """Pictures to add, by their vectors; in an index of regions `owners` has the picture of each vector, from 0 on."""

    model_config = _give_examples({"vectors": [[0.6, 0.8]], "names": ["oxford.jpg"], "metadata": [{"year": 1998}]})

    vectors: list[list[float]] = Field(min_length=1, max_length=_LIMITS.added, description="Like those of the index.")
    owners: list[Annotated[int, Field(ge=0, lt=_LIMITS.added)]] | None = None
    names: list[Name] | None = Field(None, description="A name for each picture: its path below the image folder.")
    metadata: list[dict[str, Any]] | None = Field(None, description="Fields to filter by, for each picture.")


class ReplaceRequest(About):
    """New vectors of one picture: one, or those of its regions; name and metadata stay unless they are given."""

    model_config = _give_examples({"vectors": [[0.6, 0.8]], "metadata": {"year": 1999}})

    vectors: list[list[float]] = Field(min_length=1, max_length=_LIMITS.added)


class Problem(BaseModel):
    """What went wrong, and what to do."""

    code: str = Field(json_schema_extra={"enum": list(dict.fromkeys(CODES.values()))})
    message: str
    hint: str | None


class ProblemAnswer(BaseModel):
    """The shape of every answer that is not a success."""

    model_config = _give_examples({"error": {"code": "not_found", "message": "there is no item 99999", "hint": None}})
    error: Problem


class Item(BaseModel):
    """A picture of the index."""

    model_config = _give_examples(
        {
            "id": 3,
            "name": "trips/oxford.jpg",
            "metadata": {"year": 1998},
            "image": "/api/items/3/image",
            "thumb": "/api/items/3/thumb",
        }
    )
    id: int
    name: str
    metadata: dict[str, Any]
    image: str | None = Field(description="The address of the file; null without pictures.")
    thumb: str | None


class Hit(Item):
    """A picture that was found."""

    score: float | None
    rank: int
    other_rank: int | None = Field(description="Its rank by the other method, if that is within the first 1000.")


class Ranking(BaseModel):
    """The hits of one method."""

    took_ms: float
    hits: list[Hit]


class SearchAnswer(BaseModel):
    """The hits of each method that was asked for; `query` can be explained, and searched again."""

    query: str
    took_ms: float
    results: dict[Literal["diffusion", "knn"], Ranking]


class Page(BaseModel):
    """Some of the pictures, and how many there are."""

    total: int
    offset: int
    items: list[Item]


class MetadataField(BaseModel):
    """A field of the metadata that can be filtered by."""

    type: Literal["string", "number", "boolean"]
    values: list[str | bool] | None = None
    min: float | None = None
    max: float | None = None


class Info(BaseModel):
    """What the index holds, and what the service can do with it."""

    name: str
    images: int
    elements: int
    dimensions: int
    params: dict[str, Any]
    methods: list[str]
    regional: bool
    pictures: bool
    upload: bool
    explain: bool
    chain: bool
    metadata: dict[str, MetadataField]
    limits: dict[str, int]
    version: str


class Contribution(BaseModel):
    """What a seed contributes to the score: amount = weight * entry."""

    seed: Item
    similarity: float
    weight: float
    entry: float
    amount: float
    share: float


class Chain(BaseModel):
    """The strongest chain of pictures from a seed to the hit: strength = start * product of the steps."""

    nodes: list[Item]
    steps: list[float]
    start: float
    strength: float


class ExplainAnswer(BaseModel):
    """Why a picture has its score, before the second look."""

    item: Item
    score: float
    contributions: list[Contribution]
    chain: Chain | None
    chain_missing: str | None


class Status(BaseModel):
    """That the service is there."""

    status: Literal["ok"]


class ChangeAnswer(BaseModel):
    """What a change did; searches see it already."""

    ids: list[int] = Field(description="Of the pictures that were added or replaced.")
    removed: int = Field(description="How many pictures were removed or replaced.")
    saved: bool | None = Field(description="Whether an uploaded file was written into the image folder.")
    generation: int
    images: int
    stale: float = Field(description="The share of columns that a compaction would solve again.")
    took_ms: float


class ChangeProgress(BaseModel):
    """The progress of a compaction: stages follow each other, and each counts its own rows."""

    stage: str
    done: int
    total: int


class ChangeError(Problem):
    """Why the last compaction failed."""

    at: str


class ChangesAnswer(BaseModel):
    """The generation that is served, and the changes in work."""

    enabled: bool = Field(description="Whether this service takes changes.")
    generation: int
    images: int
    stale: float = Field(description="The share of columns that a compaction would solve again.")
    changing: int = Field(description="Changes in work or in the queue.")
    compacting: bool
    progress: ChangeProgress | None
    last_error: ChangeError | None = Field(description="Of the last compaction, if it failed.")
