"""What a run is, and what it writes: runs/NAME.json, one record per run and per D0."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PlainSerializer, PositiveInt, model_validator

from promptdsi.aliases import RUN_RECORD, renamed
from promptdsi.bench.schema import Params, Split
from promptdsi.errors import UsageError
from promptdsi.methods import methods
from promptdsi.methods.base import Method
from promptdsi.methods.options import current_params, flatten_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.prompts import make_strategy

OPTIONS = "prompt_options"  # its keys belong to the prompt strategy
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
    queryids: list[list[str]] | None = None  # of dev queries whose document is of the topic they select; ids, because records hold no text


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def default_params(method: str) -> Params:
    """Every parameter of a method with its default, in dotted form."""
    if method not in methods():
        raise UsageError(f"no method {method!r}; there are {', '.join(methods())}")
    return {name: as_json(value) for name, value in flatten_params(methods()[method]().get_params()).items()}


def changed_params(method: str, *layers: Params) -> Params:
    """The parameters of a method that differ from its defaults; a later layer is stronger, and may name a preset.

    Only what differs: a parameter that a later release adds with a neutral default does not change the name of a run.
    """
    defaults = default_params(method)
    given: Params = {}
    for layer in layers:
        preset = layer.get("preset", "paper")
        if preset not in PRESETS:
            raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
        given |= {name: value for name, value in flatten_params(PRESETS[preset]).items() if name in defaults}
        params = flatten_params(current_params({name: value for name, value in layer.items() if name != "preset"}, defaults))
        if OPTIONS in params:
            params[OPTIONS] = given.get(OPTIONS, {}) | params[OPTIONS]
        given |= params
    if unknown := [name for name in given if name not in defaults]:
        raise UsageError(f"{method} has no option {unknown[0]!r}; it has {', '.join(defaults)}")
    if given.get(OPTIONS):
        options = make_strategy(str(given.get("prompts", defaults["prompts"]))).get_params()
        given[OPTIONS] = {name: as_json(value) for name, value in given[OPTIONS].items() if as_json(value) != as_json(options.get(name))}
    return {name: as_json(value) for name, value in sorted(given.items()) if as_json(value) != defaults[name]}


def make_method(method: str, params: Params, **machine: Any) -> Method:
    """A method from dotted parameters; keywords of the machine (seed, offline) reach the methods that have them."""
    defaults = default_params(method)
    return methods()[method].from_params(params | {name: value for name, value in machine.items() if name in defaults})


def as_json(value: Any) -> Any:
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class D0:
    """How D0 is learned, once for all methods: a stream, and parameters of `rows` in dotted form."""

    __pydantic_config__ = ConfigDict(strict=False)  # a record is strict, but describes its run as a table

    method: ClassVar[str] = "rows"

    stream: Params
    params: Params

    @property
    def d0(self) -> D0:
        return self

    @property
    def key(self) -> str:
        return digest([self.stream, self.params])

    @property
    def file(self) -> str:
        return f"d0-{self.key}"

    def in_present_names(self) -> D0:
        params = changed_params("rows", self.params)
        return D0(self.stream, {name: value for name, value in params.items() if not name.startswith("add.")})


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

    def in_present_names(self) -> Run:
        return replace(self, d0=self.d0.in_present_names(), params=changed_params(self.method, self.params))


def described(content: Any) -> Any:
    """A run, or a D0, from its description in a record, which is flat."""
    if not isinstance(content, dict):
        return content
    d0 = {"stream": content.get("stream"), "params": content.get("d0")}
    rest = {name: value for name, value in content.items() if name not in ("stream", "d0")}
    return {"d0": d0} | rest if rest else d0


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
    run: D0 | Run

    @model_validator(mode="before")
    @classmethod
    def check_format(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("format", FORMAT) not in (1, FORMAT):
            raise ValueError(f"has record format {content['format']}; this release reads formats 1 and {FORMAT}")
        return renamed(content, RUN_RECORD) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def read_old_params(self) -> Self:
        if self.format == 1:
            self.format, self.run = FORMAT, self.run.in_present_names()
        return self

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

    run: Annotated[Run, BeforeValidator(described), PlainSerializer(describe)]
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

    run: Annotated[D0, BeforeValidator(described), PlainSerializer(describe)]
    sha256: str
    seconds: float
    examples: NonNegativeInt
    steps: NonNegativeInt
    losses: list[float]

    @property
    def total_seconds(self) -> float:
        return self.seconds
