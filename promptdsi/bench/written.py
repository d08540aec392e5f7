"""What people write by hand, experiments/NAME.toml and scales/SCALE.toml, and what a run leaves, cells/NAME.json: their shape.

A mistake is one sentence that names the file and the place in it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from promptdsi.errors import DataError

FORMAT = 1  # of cells
Split = Literal["dev", "test"]
Seeds = tuple[Annotated[int, Field(ge=0, strict=True)], ...]
Table = dict[str, Any]
Labels = tuple[str, ...]
Answer = Annotated[tuple[PositiveInt, float], Field(strict=False)]  # its rank, its gain; JSON has no tuples


class Strict(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(extra="forbid")


class SystemTable(BaseModel):
    """`[[system]]`. Keys that are not ours are keywords of the method."""

    model_config = ConfigDict(extra="allow")

    label: str
    method: str
    group: str = ""
    search: NonNegativeInt = 0
    dial: str = ""
    sweep: tuple[Any, ...] = ()
    reference: bool = False
    seeds: Seeds = ()
    settings: Labels = ()

    @model_validator(mode="after")
    def whole(self) -> Self:
        if bool(self.sweep) != bool(self.dial):
            raise ValueError(f"{self.label!r}: dial and sweep come together")
        return self

    @property
    def keywords(self) -> Table:
        return dict(self.model_extra or {})


class ExperimentFile(Strict):
    """experiments/NAME.toml"""

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


class SettingTable(Strict):
    """`[setting.NAME]` of a scale."""

    stream: Table
    d0: Table
    label: str = ""
    seeds: Annotated[Seeds, Field(min_length=1)] = (0,)
    only: Labels = ()
    add: Table = {}
    methods: dict[str, Table] = {}


class ScaleFile(Strict):
    """scales/SCALE.toml: which experiment runs in which settings, what those are, and other sweeps for a system's dial."""

    run: dict[str, Labels] = {}
    setting: dict[str, SettingTable] = {}
    sweep: dict[str, dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]]] = {}


class Corpora(BaseModel):
    """`data` of a record."""

    stream: str
    sizes: list[dict[str, Any]]
    queries: dict[Split, list[str]]


class Step(BaseModel):
    documents: NonNegativeInt
    seconds: float
    training_seconds: float = 0.0
    training_queries: NonNegativeInt = 0
    training_steps: NonNegativeInt = 0


class Record(BaseModel):
    """What every report relies on. Keys it does not know were written by another release, and stay."""

    model_config = ConfigDict(strict=True)

    format: int = FORMAT
    versions: dict[str, str]
    data: Corpora
    ranks: dict[Split, dict[str, list[list[PositiveInt | list[Answer]]]]]

    @model_validator(mode="before")
    @classmethod
    def known_format(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise ValueError(f"has cell format {content['format']}; this release reads format {FORMAT}")
        return content

    @model_validator(mode="after")
    def complete(self) -> Self:
        for split, steps in self.ranks.items():
            sizes = [corpus.get(split) for corpus in self.data.sizes]
            for step, corpora in steps.items():
                if [len(queries) for queries in corpora] != sizes[: int(step) + 1]:
                    raise ValueError(f"ranks of {split} after step {step} are not one per query of D0 to D{step}")
            if "0" not in steps:
                raise ValueError(f"ranks of {split} before the first new corpus are missing")
        return self


class CellTable(BaseModel):
    method: str
    params: Table
    seed: int
    search: int
    stream: Table
    d0: Table
    split: Split = "test"


class CellRecord(Record):
    """cells/METHOD-SEED-KEY.json"""

    cell: CellTable
    d0_sha256: str | None
    fit_seconds: float
    steps: list[Step]
    rehearsal_free: bool
    trained_parameters: NonNegativeInt
    extra_bytes: NonNegativeInt
    queries_per_second: float


class D0Table(BaseModel):
    stream: Table
    d0: Table


class D0Record(Record):
    """cells/d0-KEY.json"""

    cell: D0Table
    sha256: str
    seconds: float
    examples: NonNegativeInt
    steps: NonNegativeInt
    losses: list[float]


class Choices(BaseModel):
    """SCALE/NAME.json of an experiment that chooses dials."""

    chosen: Table


Shape = TypeVar("Shape", bound=BaseModel)


def checked(shape: type[Shape], content: Any, path: Path, *, advice: str = "") -> Shape:
    """Content in its shape; the first thing that does not fit is told, with its place."""
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            problem = f"has an unknown key {place!r}; known are {', '.join(sorted(shape_at(shape, first['loc'][:-1]).model_fields))}"
        elif first["type"] == "missing":
            problem = f"has no {place!r}"
        else:
            said = first["msg"].removeprefix("Value error, ").replace("valid tuple", "valid list")  # as TOML calls it
            problem = f"{place}: {said}" if place else said
        raise DataError(problem + advice, path=path) from None


def shape_at(shape: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel]:
    """The table a place is in: the settings of a scale are tables of their own."""
    return SettingTable if place and place[0] == "setting" else shape


def read_toml(path: Path, shape: type[Shape]) -> Shape:
    """A file written by hand."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is not there", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is no TOML file: {error}", path=path) from None
    return checked(shape, content, path)


def read_json(path: Path, shape: type[BaseModel], *, advice: str) -> dict[str, Any]:
    """A file a command wrote, as it is, once its shape is right."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is damaged ({error}){advice}", path=path) from None
    checked(shape, content, path, advice=advice)
    return dict(content)
