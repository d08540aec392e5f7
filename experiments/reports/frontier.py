"""The systems at their chosen parameters, evaluated on the test split, and `best`, at each of its two row norms, against each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row
from promptdsi.evaluation.continual import Compared

from .. import selection_rule, tradeoff
from ..figures import plot
from ..shared import before_in_words, comparison, interval, signed

RETAINED, RETAINED_TEN, NEW, NEW_FIRST = on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@10"), on_new("Hits@1")
COMPARED = (selection_rule.OURS, selection_rule.LARGER_NORM)  # with every other system
FULL_REPLAY = ("Rehearsal", "Rehearsal, with all that best has")
DIFFERENCES = (("A_T H@10", NEW), ("A_T H@1", NEW_FIRST), ("D0 H@1", RETAINED), ("D0 H@10", RETAINED_TEN))


def report(results: SystemResults) -> Iterator[Part]:
    if len(list(results.settings())) > 1:
        yield Heading("All streams")
        yield from _summary(results)
        for label in COMPARED:
            yield from (table for name, measure in DIFFERENCES if (table := _all_streams(results, label, name, measure)).rows)
    for setting, systems in results.settings():
        yield Heading(setting.label)
        caption = (
            f"{setting.label}, test queries: each system at its chosen parameter, with 95 % intervals; above all systems, below those "
            "around “best”, where long intervals are cut; the dotted line is D0 before anything was added"
        )
        yield plot(setting.name, caption, partial(tradeoff.draw, systems))
        yield _scores(setting, systems)
        yield before_in_words(systems)
        for ours in (result for result in systems if result.point.system.label in COMPARED and result.records):
            yield _against(setting, ours, systems)


def _summary(results: SystemResults) -> Iterator[Part]:
    """Whether ours is better on new corpora than each continual system, what both retain of D0, and the distance to full replay."""
    for label in COMPARED:
        lines = []
        for setting, systems in results.settings():
            ours = next((result for result in systems if result.records and result.point.system.label == label), None)
            rivals = [result for result in systems if ours and result.records and not result.reference and result.group != ours.group]
            if ours and rivals:
                new, retained = ([(rival, ours.against(rival, measure)) for rival in rivals] for measure in (NEW, RETAINED))
                lines.append(f"- {setting.label}: A_T H@10 {_by_verdict(new)}. D0 H@1 {_by_verdict(retained)}.")
            bounds = [result for result in systems if result.records and result.point.system.label in FULL_REPLAY]
            lines += [_against_full_replay(ours, bound) for bound in bounds if ours]
        if lines:
            yield Text(f"“{label}” against every continual system that ran there, by paired intervals over queries:\n\n" + "\n".join(lines))


def _by_verdict(compared: Sequence[tuple[SystemResult, Compared | None]]) -> str:
    """Which systems are worse, which better, and against which no difference is shown."""
    groups = (("better", "better than"), ("worse", "worse than"), ("no difference shown", "no difference shown to"))
    names = {
        verdict: [escape_markdown(rival.point.system.label) for rival, both in compared if both and both.verdict == verdict]
        for verdict, _ in groups
    }
    return "; ".join(f"{words} {', '.join(names[verdict])}" for verdict, words in groups if names[verdict])


def _against_full_replay(ours: SystemResult, other: SystemResult) -> str:
    """The distance from a system that may read every old query."""
    compared = [(name, ours.against(other, measure)) for name, measure in DIFFERENCES if measure in (NEW, RETAINED)]
    numbers = [f"{name} {signed(both.difference.value)} ({interval(both.difference, sign=True)})" for name, both in compared if both]
    return f"  - vs. full replay (upper bound, uses old data), “{escape_markdown(other.point.system.label)}”: {', '.join(numbers)}"


def _all_streams(results: SystemResults, label: str, name: str, measure: Measure) -> Table:
    """One figure of ours minus each other system's, stream by stream."""
    streams = [(setting, {result.point.system.label: result for result in systems}) for setting, systems in results.settings()]
    groups = {result.point.system.label: result.group for _, systems in streams for result in systems.values()}
    rows = []
    for other, group in groups.items():
        if other == label:
            continue
        pairs = [(systems.get(label), systems.get(other)) for _, systems in streams]
        differences = [ours.against(theirs, measure) if ours and theirs else None for ours, theirs in pairs]
        if any(differences):
            texts = [both and f"{signed(both.difference.value)} ({interval(both.difference, sign=True)})" for both in differences]
            rows.append(row(other, *texts, group=group))
    columns = [Column(f"{label} minus", left=True), *(Column(setting.label) for setting, _ in streams)]
    return Table(f"{label} minus each: {name} in points, with 95 % intervals, paired over queries", columns, rows)


def _scores(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows: list[TableRow] = []
    for result in systems:
        entries: list[TableEntry | str | None] = [result.point.system.label, result.point.swept]
        for measure in (RETAINED, RETAINED_TEN, NEW, NEW_FIRST):
            estimate = result.estimate(measure)
            entries += [result.score(measure), None if estimate is None else interval(estimate)]
        seconds = result.mean_of(lambda record: record.add_seconds)
        rows.append(row(*entries, None if seconds is None else f"{seconds:,.0f}", group=result.group, ranked=not result.reference))
    columns = [Column("system", left=True), Column("parameter", left=True)]
    for over, title in (("D0", "H@1"), ("D0", "H@10"), ("A_T", "H@10"), ("A_T", "H@1")):
        columns += [Column(title, over, "up"), Column(f"{title}, 95 %", over)]
    return Table(
        f"{setting.label}: after the last corpus, in per cent of test queries",
        [*columns, Column("seconds to learn, beside other work")],
        rows,
    )


def _against(setting: Setting, ours: SystemResult, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for other in systems:
        if other is ours or not other.records:
            continue
        entries: list[TableEntry | str | None] = [other.point.system.label]
        for _, measure in DIFFERENCES:
            entries += comparison(ours.against(other, measure))
        rows.append(row(*entries, group=other.group))
    name = ours.point.system.label
    columns = [Column(f"{name} minus", left=True)]
    columns += [Column(title, over) for over, _ in DIFFERENCES for title in ("points", "95 %", "p", "it is")]
    return Table(f"{setting.label}: {name} against each, paired over queries", columns, rows)
