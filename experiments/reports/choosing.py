"""Every system at every value of its swept parameter, on the dev split, and which value is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import SUMMARY_ROWS, Data, Heading, Part, Plot, Summary, Text
from promptdsi.bench.system_results import SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, row
from promptdsi.errors import UsageError

from .. import selection_rule, tradeoff
from ..figures import plot
from ..summaries import plural, seeds_in_words, tested

COLUMNS = (
    *(on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10")),
    *(on_new("Hits@10", "A_T H@10"), on_new("Hits@1", "A_T H@1"), on_new("MRR@10", "A_T M@10")),
)
RULE = " ".join((selection_rule.__doc__ or "").split("\n\n", 1)[1].split())


def report(results: SystemResults) -> Iterator[Part]:
    if len(results.experiment.settings) > 1:
        raise UsageError("parameters are chosen on one stream; the scale names several settings for this experiment")
    for setting, systems in results.settings():
        chosen = selection_rule.choose(systems)
        caption = (
            f"{setting.label}, dev queries: up is learning the new, right is retaining the old; a line joins the values of a parameter, a "
            "ring is the chosen one, the dotted line D0 before anything was added; above all values tried, below those around the chosen "
            "“best”"
        )
        figure = plot(setting.name, caption, partial(tradeoff.draw, systems, chosen))
        yield _summary(results, systems, chosen, figure)
        yield Heading(setting.label)
        yield _table(setting, systems, chosen)
        yield Text(f"The rule: {RULE}")
        if limits := list(_limits(systems, chosen)):
            yield Text("Limits of the choice:\n\n" + "\n".join(f"- {limit}" for limit in limits))
        yield Data({"chosen": chosen, "setting": setting.name, "split": results.experiment.split, "rule": RULE})


def _summary(results: SystemResults, systems: Sequence[SystemResult], chosen: dict[str, object], figure: Plot) -> Summary:
    tried = selection_rule.swept_systems(systems)
    picked = [result for result in systems if result.point.system.parameter and chosen.get(result.point.system.label) == result.point.value]
    ours = next((result for result in picked if result.point.system.label == selection_rule.OURS), None)
    values = "" if ours is None else ", ".join(f"{measure.name} {entry.text}" for measure in COLUMNS if (entry := ours.score(measure)))
    number = plural(sum(len(points) for points in tried.values()), "setting")
    result = (
        f"Of {number} of {len(tried)} systems, the rule gives `{selection_rule.OURS}` {ours.point.swept if ours else 'nothing'} ({values})."
    )
    edge, below = at_an_end(tried, chosen), retaining_less(tried)
    limits = (
        f"The choice is limited: {len(edge)} of {plural(len(tried), 'system')} have their value at an end of the sweep, {len(below)} "
        f"retain less of D0 than `{selection_rule.OURS}` at every value; {seeds_in_words(results)}, and the dev queries shown chose"
    )
    rows = [row(result.point.system.label, result.point.swept, *(result.score(measure) for measure in COLUMNS[:3])) for result in picked]
    columns = [Column("system", left=True), Column("chosen", left=True), *(Column(measure.name) for measure in COLUMNS[:3])]
    table = Table(f"The chosen value of the first {SUMMARY_ROWS} systems, in per cent of dev queries", columns, rows[:SUMMARY_ROWS])
    return Summary(tested(results), result, f"{limits}.", figure, table)


def _table(setting: Setting, systems: Sequence[SystemResult], chosen: dict[str, object]) -> Table:
    rows = []
    for result in systems:
        system = result.point.system
        is_chosen = bool(system.parameter) and system.label in chosen and chosen[system.label] == result.point.value
        entries: list[TableEntry | str | None] = [
            system.label,
            result.point.swept,
            "chosen" if is_chosen else "",
            *(result.score(measure) for measure in COLUMNS),
        ]
        rows.append(row(*entries, group=result.group, ranked=False))
    columns = [Column("system", left=True), Column("parameter", left=True), Column(""), *(Column(measure.name) for measure in COLUMNS)]
    return Table(f"{setting.label}: every value tried, in per cent of dev queries", columns, rows)


def at_an_end(tried: selection_rule.Swept, chosen: dict[str, Any]) -> list[str]:
    """Systems whose chosen value is at an end of the sweep: another might serve them better."""
    values = {label: [result.point.value for result in points] for label, points in tried.items()}
    return [label for label, swept in values.items() if len(swept) > 1 and chosen.get(label) in (swept[0], swept[-1])]


def retaining_less(tried: selection_rule.Swept) -> list[str]:
    """Systems that retain less of D0 than the rule asks, at any value."""
    if selection_rule.OURS not in tried:
        return []
    floor = selection_rule.floor(tried)
    return [
        label
        for label, points in tried.items()
        if label != selection_rule.OURS and all(selection_rule.value(result, selection_rule.RETAINED) < floor for result in points)
    ]


def _limits(results: Sequence[SystemResult], chosen: dict[str, Any]) -> Iterator[str]:
    systems = selection_rule.swept_systems(results)
    if edge := at_an_end(systems, chosen):
        yield f"at an end of the values tried, so that another value might serve it better: {quoted(edge)}"
    if below := retaining_less(systems):
        least = f"{100 * selection_rule.floor(systems):.2f} of D0's Hits@1"
        yield (
            f"no value retains {least}, so the one that retains most is taken, and the system is compared where it retains less than "
            f"`{selection_rule.OURS}`: {quoted(below)}"
        )


def quoted(labels: Sequence[str]) -> str:
    """Labels in a sentence: some have a comma."""
    return ", ".join(f"“{label}”" for label in labels)
