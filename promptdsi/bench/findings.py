"""What an experiment's cells found: per system and setting the mean over seeds, its spread, intervals and paired comparisons.

Reports are made from these and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from promptdsi.bench.cells import Results, matrix_of
from promptdsi.bench.plan import Experiment, Point, Setting
from promptdsi.bench.tables import Entry, Table, between, score, signed
from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.continual import Compared, Estimate, Figures, Matrix, Statistic, compare, estimate, over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Measure(NamedTuple):
    """A figure of a run, and what it is about: D0, or the new corpora."""

    name: str
    statistic: Statistic
    metric: str
    new: bool = False

    def corpora(self, runs: Sequence[Matrix]) -> list[int]:
        return list(range(1, runs[0].last + 1)) if self.new else [0]


def on_d0(metric: str, name: str = "") -> Measure:
    return Measure(name or short(metric), Matrix.on_d0, metric)


def on_new(metric: str, name: str = "") -> Measure:
    return Measure(name or short(metric), Matrix.average, metric, new=True)


def short(metric: str) -> str:
    """A metric as table heads say it: H@10, M@10."""
    return metric.replace("Hits", "H").replace("MRR", "M")


@dataclass(frozen=True)
class Finding:
    """A system in a setting, with the records of those of its seeds that have run."""

    point: Point
    records: tuple[dict[str, Any], ...]

    @property
    def label(self) -> str:
        return self.point.label

    @property
    def group(self) -> str:
        return self.point.system.group

    @property
    def reference(self) -> bool:
        """References learn the new corpora together or not at all: they stand beside the comparison."""
        return self.point.system.reference or self.group == "References"

    @property
    def seeds(self) -> list[int]:
        return [record["cell"]["seed"] for record in self.records]

    @cached_property
    def runs(self) -> list[Matrix]:
        return [matrix_of(record, self.point.split) for record in self.records]

    @property
    def step_by_step(self) -> bool:
        """Whether there is a figure after every corpus, so that curves can be drawn."""
        return bool(self.runs) and all(set(run.query_ranks) == set(range(run.last + 1)) for run in self.runs)

    def figures(self, measure: Measure) -> Figures | None:
        """The mean over seeds, and its resamples over queries and seeds."""
        return over_seeds([measure.statistic(run, measure.metric) for run in self.runs]) if self.runs else None

    def estimate(self, measure: Measure) -> Estimate | None:
        figures = self.figures(measure)
        return None if figures is None else estimate(figures)

    def value(self, measure: Measure) -> float | None:
        figures = self.figures(measure)
        return None if figures is None else float(figures[0])

    def spread(self, measure: Measure) -> float | None:
        """The sample standard deviation over seeds; None for one seed."""
        return spread([float(measure.statistic(run, measure.metric)[0]) for run in self.runs])

    def score(self, measure: Measure) -> Entry | None:
        return score(self.value(measure), self.spread(measure))

    def each(self, get: Callable[[dict[str, Any]], float]) -> float | None:
        """The mean over seeds of something in the record."""
        return float(np.mean([get(record) for record in self.records])) if self.records else None

    def against(self, other: Finding, measure: Measure) -> Compared | None:
        """A paired comparison over the same queries, each with all seeds it has; None while either has not run."""
        if not self.runs or not other.runs:
            return None
        return compare(self.runs, other.runs, measure.statistic, measure.metric, measure.corpora(self.runs))


def at_seeds(one: Finding, seeds: Sequence[int]) -> Finding:
    """A finding with those of its runs that have one of these seeds."""
    return Finding(one.point, tuple(record for record in one.records if record["cell"]["seed"] in seeds))


def spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def total(record: dict[str, Any], key: str) -> float:
    """A step's `key` summed over the steps of a run."""
    return float(sum(step.get(key, 0) for step in record["steps"]))


