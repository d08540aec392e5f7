"""What a run is, and what it writes: runs/NAME.json, one record per run and per D0."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PlainSerializer, PositiveInt, model_validator

from promptdsi.aliases import RUN_RECORD, renamed
from promptdsi.bench.schema import Params, Split
from promptdsi.methods.promptdsi import PromptDSI

FORMAT = 2  # of records; 1 had other keys (promptdsi/aliases.py)
RankAndGain = Annotated[tuple[PositiveInt, float], Field(strict=False)]  # JSON has no tuples
# split → step → corpus → query: the rank of its relevant document, or every rank with its gain where there are several
Ranks = dict[Split, dict[str, list[list[PositiveInt | list[RankAndGain]]]]]


class CorpusSizes(BaseModel):
    corpus: str
    documents: NonNegativeInt
    train: NonNegativeInt
    dev: NonNegativeInt
    test: NonNegativeInt
    pseudo: NonNegativeInt


class StreamData(BaseModel):
    """What the numbers of a record are about; `sizes` lists held-out documents after the corpora of the stream."""

    stream: str
    split: Params = {}
    sizes: list[CorpusSizes]
    queries: dict[Split, list[str]]  # a checksum of the queries and judgements of each corpus

    @property
    def corpora(self) -> list[CorpusSizes]:
        return self.sizes[: len(next(iter(self.queries.values())))]


class StepRecord(BaseModel):
    """One `add`."""

    corpus: str = ""
    documents: NonNegativeInt
    seconds: float
    training_seconds: float = 0.0
    training_queries: NonNegativeInt = 0
    training_steps: NonNegativeInt = 0


class SearchRecord(BaseModel):
    """Settings that were searched before the run: every one tried, and the one chosen."""

    chosen: dict[str, float]
    tried: list[dict[str, float]] = []


class TopicRecord(BaseModel):
    words: list[list[str]]
    weights: list[list[float]]
    counts: list[int]
    examples: list[list[str]] | None = None


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class D0:
    """How D0 is learned, once for all methods: a stream, and parameters of `rows` in dotted form."""

    __pydantic_config__ = ConfigDict(strict=False)  # a record is strict, but describes its run as a table

    stream: Params
    params: Params

    @property
    def key(self) -> str:
        return digest([self.stream, self.params])

    @property
    def file(self) -> str:
        return f"d0-{self.key}"


@dataclass(frozen=True)
class Run:
    """One method with one seed on one stream; what it is made of names its file, so that experiments share runs.

    `params` are the method's parameters that differ from its defaults, in dotted form; D0's are among them.
    """

    __pydantic_config__ = ConfigDict(strict=False)

    d0: D0
    method: str
    params: Params
    seed: int
    search: int = 0  # settings tried on held-out documents before the run (IncDSI)
    split: Split = "test"  # what it is evaluated on; a run that serves a choice is evaluated on the dev split alone
    label: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        split = [] if self.split == "test" else [self.split]
        return digest([self.d0.stream, self.d0.params, self.method, self.params, self.seed, self.search, *split])

    @property
    def file(self) -> str:
        variant = f"-{self.params.get('prompts', PromptDSI.prompts)}" if self.method == PromptDSI.name else ""
        return f"{self.method.replace('*', '-star')}{variant}-{self.seed}-{self.key}"


def described_d0(content: Any) -> Any:
    """A D0 from the two keys a record describes it by."""
    return {"stream": content.get("stream"), "params": content.get("d0")} if isinstance(content, dict) else content


def described_run(content: Any) -> Any:
    """A run from its description in a record, which is flat."""
    if not isinstance(content, dict):
        return content
    return {"d0": described_d0(content)} | {name: value for name, value in content.items() if name not in ("stream", "d0")}


def describe(run: D0 | Run) -> Params:
    """The description of a run, or a D0, in a record."""
    if isinstance(run, D0):
        return {"stream": run.stream, "d0": run.params}
    return describe(run.d0) | {name: getattr(run, name) for name in ("method", "params", "seed", "search", "split")}


class Record(BaseModel, strict=True):
    """What runs and D0s have in common."""

    format: int = FORMAT
    versions: dict[str, str]
    data: StreamData
    ranks: Ranks

    @model_validator(mode="before")
    @classmethod
    def check_format(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("format", FORMAT) not in (1, FORMAT):
            raise ValueError(f"has record format {content['format']}; this release reads formats 1 and {FORMAT}")
        return renamed(content, RUN_RECORD) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def check_ranks(self) -> Self:
        for split, steps in self.ranks.items():
            sizes = [getattr(corpus, split) for corpus in self.data.sizes]
            for step, corpora in steps.items():
                if [len(queries) for queries in corpora] != sizes[: int(step) + 1]:
                    raise ValueError(f"ranks of {split} after step {step} are not one per query of D0 to D{step}")
            if "0" not in steps:
                raise ValueError(f"ranks of {split} before the first new corpus are missing")
        return self


class RunRecord(Record):
    """runs/METHOD-SEED-KEY.json"""

    run: Annotated[Run, BeforeValidator(described_run), PlainSerializer(describe)]
    d0_sha256: str | None = None  # the checkpoint it started from; none where a method learns D0 itself
    fit_seconds: float
    search_seconds: float = 0.0
    searched: SearchRecord | None = None
    steps: list[StepRecord]
    rehearsal_free: bool
    trained_parameters: NonNegativeInt
    extra_bytes: NonNegativeInt
    queries_per_second: float
    prompt_counts: dict[Split, list[list[int]]] | None = None
    topics: TopicRecord | None = None

    @property
    def add_seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def total_seconds(self) -> float:
        return self.fit_seconds + self.search_seconds + self.add_seconds


class D0Record(Record):
    """runs/d0-KEY.json"""

    run: Annotated[D0, BeforeValidator(described_d0), PlainSerializer(describe)]
    sha256: str
    seconds: float
    examples: NonNegativeInt
    steps: NonNegativeInt
    losses: list[float]

    @property
    def total_seconds(self) -> float:
        return self.seconds
