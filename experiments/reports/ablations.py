"""Ablations, one change at a time: each row against the first of its group, over the same queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import SUMMARY_ROWS, Heading, Part, Summary, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, row
from promptdsi.evaluation.continual import Estimate, Figures, estimate
from promptdsi.evaluation.corrections import LEVEL, holm, p_value

from ..figures import draw_differences, plot
from ..shared import OF_P, comparison, p_text
from ..summaries import plural, regimes, seeds_in_words, tested, with_interval

MEASURES = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10"))


def report(results: SystemResults) -> Iterator[Part]:
    yield _summary(results)
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _table(setting, systems)
    marked = "Changes are in points against the first row of a group; those whose 95 % interval excludes zero are marked with *"
    yield Text(f"{marked}; {OF_P}")


class Change(NamedTuple):
    """A system against the first of its group: two figures, and the p-value of the stronger change after Holm's correction."""

    name: str
    new: Estimate
    d0: Estimate
    p: float


def changes(results: SystemResults) -> list[Change]:
    """Every change that has run, those whose corrected p-value is smallest first."""
    pairs: list[tuple[str, Figures, Figures]] = []
    p_values: list[float] = []
    several = len(list(results.settings())) > 1
    for setting, systems in results.settings():
        for group, members in groupby(systems, key=lambda result: result.group):
            base, *others = members
            for result in others:
                new, d0 = (result.difference(base, measure) for measure in (MEASURES[2], MEASURES[0]))
                if new is not None and d0 is not None:
                    pairs.append((f"{setting.label}, {group}: {result.label}" if several else f"{group}: {result.label}", new, d0))
                    p_values += [p_value(new), p_value(d0)]
    corrected = holm(p_values)
    listing = [
        Change(name, estimate(new), estimate(d0), min(corrected[2 * place : 2 * place + 2])) for place, (name, new, d0) in enumerate(pairs)
    ]
    return sorted(listing, key=lambda change: (change.p, -abs(change.new.value) - abs(change.d0.value)))


def _summary(results: SystemResults) -> Summary:
    listing = changes(results)
    shown = [change for change in listing if change.p < LEVEL]
    most, least = (pick(shown, key=lambda change: change.new.value, default=None) for pick in (max, min))
    result = f"{len(shown)} of {plural(len(listing), 'change')} make a difference that is shown after Holm's correction"
    if most and least:
        gains, loses = f"“{most.name}” gains most, {with_interval(most.new)}", f"“{least.name}” loses most, {with_interval(least.new)}"
        result += f"; on new documents {gains}, and {loses}"
    limits = f"For {plural(len(listing) - len(shown), 'change')} no difference is shown; {seeds_in_words(results)}"
    other = regimes(results)
    rows = [row(change.name, with_interval(change.new), with_interval(change.d0), p_text(change.p)) for change in listing[:SUMMARY_ROWS]]
    columns = [Column("changed", left=True), Column("A_T H@10"), Column("D0 H@1"), Column("p, corrected")]
    shown_differences = {change.name: {"A_T H@10": change.new, "D0 H@1": change.d0} for change in listing[:SUMMARY_ROWS]}
    caption = "The changes with the smallest p-values: points against the first line of their group, with 95 % intervals"
    figure = plot("changes", caption, partial(draw_differences, shown_differences, "change, points"))
    return Summary(
        tested(results),
        f"{result}.",
        f"{limits}{'; ' + other if other else ''}.",
        figure,
        Table("Changes in points, 95 % interval", columns, rows),
    )


def _table(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows: list[TableRow] = []
    for group, members in groupby(systems, key=lambda result: result.group):
        base, *others = members
        rows.append(_row(base, None, group))
        rows += [_row(result, base, group) for result in others]
    columns = [Column("changed", left=True)]
    columns += [Column(title, measure.name) for measure in MEASURES for title in ("%", "change", "95 % interval", "p")]
    return Table(f"{setting.label}: one thing changed at a time; * where the 95 % interval of a change excludes zero", columns, rows)


def _row(result: SystemResult, base: SystemResult | None, group: str) -> TableRow:
    entries: list[TableEntry | str | None] = [result.label]
    for measure in MEASURES:
        entries += [result.score(measure), *(("", "", "") if base is None else _change(result, base, measure))]
    return row(*entries, group=group)


def _change(result: SystemResult, base: SystemResult, measure: Measure) -> list[TableEntry | str | None]:
    """The change with its mark, its interval and its p-value."""
    compared = result.against(base, measure)
    change, interval, p, _ = comparison(compared)
    return [f"{change}*" if compared is not None and compared.difference.excludes_zero else change, interval, p]
