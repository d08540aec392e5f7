"""The files of a study and their shape: NAME.toml and scales/SCALE.toml, written by hand, and runs/NAME.json, written by a run.

A mistake is one sentence that names the file and the key.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from promptdsi.aliases import EXPERIMENT_SYSTEM, RUN_RECORD, renamed
from promptdsi.errors import DataError

FORMAT = 2  # of records; 1 had other keys (promptdsi/aliases.py)
Split = Literal["dev", "test"]
Seeds = tuple[Annotated[int, Field(ge=0, strict=True)], ...]
Labels = tuple[str, ...]
Params = dict[str, Any]
RankAndGain = Annotated[tuple[PositiveInt, float], Field(strict=False)]  # JSON has no tuples
# split → step → corpus → query: the rank of its relevant document, or every rank with its gain where there are several
Ranks = dict[Split, dict[str, list[list[PositiveInt | list[RankAndGain]]]]]


class StrictTable(BaseModel):
    """A TOML table whose keys are all known."""

    model_config = ConfigDict(extra="forbid")


class SystemTable(BaseModel):
    """`[[system]]`: keys that are not listed here are keywords of the method."""

    model_config = ConfigDict(extra="allow")

    label: str
    method: str
    group: str = ""
    search: NonNegativeInt = 0
    parameter: str = ""
    sweep: tuple[Any, ...] = ()
    reference: bool = False
    seeds: Seeds = ()
    settings: Labels = ()

    @model_validator(mode="before")
    @classmethod
    def read_old_keys(cls, content: Any) -> Any:
        return renamed(content, EXPERIMENT_SYSTEM) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def check_sweep(self) -> Self:
        if bool(self.sweep) != bool(self.parameter):
            raise ValueError(f"{self.label!r}: parameter and sweep come together")
        return self

    @property
    def params(self) -> Params:
        return dict(self.model_extra or {})


class ExperimentFile(StrictTable):
    """NAME.toml: which systems are compared, and by which report."""

    report: str
    title: str = ""
    paper: str = ""
    about: str = ""
    split: Split = "test"
    seeds: Seeds = ()
    system: tuple[SystemTable, ...] = ()
    systems_of: str = ""
    chosen_by: str = ""
    labels: Labels | None = None


class SettingTable(StrictTable):
    """`[setting.NAME]` of a scale: a stream, how D0 is learned on it, and how the corpora after D0 are."""

    stream: Params
    d0: Params
    label: str = ""
    seeds: Annotated[Seeds, Field(min_length=1)] = (0,)
    only: Labels = ()
    add: Params = {}
    methods: dict[str, Params] = {}


class ScaleFile(StrictTable):
    """scales/SCALE.toml: the settings, which experiment runs in which of them, and other sweeps for a system's parameter."""

    run: dict[str, Labels] = {}
    setting: dict[str, SettingTable] = {}
    sweep: dict[str, dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]]] = {}


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


class D0Description(BaseModel):
    stream: Params
    d0: Params


class RunDescription(D0Description):
    method: str
    params: Params
    seed: int
    search: int
    split: Split = "test"


class Record(BaseModel):
    """What runs and D0s have in common."""

    model_config = ConfigDict(strict=True)

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

    run: RunDescription
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

    run: D0Description
    sha256: str
    seconds: float
    examples: NonNegativeInt
    steps: NonNegativeInt
    losses: list[float]

    @property
    def total_seconds(self) -> float:
        return self.seconds


class ChoiceRecord(BaseModel):
    """SCALE/NAME.json of an experiment that chooses the values of swept parameters."""

    chosen: Params


Shape = TypeVar("Shape", bound=BaseModel)


def validate(shape: type[Shape], content: Any, path: Path, *, advice: str = "") -> Shape:
    """Content as a typed record; the first thing that does not fit is an error that names its key."""
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            table = SettingTable if first["loc"][0] == "setting" else shape
            problem = f"has an unknown key {key!r}; known are {', '.join(sorted(table.model_fields))}"
        elif first["type"] == "missing":
            problem = f"has no {key!r}"
        else:
            message = first["msg"].removeprefix("Value error, ").replace("valid tuple", "valid list")  # as TOML calls it
            problem = f"{key}: {message}" if key else message
        raise DataError(problem + advice, path=path) from None


def read_toml(path: Path, shape: type[Shape]) -> Shape:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is not there", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is no TOML file: {error}", path=path) from None
    return validate(shape, content, path)


def read_json(path: Path, shape: type[Shape], *, advice: str) -> Shape:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is damaged ({error}){advice}", path=path) from None
    return validate(shape, content, path, advice=advice)
