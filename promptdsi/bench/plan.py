"""Read an experiment: which systems (its TOML file), where and how large (the scale's TOML file), and so which runs.

experiments/main.toml            title, report, [[system]] …
experiments/scales/squadx.toml   [setting.NAME] stream, D0, seeds; [run] which experiment runs in which settings
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptdsi.bench.run_records import D0, Run, changed_params, default_params, make_method
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import ExperimentFile, Params, ScaleFile, Split, SystemTable, read_toml
from promptdsi.corpus.sources import build_stream, source_names
from promptdsi.errors import DataError, UsageError
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.options import current_params, flatten_params

# What D0's table says of the corpora after D0 for every system; the rest of its preset belongs to the systems.
SHARED_AFTER_D0 = ("add.row_init", "add.row_decay", "add.encoder_decay", "add.batch_size")
# What methods without rows (dense, DPR) take from a setting: nothing that says how rows are learned or queries are pooled.
SHARED_WITHOUT_ROWS = {
    *("backbone", "pseudo_queries", "encoding.max_tokens", "encoding.document_tokens", "encoding.document_windows"),
    *("fit.epochs", "fit.lr", "fit.batch_size"),
}


@dataclass(frozen=True)
class Setting:
    """Where an experiment runs: a stream, how D0 is learned on it, the seeds of the continual stage."""

    name: str
    label: str
    d0: D0
    seeds: tuple[int, ...]
    only: tuple[str, ...]  # labels of the systems that run here; empty = all
    add: Params  # parameters for the corpora after D0, for the methods that have them
    methods: dict[str, Params]  # parameters of single methods
    tuning: str = ""  # how many hyper-parameter settings were looked at, and on which split, as reports print it
    search: int | None = None  # settings tried at most by systems that search theirs


@dataclass(frozen=True)
class Point:
    """A system at one value of its swept parameter, in one setting: a run per seed."""

    system: SystemTable
    setting: Setting
    value: Any
    runs: tuple[Run, ...]
    split: Split = "test"

    @property
    def label(self) -> str:
        return self.system.label if not self.system.parameter else f"{self.system.label} {self.value}"

    @property
    def swept(self) -> str:
        """The swept parameter and its value, as tables print it."""
        return f"{self.system.parameter} {self.value}" if self.system.parameter else ""


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    report: str
    paper: str
    about: str
    scale: str
    settings: tuple[Setting, ...]
    points: tuple[Point, ...]
    split: Split
    path: Path

    @property
    def runs(self) -> list[Run]:
        return unique_runs(self.points)

    def command(self, verb: str) -> str:
        """The command that runs or reports it."""
        path = f"experiments/{self.path.name}" if self.path.resolve().parent.name == "experiments" else self.path.as_posix()
        return f"promptdsi bench {verb} {path} --scale {self.scale}"


def unique_runs(points: Iterable[Point]) -> list[Run]:
    """Every run once, by the label it has first."""
    runs: dict[str, Run] = {}
    for run in (run for point in points for run in point.runs):
        runs.setdefault(run.key, run)
    return list(runs.values())


def read_experiment(path: str | Path, scale: str, store: RunStore | None = None) -> Experiment:
    """The experiment of a TOML file at a scale, which is a file's name in `scales/` beside it.

    An experiment whose parameters another one chooses (`chosen_by`) reads them from the store.
    """
    path = Path(path)
    table, scale_path, name = read_toml(path, ExperimentFile), path.parent / "scales" / f"{scale}.toml", path.stem
    if not scale_path.is_file():
        scales = sorted(other.stem for other in scale_path.parent.glob("*.toml"))
        raise UsageError(f"{scale_path.parent} has no scale {scale!r}; there are {', '.join(scales) or 'none'}")
    scale_table = read_toml(scale_path, ScaleFile)
    settings = tuple(_setting(scale_path, scale_table, setting) for setting in scale_table.run.get(name, ()))
    if not settings:
        raise UsageError(f"scale {scale} has no setting for {name}; its [run] table lists {', '.join(scale_table.run) or 'nothing'}")
    check_report(path, table.report)
    systems, sweeps = _systems(path, table), scale_table.sweep.get(name, {})
    if unknown := sorted(set(sweeps) - {system.label for system in systems if system.parameter}):
        raise DataError(f"[sweep.{name}] has {unknown[0]!r}, which is no system with a swept parameter", path=scale_path)
    if table.chosen_by:
        chosen = (store or RunStore(Path("results"))).choices(scale, table.chosen_by)
        swept = [system.label for system in systems if system.parameter and any(_runs_in(system, setting) for setting in settings)]
        if missing := [label for label in swept if label not in chosen]:  # else its whole sweep would be evaluated on the test split
            advice = f"run and report {table.chosen_by}.toml to the end first"
            raise DataError(f"{missing[0]!r} has no chosen parameter yet; {advice}", path=path)
        sweeps = {label: (chosen[label],) for label in swept}
    systems = [system.model_copy(update={"sweep": sweeps.get(system.label, system.sweep)}) for system in systems]
    points = tuple(point for setting in settings for system in systems for point in _points(path, system, setting, table))
    if idle := [setting.name for setting in settings if systems and not any(point.setting is setting for point in points)]:
        raise DataError(f"no system of it runs in the setting {idle[0]!r}: see `only` there and `settings` of the systems", path=path)
    title = table.title or name
    return Experiment(name, title, table.report, table.paper, table.about, scale, settings, points, table.split, path)


def check_report(path: Path, report: str) -> None:
    """Refuse an experiment without its report, before hours are spent on its runs."""
    folder = path.parent / "reports"
    if not (folder / f"{report}.py").is_file():
        names = sorted(other.stem for other in folder.glob("*.py"))
        there = f"{folder} has {', '.join(names)}" if names else f"there is no report in {folder}"
        raise DataError(f"wants a report {report!r}; {there}", path=path)


def _systems(path: Path, table: ExperimentFile) -> list[SystemTable]:
    """The systems an experiment lists, or takes from another."""
    systems = (read_toml(path.parent / f"{table.systems_of}.toml", ExperimentFile) if table.systems_of else table).system
    names = [(system.group, system.label) for system in systems]
    if twice := [label for group, label in names if names.count((group, label)) > 1]:
        raise DataError(f"lists a system {twice[0]!r} twice", path=path)
    if missing := sorted(set(table.labels or ()) - {system.label for system in systems}):
        raise DataError(f"names a system {missing[0]!r} that is not listed", path=path)
    return [system for system in systems if table.labels is None or system.label in table.labels]


def _runs_in(system: SystemTable, setting: Setting) -> bool:
    """Whether a system runs in a setting: each may name the other."""
    return (not setting.only or system.label in setting.only) and (not system.settings or setting.name in system.settings)


def _setting(path: Path, scale_table: ScaleFile, name: str) -> Setting:
    if name not in scale_table.setting:
        raise DataError(f"there is no [setting.{name}]", path=path)
    table = scale_table.setting[name]
    with errors_name(path, f"[setting.{name}]"):
        check_stream(table.stream)
        params = changed_params("rows", table.d0)
        check_method("rows", params)
        for method, params_of_method in table.methods.items():
            changed_params(method, params_of_method)
        add = {name: value for name, value in params.items() if name in SHARED_AFTER_D0} | add_params(table.add)
    limits = ("rows.",) if params.get("fit.learn") == "rows" else ()  # what bounds new rows bounds D0's where only rows are trained
    d0 = D0(table.stream, {name: value for name, value in params.items() if name in d0_params() or name.startswith(limits)})
    return Setting(name, table.label or name, d0, table.seeds, table.only, add, table.methods, table.tuning, table.search)


def d0_params() -> set[str]:
    """Parameters that say how D0 is learned: a setting's, not a system's."""
    return {name for name in default_params("rows").keys() & default_params("incdsi").keys() if not name.startswith("add.")}


def add_params(table: Params) -> Params:
    """Parameters for the corpora after D0, in dotted form; a key that is no field of `add` is the name of another parameter."""
    names = {name for method in methods() for name in default_params(method)}
    add = flatten_params(current_params({f"add.{name}" if f"add.{name}" in names else name: value for name, value in table.items()}))
    if unknown := [name for name in add if name not in names]:
        raise UsageError(f"no method has an option {unknown[0]!r}")
    return add


def check_method(method: str, params: Params) -> None:
    """Check that a method can be made with these parameters, before hours are spent on what comes first."""
    try:
        instance = make_method(method, params)
    except UsageError as error:
        raise UsageError(f"{method}: {error}") from None
    if isinstance(instance, DSIMethod):
        instance.check()


@contextmanager
def errors_name(path: Path, where: str) -> Iterator[None]:
    """An error in the content of a file names the file and the table."""
    try:
        yield
    except UsageError as error:
        raise DataError(f"{where}: {error}", path=path) from None


def check_stream(spec: Params) -> None:
    """Refuse what no stream can be built from. Files are not looked for: a report needs none."""
    options = [name for name in inspect.signature(build_stream).parameters if name not in ("text", "request")]
    keys = ["source", "pseudo", "raw", "seed", *options]
    if unknown := sorted(set(spec) - set(keys)):
        raise UsageError(f"stream has an unknown key {unknown[0]!r}; known are {', '.join(keys)}")
    if not isinstance(spec.get("source"), str):
        raise UsageError(f"stream needs a source: a path, or one of {', '.join(source_names())}")


def _points(path: Path, system: SystemTable, setting: Setting, table: ExperimentFile) -> list[Point]:
    if not _runs_in(system, setting):
        return []
    points = []
    for value in system.sweep or (None,):
        with errors_name(path, f"system {system.label!r}"):
            params = _params(system, setting, value)
            check_method(system.method, params)
            if system.search and not issubclass(methods()[system.method], IncDSI):
                raise UsageError(f"{system.method} has no settings to search")
        seeds = system.seeds or table.seeds or setting.seeds
        search = system.search if setting.search is None else min(system.search, setting.search)
        runs = tuple(Run(setting.d0, system.method, params, seed, search, table.split, system.label) for seed in seeds)
        points.append(Point(system, setting, value, runs, table.split))
    return points


def _params(system: SystemTable, setting: Setting, value: Any) -> Params:
    """From the weakest to the strongest: the system's preset without what belongs to D0, D0's parameters, what the setting says of
    later corpora and of the method, the system's own parameters and the swept one."""
    defaults, of_d0 = default_params(system.method), d0_params()
    with_rows = issubclass(methods()[system.method], DSIMethod)
    preset = changed_params(system.method, {"preset": system.params["preset"]}) if "preset" in system.params else {}
    preset = {name: given for name, given in preset.items() if name not in of_d0 and name not in SHARED_AFTER_D0}
    shared = {name: given for name, given in {**setting.d0.params, **setting.add}.items() if name in defaults and name != "seed"}
    shared = {name: given for name, given in shared.items() if not name.startswith("rows.")}  # of later rows the system decides
    shared = {name: given for name, given in shared.items() if with_rows or name in SHARED_WITHOUT_ROWS}
    params = {name: given for name, given in system.params.items() if name != "preset"}
    swept = {system.parameter: value} if system.parameter else {}
    return changed_params(system.method, preset, shared, setting.methods.get(system.method, {}), params, swept)
