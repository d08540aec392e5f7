"""What goes over the wire, with examples: the OpenAPI description is made from this."""

from __future__ import annotations

from typing import Annotated, Any, Self, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from promptdsi.corpus.records import MAX_ID_CHARACTERS
from promptdsi.index import results

MAX_QUERY, MAX_K, MAX_BATCH, MAX_HITS = 4096, 1000, 256, 20_000


def whole(value: Any) -> Any:
    """To JSON 3.0 is an integer as 3 is; "3" and true are not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole)
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, pattern=r"\S", examples=["how do bats find their way in the dark"])]
Generation = Annotated[int, Field(ge=1, le=2**31, examples=[2])]
Docid = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", examples=["weather-jet-stream"])
]


class Strict(BaseModel):
    """A request: what it does not know is a mistake worth telling. The first one is: a million would take a while."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def known(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := next((key for key in given if key not in cls.model_fields), None)) is not None:
            raise ValueError(f"there is no field {unknown[:50]!r}")
        return given


class SearchRequest(Strict):
    query: Query | Annotated[list[Query], Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)]
    k: Annotated[int, Field(ge=1, le=MAX_K, description="how many documents to find"), Whole] = 10
    explain: Annotated[bool, Field(description="say why each document stands where it does")] = False
    at: Annotated[Generation | None, Whole] = None

    @model_validator(mode="after")
    def bounded(self) -> Self:
        if len(self.queries) * self.k > MAX_HITS:
            raise ValueError(f"{len(self.queries)} queries with {self.k} hits each are more than {MAX_HITS:,} hits")
        return self

    @property
    def queries(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query


def described(kind: Any, **nested: Any) -> Any:
    """A model with the fields of a named tuple of the index, so that there is one list of them."""
    hints = get_type_hints(kind) | nested
    fields: dict[str, Any] = {name: (hints[name], kind._field_defaults.get(name, ...)) for name in kind._fields}
    return create_model(kind.__name__, **fields)


Neighbor = described(results.Neighbor)
Why = described(results.Why, neighbors=list[Neighbor])  # type: ignore[valid-type]
Hit = described(results.Hit, why=Why | None)


class Result(BaseModel):
    query: str
    cut: Annotated[bool, Field(description="the query is longer than the model reads")]
    hits: list[Hit]  # type: ignore[valid-type]


class SearchResponse(BaseModel):
    generation: int
    results: list[Result]


class Document(BaseModel):
    docid: str
    title: str
    text: str
    metadata: dict[str, Any]
    corpus: str
    since: int
    generation: int


class NewDocument(BaseModel):
    """More fields are kept as metadata."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[Docid, Field(alias="_id")]
    text: Annotated[str, Field(min_length=1, pattern=r"\S", examples=["Green tea wants water of 75 degrees."])]
    title: Annotated[str, Field(examples=["Tea"])] = ""


class AddRequest(Strict):
    documents: Annotated[list[NewDocument], Field(min_length=1, fail_fast=True)]


class Undelete(Strict):
    docids: Annotated[list[Docid], Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)]


class Changed(BaseModel):
    generation: int
    documents: int


class Problem(BaseModel):
    code: str
    message: str
    hint: str | None = None


class Failure(BaseModel):
    """Every answer that is no result."""

    class Error(Problem):
        request_id: str

    error: Error


class Job(BaseModel):
    id: str
    state: str
    corpus: str
    documents: int
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    seconds: float = 0.0
    report: dict[str, Any] | None = None
    error: Problem | None = None


class Jobs(BaseModel):
    jobs: list[Job]


class CorpusInfo(BaseModel):
    name: str
    since: int
    documents: int
    fast: bool


class IndexInfo(BaseModel):
    name: str
    generation: int
    documents: int
    corpora: list[CorpusInfo]
    method: str
    prompts: str
    backbone: str
    width: int
    store: str
    writable: bool
    limits: dict[str, int]
    version: str


class GenerationInfo(BaseModel):
    generation: int
    parent: int | None
    kind: str
    time: str
    corpus: str | None
    added: int
    updated: int
    removed: int
    documents: int
    seconds: float | None
    drift: dict[str, float] | None
    to: int | None


class Generations(BaseModel):
    current: int
    generations: list[GenerationInfo]


class Retained(BaseModel):
    generation: int
    corpus: str
    split: str
    n: int
    hits1: float
    hits10: float


class Retention(BaseModel):
    records: list[Retained]


class Point(BaseModel):
    docid: str
    title: str
    x: float
    y: float
    corpus: int
    topic: int | None


class Topic(BaseModel):
    words: list[str]
    count: int


class MapInfo(BaseModel):
    generation: int
    documents: int
    shown: int
    kept: Annotated[float, Field(description="share of the five nearest documents by row that are among the ten nearest on the map")]
    corpora: list[str]
    topics: list[Topic]
    points: list[Point]
