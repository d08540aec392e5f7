"""What several reports of this study share: how comparisons and sizes are printed, and D0 before anything was added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptdsi.bench.report import Text
from promptdsi.bench.system_results import Measure, SystemResult
from promptdsi.bench.tables import Column, TableEntry
from promptdsi.evaluation.continual import ROUNDING, Compared, Estimate

SYSTEM = Column("system", left=True)
OF_P = (
    "p is from a paired sign-flip test over queries, "
    "with the seeds as they are (the interval draws seeds too, so the two may differ), not corrected for the number of comparisons."
)


def signed(value: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def interval_end(value: float) -> str:
    """An end of an interval around a difference, never rounded to zero, because the side of zero it lies on is what matters.

    Examples
    --------
    >>> interval_end(0.012), interval_end(0.0003), interval_end(-0.0003), interval_end(1e-17)
    ('+1.2', '+0.03', '−0.03', '0.0')
    """
    if abs(value) <= ROUNDING:
        return "0.0"
    digits = next((digits for digits in (1, 2, 3) if round(100 * value, digits)), 4)
    return f"{100 * value:+.{digits}f}".replace("-", "−")


def interval(estimate: Estimate, *, sign: bool = False) -> str:
    """An interval in points: 84.0 to 88.1, or with signs for a difference."""
    ends = (estimate.low, estimate.high)
    low, high = (interval_end(end) if sign else f"{100 * end:.1f}".replace("-0.0", "0.0").replace("-", "−") for end in ends)
    return f"{low} to {high}"


def p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def find_result(results: Iterable[SystemResult], label: str) -> SystemResult | None:
    """The result with a label, if it has run."""
    return next((result for result in results if result.label == label and result.records), None)


def at_seeds(result: SystemResult, seeds: Sequence[int]) -> SystemResult:
    """The result of some of its seeds."""
    return SystemResult(result.point, tuple(record for record in result.records if record.run.seed in seeds))


def step_by_step(result: SystemResult) -> bool:
    """Whether every corpus was evaluated after every step, so that curves can be drawn."""
    return bool(result.runs) and all(set(run.query_ranks) == set(range(run.last + 1)) for run in result.runs)


def comparison(compared: Compared | None) -> list[TableEntry | str | None]:
    """Difference, interval, p-value and verdict."""
    if compared is None:
        return [None] * 4
    return [signed(compared.difference.value), interval(compared.difference, sign=True), p_text(compared.p), compared.verdict]


def started_from_d0(systems: Iterable[SystemResult]) -> SystemResult | None:
    """A run that started from D0's checkpoint, as all systems with rows do; None where none has run."""
    return next(
        (SystemResult(system.point, system.records[:1]) for system in systems if system.records and system.records[0].d0_sha256), None
    )


def before(systems: Iterable[SystemResult], metric: str) -> float | None:
    """D0 before anything was added, for the systems that start from its checkpoint; None where none has run."""
    system = started_from_d0(systems)
    return None if system is None else system.value(before_measure(metric))


def before_measure(metric: str) -> Measure:
    return Measure(metric, lambda run, metric: run.entry(metric, 0, 0), metric)


def before_in_words(systems: Sequence[SystemResult]) -> Text:
    system, measures = started_from_d0(systems), [before_measure(metric) for metric in ("Hits@1", "Hits@10", "MRR@10")]
    numbers = "not run yet" if system is None else _numbers(system, measures)
    text = f"D0 before the first new corpus, where systems with rows start: {numbers}."
    if system is not None and (dense := find_result(systems, "Dense")):
        compared = [(measure.name, system.against(dense, measure)) for measure in measures]
        differences = [
            f"{name} {signed(both.difference.value)} ({interval(both.difference, sign=True)})" for name, both in compared if both
        ]
        text += f" Dense retrieval among the same documents, where nothing is learned: {_numbers(dense, measures)}."
        text += f" The first minus the second, with 95 % intervals: {', '.join(differences)}."
    return Text(text)


def _numbers(system: SystemResult, measures: Sequence[Measure]) -> str:
    return ", ".join(f"{measure.name} {100 * (system.value(measure) or 0.0):.1f}" for measure in measures)


def count(number: float) -> str:
    """A number of parameters as the paper prints it.

    Examples
    --------
    >>> count(7_583_232), count(345_600), count(512)
    ('7.6 M', '346 k', '512')
    """
    if number >= 999_500:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.0f} k" if number >= 1000 else f"{number:.0f}"


def size(number: float) -> str:
    """A number of bytes with its unit.

    Examples
    --------
    >>> size(322_560), size(333_671_424), size(0)
    ('315.0 KiB', '318.2 MiB', '0 B')
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 2**power:
            return f"{number / 2**power:,.1f} {unit}"
    return f"{number:.0f} B"
