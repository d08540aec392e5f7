"""Every system at every value of its swept parameter, on the dev split, and which value is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Data, Heading, Part, Text
from promptdsi.bench.system_results import SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, row
from promptdsi.errors import UsageError

from .. import selection_rule, tradeoff
from ..figures import plot

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
        yield Heading(setting.label)
        caption = (
            f"{setting.label}, dev queries: up is learning the new, right is retaining the old; a line joins the values of a parameter, a "
            "ring is the chosen one, the dotted line D0 before anything was added; above all values tried, below those around the chosen "
            "“best”"
        )
        yield plot(setting.name, caption, partial(tradeoff.draw, systems, chosen))
        yield _table(setting, systems, chosen)
        yield Text(f"The rule: {RULE}")
        if limits := list(_limits(systems, chosen)):
            yield Text("Limits of the choice:\n\n" + "\n".join(f"- {limit}" for limit in limits))
        yield Data({"chosen": chosen, "setting": setting.name, "split": results.experiment.split, "rule": RULE})


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


def _limits(results: Sequence[SystemResult], chosen: dict[str, Any]) -> Iterator[str]:
    """Systems whose chosen value is at an end of the sweep, and systems that retain less of D0 than the rule asks at any value."""
    systems = selection_rule.swept_systems(results)
    floor = selection_rule.floor(systems)
    at_the_end, below = [], []
    for label, points in systems.items():
        values = [result.point.value for result in points]
        if len(values) > 1 and chosen[label] in (values[0], values[-1]):
            at_the_end.append(label)
        if label != selection_rule.OURS and all(selection_rule.value(result, selection_rule.RETAINED) < floor for result in points):
            below.append(label)
    if at_the_end:
        yield f"at an end of the values tried, so that another value might serve it better: {quoted(at_the_end)}"
    if below:
        yield (
            f"no value retains {100 * floor:.2f} of D0's Hits@1, so the one that retains most is taken, and the system is compared where "
            f"it retains less than `{selection_rule.OURS}`: {quoted(below)}"
        )


def quoted(labels: Sequence[str]) -> str:
    """Labels in a sentence: some have a comma."""
    return ", ".join(f"“{label}”" for label in labels)
