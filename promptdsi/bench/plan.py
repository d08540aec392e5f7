"""Read an experiment: which systems (its TOML file), where and how large (the scale's TOML file), and so which cells.

experiments/main.toml            title, report, [[system]] …
experiments/scales/squadx.toml   [setting.NAME] stream, D0, seeds; [run] which experiment runs in which settings
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptdsi.bench import reports
from promptdsi.bench.cells import D0, Cell, Results, keywords, options_of, recorded_params
from promptdsi.bench.written import ExperimentFile, ScaleFile, read_toml
from promptdsi.corpus.sources import build_stream, source_names
from promptdsi.discovery import modules_of
from promptdsi.errors import DataError, UsageError
from promptdsi.methods import methods
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.promptdsi import PRESETS

OF_D0 = options_of("rows").keys() & options_of("incdsi").keys()  # options that say how D0 is learned: a setting's, not a system's


@dataclass(frozen=True)
class Setting:
    """Where an experiment runs: a stream, how D0 is learned on it, the seeds of the continual stage."""

    name: str
    label: str
    d0: D0
    seeds: tuple[int, ...]
    only: tuple[str, ...]  # labels of the systems that run here; empty = all
    add: dict[str, Any]  # keywords for the corpora after D0, where a method has them
    methods: dict[str, dict[str, Any]]  # keywords of single methods


@dataclass(frozen=True)
class System:
    """A line of a table: a method with its keywords; with a `dial`, one point per value of it."""

    label: str
    group: str
    method: str
    params: dict[str, Any]
    search: int = 0
    dial: str = ""
    values: tuple[Any, ...] = ()
    reference: bool = False
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """A system at one value of its dial, in one setting: a cell per seed."""

    system: System
    setting: Setting
    value: Any
    cells: tuple[Cell, ...]
    split: str = "test"

    @property
    def label(self) -> str:
        return self.system.label if not self.system.dial else f"{self.system.label} {self.value}"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    report: str
    paper: str
    about: str
    scale: str
    settings: tuple[Setting, ...]
    points: tuple[Point, ...] = field(default=())
    split: str = "test"  # the queries its figures are about
    path: str = ""  # as a command names it

    @property
    def cells(self) -> list[Cell]:
        return cells_of(self.points)


def cells_of(points: Iterable[Point]) -> list[Cell]:
    """Every run, each once, by the label it has first."""
    found: dict[str, Cell] = {}
    for cell in (cell for point in points for cell in point.cells):
        found.setdefault(cell.key, cell)
    return list(found.values())


def read_experiment(path: str | Path, scale: str, results: Results | None = None) -> Experiment:
    """The experiment of a TOML file at a scale, which is a file's name in `scales/` beside it.

    An experiment whose dials another one chooses (`chosen_by`) finds them among the results.
    """
    path = Path(path)
    said, scale_path = read_toml(path, ExperimentFile), path.parent / "scales" / f"{scale}.toml"
    if not scale_path.is_file():
        there = sorted(one.stem for one in scale_path.parent.glob("*.toml"))
        raise UsageError(f"{scale_path.parent} has no scale {scale!r}; there are {', '.join(there) or 'none'}")
    scales, name = read_toml(scale_path, ScaleFile), path.stem
    settings = tuple(_setting(scale_path, scales, where) for where in scales.run.get(name, ()))
    if not settings:
        raise UsageError(f"scale {scale} has no setting for {name}; its [run] table lists {', '.join(scales.run) or 'nothing'}")
    if said.report not in (kinds := modules_of(reports)):
        raise DataError(f"asks for a report {said.report!r}; there are {', '.join(kinds)}", path=path)
    systems = _swept(scale_path, name, _systems(path, said), scales.sweep.get(name, {}))
    if said.chosen_by:
        chosen = (results or Results(Path("results"))).choices(scale, said.chosen_by)
        here = [one for one in systems if any(_runs(one, setting) for setting in settings)]
        systems = _at_chosen_dials(path, said.chosen_by, here, chosen)
    points = tuple(point for setting in settings for system in systems for point in _points(path, system, setting, said))
    if idle := [setting.name for setting in settings if systems and not any(point.setting is setting for point in points)]:
        raise DataError(f"no system of it runs in the setting {idle[0]!r}: see `only` there and `settings` of the systems", path=path)
    return Experiment(
        name,
        said.title or name,
        said.report,
        said.paper,
        said.about,
        scale,
        settings,
        points,
        said.split,
        f"experiments/{path.name}" if path.resolve().parent.name == "experiments" else path.as_posix(),
    )


def _systems(path: Path, said: ExperimentFile) -> list[System]:
    """The systems an experiment lists, or takes from another."""
    listed = read_toml(path.parent / f"{said.systems_of}.toml", ExperimentFile) if said.systems_of else said
    systems = [
        System(one.label, one.group, one.method, one.keywords, one.search, one.dial, one.sweep, one.reference, one.seeds, one.settings)
        for one in listed.system
    ]
    names = [(one.group, one.label) for one in systems]
    if twice := [label for group, label in names if names.count((group, label)) > 1]:
        raise DataError(f"lists a system {twice[0]!r} twice", path=path)
    labels = {one.label for one in systems} if said.labels is None else set(said.labels)
    if missing := sorted(labels - {one.label for one in systems}):
        raise DataError(f"names a system {missing[0]!r} that is not listed", path=path)
    return [one for one in systems if one.label in labels]


def _swept(path: Path, name: str, systems: list[System], sweeps: dict[str, tuple[Any, ...]]) -> list[System]:
    """Systems with the sweeps a scale gives them instead of their own."""
    if unknown := sorted(set(sweeps) - {one.label for one in systems if one.dial}):
        raise DataError(f"[sweep.{name}] has {unknown[0]!r}, which is no system with a dial", path=path)
    return [replace(one, values=sweeps[one.label]) if one.label in sweeps else one for one in systems]


def _at_chosen_dials(path: Path, chooser: str, systems: list[System], chosen: dict[str, Any]) -> list[System]:
    """Systems with their dial at the chosen value. One without a choice is an error: its whole sweep would be asked test queries."""
    if missing := [one.label for one in systems if one.dial and one.label not in chosen]:
        raise DataError(f"{missing[0]!r} has no dial chosen yet; run and report {chooser}.toml to the end first", path=path)
    return [replace(one, values=(chosen[one.label],)) if one.dial else one for one in systems]


def _setting(path: Path, scales: ScaleFile, name: str) -> Setting:
    if name not in scales.setting:
        raise DataError(f"there is no [setting.{name}]", path=path)
    said = scales.setting[name]
    with blamed_on(path, f"[setting.{name}]"):
        check_stream(said.stream)
        given = keywords("rows", said.d0)
        check_values("rows", given)
        for method, own in said.methods.items():
            keywords(method, own)
        if unknown := [option for option in said.add if not any(option in options_of(method) for method in methods())]:
            raise UsageError(f"no method has an option {unknown[0]!r}")
    d0 = D0(said.stream, {option: value for option, value in given.items() if option in OF_D0})
    return Setting(name, said.label or name, d0, said.seeds, said.only, said.add, said.methods)


@contextmanager
def blamed_on(path: Path, where: str) -> Iterator[None]:
    """A mistake in what a file says is told with the file and the place."""
    try:
        yield
    except UsageError as error:
        raise DataError(f"{where}: {error}", path=path) from None


def check_stream(spec: dict[str, Any]) -> None:
    """Refuse what no stream can be built from. Files are not looked for: a report needs none."""
    options = [one for one in inspect.signature(build_stream).parameters if one not in ("text", "request")]
    known = ["source", "pseudo", "raw", "seed", *options]
    if unknown := sorted(set(spec) - set(known)):
        raise UsageError(f"stream has an unknown key {unknown[0]!r}; known are {', '.join(known)}")
    if not isinstance(spec.get("source"), str):
        raise UsageError(f"stream needs a source: a path, or one of {', '.join(source_names())}")


def check_values(method: str, params: dict[str, Any]) -> None:
    """Whether a method could be made with these keywords, before hours are spent on what comes first."""
    try:
        made = methods()[method].from_params(params)
    except UsageError as error:
        raise UsageError(f"{method}: {error}") from None
    if isinstance(made, DSIMethod):
        made.check()


def turned(params: dict[str, Any], dial: str, value: Any) -> dict[str, Any]:
    """Keywords with a dial at a value; `prompt_options.prompt_layers` reaches into a table.

    Examples
    --------
    >>> turned({"prompt_options": {"center": True}}, "prompt_options.prompt_layers", [2])
    {'prompt_options': {'center': True, 'prompt_layers': [2]}}
    """
    if not dial:
        return params
    name, _, inner = dial.partition(".")
    return params | {name: params.get(name, {}) | {inner: value} if inner else value}


def split_preset(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a system's preset says of the corpora after D0, and the system's own keywords."""
    if (name := params.get("preset")) is not None and name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    preset = {option: value for option, value in recorded_params(PRESETS.get(name or "paper", {})).items() if option not in OF_D0}
    return preset, {option: value for option, value in params.items() if option != "preset"}


