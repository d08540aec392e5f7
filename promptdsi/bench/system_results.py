"""The results of an experiment: per system and setting the mean over seeds, its spread, intervals and paired comparisons.

Reports are made from these and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from promptdsi.bench.plan import Experiment, Point, Setting
from promptdsi.bench.run_records import D0Record, RunRecord
from promptdsi.bench.runs import RunStore, matrix_of
from promptdsi.bench.tables import TableEntry, score
from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.continual import Compared, Estimate, Figures, Matrix, Statistic, compare, estimate, over_seeds


class Measure(NamedTuple):
    """A statistic of a metric, and what it is about: D0, or the new corpora."""

    name: str
    statistic: Statistic
    metric: str
    new: bool = False

    def corpora(self, runs: Sequence[Matrix]) -> list[int]:
        return list(range(1, runs[0].last + 1)) if self.new else [0]


def on_d0(metric: str, name: str = "") -> Measure:
    """A metric on D0 after the last corpus; by default it is named as table heads abbreviate it: H@10, M@10."""
    return Measure(name or metric.replace("Hits", "H").replace("MRR", "M"), Matrix.on_d0, metric)


def on_new(metric: str, name: str = "") -> Measure:
    """The mean of a metric over the new corpora after the last one."""
    return on_d0(metric, name)._replace(statistic=Matrix.average, new=True)


@dataclass(frozen=True)
class SystemResult:
    """A system in a setting, with the records of those of its seeds that have run."""

    point: Point
    records: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        return self.point.label

    @property
    def group(self) -> str:
        return self.point.system.group

    @property
    def reference(self) -> bool:
        """References learn the new corpora together or not at all; they are not ranked with the others."""
        return self.point.system.reference or self.group == "References"

    @property
    def seeds(self) -> list[int]:
        return [record.run.seed for record in self.records]

    @cached_property
    def runs(self) -> list[Matrix]:
        return [matrix_of(record, self.point.split) for record in self.records]

    def figures(self, measure: Measure) -> Figures | None:
        """The mean over seeds, and its resamples over queries and seeds."""
        return over_seeds([measure.statistic(run, measure.metric) for run in self.runs]) if self.runs else None

    def estimate(self, measure: Measure) -> Estimate | None:
        return None if (figures := self.figures(measure)) is None else estimate(figures)

    def value(self, measure: Measure) -> float | None:
        return None if (figures := self.figures(measure)) is None else float(figures[0])

    def score(self, measure: Measure) -> TableEntry | None:
        """The mean over seeds with its spread, as tables print it."""
        return score(self.value(measure), spread([float(measure.statistic(run, measure.metric)[0]) for run in self.runs]))

    def mean_of(self, get: Callable[[RunRecord], float]) -> float | None:
        """The mean over seeds of something in the record."""
        return float(np.mean([get(record) for record in self.records])) if self.records else None

    def difference(self, other: SystemResult, measure: Measure) -> Figures | None:
        """This system minus another and its resamples, paired over queries; None while either has not run."""
        ours, theirs = self.figures(measure), other.figures(measure)
        return None if ours is None or theirs is None else ours - theirs

    def against(self, other: SystemResult, measure: Measure) -> Compared | None:
        """A paired comparison over the same queries, each with all seeds it has; None while either has not run."""
        if not self.runs or not other.runs:
            return None
        return compare(self.runs, other.runs, measure.statistic, measure.metric, measure.corpora(self.runs))


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation over seeds; None for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class SystemResults:
    """All results of an experiment, in the order of its file, and the records of its D0s."""

    experiment: Experiment
    all: tuple[SystemResult, ...]
    d0: dict[str, D0Record] = field(default_factory=dict)  # by setting
    missing: tuple[str, ...] = ()
    queries: dict[str, dict[str, str]] = field(default_factory=dict)  # text of D0's queries by id, by setting, where a report may show them

    def of(self, setting: Setting) -> list[SystemResult]:
        return [result for result in self.all if result.point.setting.name == setting.name]

    def settings(self) -> Iterator[tuple[Setting, list[SystemResult]]]:
        """Settings in which something has run."""
        for setting in self.experiment.settings:
            if any(result.records for result in self.of(setting)):
                yield setting, self.of(setting)

    def records(self, setting: Setting) -> list[RunRecord | D0Record]:
        d0 = [self.d0[setting.name]] if setting.name in self.d0 else []
        return [*d0, *(record for result in self.of(setting) for record in result.records)]


def collect_results(experiment: Experiment, store: RunStore) -> SystemResults:
    """Read the records of an experiment. Runs of one setting must have been evaluated on the same queries to be comparable."""
    results, missing = [], []
    for point in experiment.points:
        records = [(run, store.run(run)) for run in point.runs]
        missing += [f"{point.setting.label}: {point.label}, seed {run.seed}" for run, record in records if record is None]
        results.append(SystemResult(point, tuple(record for _, record in records if record is not None)))
    d0 = {setting.name: record for setting in experiment.settings if (record := store.d0(setting.d0)) is not None}
    missing += [f"{setting.label}: D0" for setting in experiment.settings if setting.name not in d0]
    collected = SystemResults(experiment, tuple(results), d0, tuple(missing))
    command = experiment.command("run") + ("" if store.folder == Path("results") else f" --results {store.folder}")
    if not any(result.records for result in results) and (experiment.points or not d0):
        raise PromptDSIError(f"nothing of {experiment.name} has run yet; {command} runs it")
    for setting in experiment.settings:
        checksums = (record.data.queries.get(experiment.split) for record in collected.records(setting))
        if len({str(each) for each in checksums if each is not None}) > 1:
            raise PromptDSIError(f"runs of setting {setting.name} were evaluated on different queries; {command} --fresh runs them again")
    return collected
