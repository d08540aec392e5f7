"""Bodies and responses of the API, with examples: the OpenAPI description is made from these."""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

from typing import Annotated, Any, Self, get_type_hints

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from promptdsi.corpus.corpus import MAX_ID_CHARACTERS
from promptdsi.index import results
from promptdsi.index.results import MOST_CONDITIONS

MAX_QUERY, MAX_K, MAX_BATCH, MAX_HITS = 4096, 1000, 256, 20_000
# To JSON 3.0 is an integer as 3 is; "3" and true are not.
Integral = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, pattern=r"\S", examples=["how do bats find their way in the dark"])]
Generation = Annotated[int, Field(ge=1, le=2**31, examples=[2])]
Docid = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", examples=["weather-jet-stream"])
]


class RequestBody(BaseModel):
    """A body in which an unknown field is an error. Only the first is reported: a million would take a while."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def no_unknown_field(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := next((key for key in given if key not in cls.model_fields), None)) is not None:
            raise ValueError(f"there is no field {unknown[:50]!r}; there are {', '.join(cls.model_fields)}")
        return given


Condition = Annotated[str, Field(min_length=3, max_length=1000, examples=["year>=2020", "docid=notes/*"])]


class SearchBody(RequestBody):
    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)]
    k: Annotated[int, Field(ge=1, le=MAX_K, description="number of hits per query"), Integral] = 10
    explain: Annotated[bool, Field(description="explain the rank of each hit")] = False
    min_confidence: Annotated[float, Field(ge=0, le=1, description="leave out hits whose confidence is lower")] = 0.0
    where: Annotated[list[Condition], Field(max_length=MOST_CONDITIONS, description="conditions on metadata that all must hold")] = []
    at: Annotated[Generation | None, Integral] = None

    @model_validator(mode="after")
    def bounded(self) -> Self:
        if len(self.queries) * self.k > MAX_HITS:
            raise ValueError(f"{len(self.queries)} queries with {self.k} hits each are more than {MAX_HITS:,} hits")
        return self

    @property
    def queries(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query


class NewDocument(BaseModel):
    """A document to add; further fields are stored as metadata."""

    model_config = ConfigDict(extra="allow")

    docid: Annotated[
        Docid, Field(validation_alias=AliasChoices("docid", "_id"), examples=["notes/tea.txt"], description="`_id` is accepted too")
    ]
    text: Annotated[str, Field(min_length=1, pattern=r"\S", examples=["Green tea wants water of 75 degrees."])]
    title: Annotated[str, Field(examples=["Tea"])] = ""


class AddBody(RequestBody):
    documents: Annotated[list[NewDocument], Field(min_length=1, fail_fast=True)]


class UndeleteBody(RequestBody):
    docids: Annotated[list[Docid], Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)]


class RollbackBody(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"generation": 1}]})

    generation: Annotated[
        Generation | None, Integral, Field(description="the one to go back to; by default the one before the last change")
    ] = None


class FeedbackBody(RequestBody):
    query: Annotated[QueryText, Field(examples=["why does the jet stream bend"])]
    docid: Docid


def model_of(record: Any, **nested: Any) -> type[BaseModel]:
    """A model with the fields of a named tuple of the index, so that they are listed once."""
    hints = get_type_hints(record) | nested
    fields: dict[str, Any] = {name: (hints[name], record._field_defaults.get(name, ...)) for name in record._fields}
    return create_model(record.__name__, **fields)


Neighbor = model_of(results.Neighbor)
Why = model_of(results.Why, neighbors=list[Neighbor])
Hit = model_of(results.Hit, why=Why | None)
Truncated = Annotated[bool, Field(description="the query is longer than the model reads; its end was left out")]
Certain = Annotated[bool, Field(description="false where the first hit is only the nearest there is, and probably not right")]
QueryHits = create_model("QueryHits", query=str, truncated=Truncated, certain=Certain, hits=list[Hit])
SearchResponse = create_model("SearchResponse", generation=int, results=list[QueryHits])
Facet = create_model("Facet", field=str, values=list[tuple[str, int]])
FolderResponse = model_of(results.FolderSummary)
SyncResponse = create_model("SyncResponse", generation=int, folders=list[FolderResponse])
FacetsResponse = create_model("FacetsResponse", generation=int, facets=list[Facet])
DocumentResponse = create_model(
    "DocumentResponse", docid=str, title=str, text=str, metadata=dict[str, Any], corpus=str, since=int, generation=int
)
ReadDocument = create_model("ReadDocument", docid=str, title=str, text=str, metadata=dict[str, Any])
ReadResponse = create_model("ReadResponse", document=ReadDocument, notes=list[str])
FeedbackResponse = create_model("FeedbackResponse", generation=int, documents=int, rank_before=int, rank_after=int)
ChangeResponse = create_model("ChangeResponse", generation=int, documents=int)
RetentionRecord = create_model("RetentionRecord", generation=int, corpus=str, split=str, n=int, hits1=float, hits10=float)
RetentionResponse = create_model("RetentionResponse", records=list[RetentionRecord])
CorpusResponse = create_model("CorpusResponse", name=str, since=int, documents=int, fast=bool)
ModelFields: dict[str, Any] = {"method": str, "prompts": str, "backbone": str, "width": int, "store": str, "words": bool}
ServerFields: dict[str, Any] = {"writable": bool, "limits": dict[str, int], "version": str}
IndexResponse = create_model(
    "IndexResponse", name=str, generation=int, documents=int, corpora=list[CorpusResponse], **ModelFields, **ServerFields
)


class ErrorDetail(BaseModel):
    code: str
    message: str
    hint: str | None = None


RequestErrorDetail = create_model("RequestErrorDetail", __base__=ErrorDetail, request_id=str)
ErrorResponse = create_model("ErrorResponse", __doc__="Every response that is not a result.", error=RequestErrorDetail)


class GenerationSummary(BaseModel):
    """What made a generation, and how many documents can be found in it."""

    generation: int
    parent: int | None
    kind: str
    time: str
    documents: int
    corpus: str | None = None
    added: int = 0
    updated: int = 0
    removed: int = 0
    corrections: int = 0
    seconds: float | None = None
    drift: dict[str, float] | None = None
    to: int | None = None


GenerationsResponse = create_model("GenerationsResponse", current=int, generations=list[GenerationSummary])
