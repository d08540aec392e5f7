"""What several reports of this study share: how comparisons and sizes are printed, and D0 before anything was added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptdsi.bench.report import Text
from promptdsi.bench.system_results import Measure, SystemResult, find_result
from promptdsi.bench.tables import Column, TableEntry, interval, signed
from promptdsi.evaluation.continual import Compared

SYSTEM = Column("system", left=True)
OF_P = (
    "p is from a paired sign-flip test over queries, "
    "with the seeds as they are (the interval draws seeds too, so the two may differ), not corrected for the number of comparisons."
)


def comparison(compared: Compared | None) -> list[TableEntry | str | None]:
    """Difference, interval, p-value and verdict."""
    if compared is None:
        return [None] * 4
    return [
        signed(compared.difference.value),
        interval(compared.difference, sign=True),
        "<0.001" if compared.p < 0.001 else f"{compared.p:.3f}",
        compared.verdict,
    ]


def started_from_d0(systems: Iterable[SystemResult]) -> SystemResult | None:
    """A run that started from D0's checkpoint, as all systems with rows do; None where none has run."""
    return next(
        (SystemResult(system.point, system.records[:1]) for system in systems if system.records and system.records[0].d0_sha256), None
    )


def before(systems: Iterable[SystemResult], metric: str) -> float | None:
    """D0 before anything was added, for the systems that start from its checkpoint; None where none has run."""
    system = started_from_d0(systems)
    return None if system is None else system.value(_before(metric))


def _before(metric: str) -> Measure:
    return Measure(metric, lambda run, metric: run.entry(metric, 0, 0), metric)


def before_in_words(systems: Sequence[SystemResult]) -> Text:
    system, measures = started_from_d0(systems), [_before(metric) for metric in ("Hits@1", "Hits@10", "MRR@10")]
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
