"""Read an experiment: which systems (its TOML file), where and how large (the scale's TOML file), and so which cells.

experiments/main.toml            title, report, [[system]] …
experiments/scales/squadx.toml   [setting.NAME] stream, D0, seeds; [run] which experiment runs in which settings
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptdsi.errors import DataError, UsageError
from promptdsi.experiments.cells import D0, Cell, Results, keywords, options_of
from promptdsi.methods import methods
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.promptdsi import PRESETS

EXPERIMENT_KEYS = {"title", "report", "paper", "about", "system", "systems_of", "labels", "seeds", "split", "chosen_by"}
SCALE_KEYS = {"run", "setting", "sweep"}
SYSTEM_KEYS = {"label", "group", "method", "search", "seeds", "sweep", "dial", "reference", "settings"}
SETTING_KEYS = {"label", "stream", "d0", "seeds", "only", "add", "methods"}
OF_D0 = {one.name for one in dataclasses.fields(DSIMethod)}  # options that say how D0 is learned: a setting's, not a system's


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
    said, folder = read_toml(path), path.parent / "scales"
    if not (folder / f"{scale}.toml").is_file():
        there = sorted(one.stem for one in folder.glob("*.toml"))
        raise UsageError(f"{folder} has no scale {scale!r}; there are {', '.join(there) or 'none'}")
    scales = read_toml(folder / f"{scale}.toml")
    check_keys(path, said, EXPERIMENT_KEYS)
    check_keys(folder / f"{scale}.toml", scales, SCALE_KEYS)
    name = path.stem
    settings = tuple(_setting(path, scales, where) for where in scales.get("run", {}).get(name, ()))
    if not settings:
        raise UsageError(f"scale {scale} has no setting for {name}; its [run] table lists {', '.join(scales.get('run', {})) or 'nothing'}")
    systems = _systems(path, said, scales.get("sweep", {}).get(name, {}))
    if "chosen_by" in said:
        chosen = (results or Results(Path("results"))).choices(scale, said["chosen_by"])
        here = [one for one in systems if any(_runs(one, setting) for setting in settings)]
        systems = _at_chosen_dials(path, said["chosen_by"], here, chosen)
    seeds, split = tuple(said.get("seeds", ())), said.get("split", "test")
    if split not in ("dev", "test"):
        raise DataError(f"asks split {split!r}, expected dev or test", path=path)
    points = tuple(point for setting in settings for system in systems for point in _points(system, setting, seeds, split))
    return Experiment(
        name,
        said.get("title", name),
        said["report"],
        said.get("paper", ""),
        said.get("about", ""),
        scale,
        settings,
        points,
        split,
        f"experiments/{path.name}" if path.resolve().parent.name == "experiments" else path.as_posix(),
    )


def _systems(path: Path, said: dict[str, Any], sweeps: dict[str, list[Any]]) -> list[System]:
    """The systems an experiment lists, or takes from another; a scale may give them other sweeps."""
    listed = read_toml(path.parent / f"{said['systems_of']}.toml") if "systems_of" in said else said
    systems = [_system(path, one) for one in listed.get("system", ())]
    systems = [replace(one, values=tuple(sweeps[one.label])) if one.label in sweeps else one for one in systems]
    labels = said.get("labels", [system.label for system in systems])
    if missing := sorted(set(labels) - {system.label for system in systems}):
        raise DataError(f"names a system {missing[0]!r} that is not listed", path=path)
    return [system for system in systems if system.label in labels]


def _at_chosen_dials(path: Path, chooser: str, systems: list[System], chosen: dict[str, Any]) -> list[System]:
    """Systems with their dial at the chosen value. One without a choice is an error: its whole sweep would be asked test queries."""
    if missing := [one.label for one in systems if one.dial and one.label not in chosen]:
        raise DataError(f"{missing[0]!r} has no dial chosen yet; run and report {chooser}.toml to the end first", path=path)
    return [replace(one, values=(chosen[one.label],)) if one.dial else one for one in systems]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is not there", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is no TOML file: {error}", path=path) from None


def check_keys(path: Path, said: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(said) - known):
        raise DataError(f"has an unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}", path=path)


def _setting(path: Path, scales: dict[str, Any], name: str) -> Setting:
    if name not in scales.get("setting", {}):
        raise DataError(f"the scale has no [setting.{name}]", path=path)
    said = scales["setting"][name]
    check_keys(path, said, SETTING_KEYS)
    params = {option: value for option, value in keywords("rows", dict(said["d0"])).items() if option in OF_D0}
    d0 = D0(dict(said["stream"]), params)
    seeds, only = tuple(said.get("seeds", (0,))), tuple(said.get("only", ()))
    if unknown := [option for option in said.get("add", {}) if not any(option in options_of(method) for method in methods())]:
        raise DataError(f"[setting.{name}] gives an option {unknown[0]!r} that no method has", path=path)
    return Setting(name, said.get("label", name), d0, seeds, only, dict(said.get("add", {})), dict(said.get("methods", {})))


def _system(path: Path, said: dict[str, Any]) -> System:
    for key in ("label", "method"):
        if key not in said:
            raise DataError(f"a [[system]] has no {key}", path=path)
    params = {key: value for key, value in said.items() if key not in SYSTEM_KEYS}
    sweep = said.get("sweep", ())
    if bool(sweep) != bool(said.get("dial")):
        raise DataError(f"system {said['label']!r}: dial and sweep come together", path=path)
    return System(
        said["label"],
        said.get("group", ""),
        said["method"],
        params,
        said.get("search", 0),
        said.get("dial", ""),
        tuple(sweep),
        said.get("reference", False),
        tuple(said.get("seeds", ())),
        tuple(said.get("settings", ())),
    )


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
    preset = {option: value for option, value in PRESETS.get(name or "paper", {}).items() if option not in OF_D0}
    return preset, {option: value for option, value in params.items() if option != "preset"}


def _runs(system: System, setting: Setting) -> bool:
    """Whether a system runs in a setting: each may name the other."""
    return (not setting.only or system.label in setting.only) and (not system.settings or setting.name in system.settings)


def _points(system: System, setting: Setting, seeds: tuple[int, ...], split: str) -> list[Point]:
    if not _runs(system, setting):
        return []
    found = []
    for value in system.values or (None,):
        # From the weakest to the strongest: a preset, D0's settings, what the setting says of later corpora and of the
        # method, the system itself with its dial.
        known = options_of(system.method)
        shared = {name: value for name, value in {**setting.d0.params, **setting.add}.items() if name in known and name != "seed"}
        preset, own = split_preset(system.params)
        special = setting.methods.get(system.method, {})
        params = keywords(system.method, preset, shared, special, turned(own, system.dial, value))
        at_once = system.seeds or seeds or setting.seeds
        cells = tuple(Cell(setting.d0, system.method, params, seed, system.search, split, system.label) for seed in at_once)
        found.append(Point(system, setting, value, cells, split))
    return found
