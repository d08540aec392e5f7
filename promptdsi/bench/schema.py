"""The files of a study that are written by hand, NAME.toml and scales/SCALE.toml; and how files are read.

A mistake is one sentence that names the file and the key.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from promptdsi.aliases import EXPERIMENT_SYSTEM, renamed
from promptdsi.errors import DataError

Split = Literal["dev", "test"]
Seeds = tuple[Annotated[int, Field(ge=0, strict=True)], ...]
Labels = tuple[str, ...]
Params = dict[str, Any]


class SystemTable(BaseModel, extra="allow"):
    """`[[system]]`, a line of a table: keys that are not listed here are keywords of the method.

    With a swept `parameter` it has one point per value of `sweep`.
    """

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


class ExperimentFile(BaseModel, extra="forbid"):
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


class SettingTable(BaseModel, extra="forbid"):
    """`[setting.NAME]` of a scale: a stream, how D0 is learned on it, and how the corpora after D0 are."""

    stream: Params
    d0: Params
    label: str = ""
    seeds: Annotated[Seeds, Field(min_length=1)] = (0,)
    only: Labels = ()
    add: Params = {}
    methods: dict[str, Params] = {}
    tuning: str = ""
    search: NonNegativeInt | None = None  # settings tried at most, whatever a system's own `search` says


class ScaleFile(BaseModel, extra="forbid"):
    """scales/SCALE.toml: the settings, which experiment runs in which of them, and other sweeps for a system's parameter."""

    run: dict[str, Labels] = {}
    setting: dict[str, SettingTable] = {}
    sweep: dict[str, dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]]] = {}


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