def _runs(system: System, setting: Setting) -> bool:
    """Whether a system runs in a setting: each may name the other."""
    return (not setting.only or system.label in setting.only) and (not system.settings or setting.name in system.settings)


def _points(path: Path, system: System, setting: Setting, said: ExperimentFile) -> list[Point]:
    if not _runs(system, setting):
        return []
    found = []
    for value in system.values or (None,):
        # From the weakest to the strongest: a preset, D0's settings, what the setting says of later corpora and of the
        # method, the system itself with its dial.
        with blamed_on(path, f"system {system.label!r}"):
            known = options_of(system.method)
            if system.search and not issubclass(methods()[system.method], IncDSI):
                raise UsageError(f"{system.method} has no settings to search")
            shared = {name: value for name, value in {**setting.d0.params, **setting.add}.items() if name in known and name != "seed"}
            preset, own = split_preset(system.params)
            special = setting.methods.get(system.method, {})
            params = keywords(system.method, preset, shared, special, turned(own, system.dial, value))
            check_values(system.method, params)
        seeds = system.seeds or said.seeds or setting.seeds
        cells = tuple(Cell(setting.d0, system.method, params, seed, system.search, said.split, system.label) for seed in seeds)
        found.append(Point(system, setting, value, cells, said.split))
    return found