@dataclass(frozen=True)
class Findings:
    """All that is known of an experiment: findings in the order of its file, and what D0 records say."""

    experiment: Experiment
    all: tuple[Finding, ...]
    d0: dict[str, dict[str, Any]] = field(default_factory=dict)  # by setting
    missing: tuple[str, ...] = ()

    def of(self, setting: Setting) -> list[Finding]:
        return [one for one in self.all if one.point.setting.name == setting.name]

    def settings(self) -> Iterator[tuple[Setting, list[Finding]]]:
        """Settings in which something has run."""
        for setting in self.experiment.settings:
            if any(one.records for one in self.of(setting)):
                yield setting, self.of(setting)

    def records(self, setting: Setting) -> list[dict[str, Any]]:
        own = [record for one in self.of(setting) for record in one.records]
        return ([self.d0[setting.name]] if setting.name in self.d0 else []) + own


class Text(NamedTuple):
    """A paragraph or a list, as Markdown."""

    text: str


class Heading(NamedTuple):
    text: str


class Plot(NamedTuple):
    """A figure: the end of its file's name, what it shows, and how it is drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure]


class Data(NamedTuple):
    """Figures for other programs: the report's .json."""

    content: dict[str, Any]


Part = Text | Heading | Table | Plot | Data  # what a report is made of


def begun(found: Iterable[Finding]) -> Finding | None:
    """A run that began from D0's checkpoint, as all systems with rows do; None where none has run."""
    return next((Finding(one.point, one.records[:1]) for one in found if one.records and one.records[0].get("d0_sha256")), None)


def before(found: Iterable[Finding], metric: str) -> float | None:
    """What D0 had before anything was added, of the systems that begin from its checkpoint; None where none has run."""
    one = begun(found)
    return None if one is None else one.value(_before(metric))


def _before(metric: str) -> Measure:
    return Measure(metric, lambda run, metric: run.entry(metric, 0, 0), metric)


def before_in_words(found: Sequence[Finding]) -> Text:
    one, measures = begun(found), [_before(metric) for metric in ("Hits@1", "Hits@10", "MRR@10")]
    said = "not run yet" if one is None else _figures(one, measures)
    text = f"D0 before the first new corpus, where systems with rows begin: {said}."
    if one is not None and (dense := named(found, "Dense")):
        compared = [(measure.name, one.against(dense, measure)) for measure in measures]
        apart = [f"{name} {signed(each.difference.value)} ({between(each.difference, sign=True)})" for name, each in compared if each]
        text += f" Dense retrieval among the same documents, where nothing is learned: {_figures(dense, measures)}."
        text += f" The first minus the second, with 95 % intervals: {', '.join(apart)}."
    return Text(text)


def _figures(one: Finding, measures: Sequence[Measure]) -> str:
    return ", ".join(f"{measure.name} {100 * (one.value(measure) or 0.0):.1f}" for measure in measures)


def named(findings: Iterable[Finding], label: str) -> Finding | None:
    """The finding with a label, if it has run."""
    return next((one for one in findings if one.label == label and one.records), None)


def gather(experiment: Experiment, results: Results) -> Findings:
    """Read the cells of an experiment. Cells of one setting must have been asked the same queries, or nothing is comparable."""
    found, missing = [], []
    for point in experiment.points:
        read = [(cell, results.read(cell.file)) for cell in point.cells]
        missing += [f"{point.setting.label}: {point.label}, seed {cell.seed}" for cell, record in read if record is None]
        found.append(Finding(point, tuple(record for _, record in read if record is not None)))
    d0 = {setting.name: record for setting in experiment.settings if (record := results.read(setting.d0.file)) is not None}
    missing += [f"{setting.label}: D0" for setting in experiment.settings if setting.name not in d0]
    findings = Findings(experiment, tuple(found), d0, tuple(missing))
    if not any(one.records for one in found) and (experiment.points or not d0):
        raise PromptDSIError(f"nothing of {experiment.name} has run yet; {command(experiment, 'run')}{at(results)} runs it")
    for setting in experiment.settings:
        asked = (record["data"]["queries"].get(experiment.split) for record in findings.records(setting))
        if len({str(one) for one in asked if one is not None}) > 1:
            again = f"{command(experiment, 'run')}{at(results)} --fresh"
            raise PromptDSIError(f"cells of setting {setting.name} were asked different queries; {again} runs them again")
    return findings


def command(experiment: Experiment, what: str) -> str:
    return f"promptdsi bench {what} {experiment.path} --scale {experiment.scale}"


def at(results: Results) -> str:
    """How a command is told which results are meant."""
    return "" if results.folder == Path("results") else f" --results {results.folder}"
