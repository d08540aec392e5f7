"""The chosen systems on test queries, and `best`, at each of its two dials and with ten spans, against each over the same queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench import choosing, tradeoff
from promptdsi.bench.findings import Finding, Findings, Heading, Measure, Part, Plot, Text, before_in_words, on_d0, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.reports.main import comparison
from promptdsi.bench.tables import Column, Entry, Line, Table, between, line, plain, signed
from promptdsi.evaluation.continual import Compared

NAME = "frontier"
KEPT, KEPT_TEN, NEW, NEW_ONE = on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@10"), on_new("Hits@1")
COMPARED = (choosing.OURS, choosing.LONGER, choosing.SHARPER)  # with every other system
BOUNDS = ("Rehearsal", "Rehearsal, with all that best has")
DIFFERENCES = (("A_T H@10", NEW), ("A_T H@1", NEW_ONE), ("D0 H@1", KEPT), ("D0 H@10", KEPT_TEN))


def parts(findings: Findings) -> Iterator[Part]:
    if len(list(findings.settings())) > 1:
        yield Heading("All streams")
        yield from _asked_and_found(findings)
        for label in COMPARED:
            yield from (table for name, measure in DIFFERENCES if (table := _summary(findings, label, name, measure)).lines)
    for setting, found in findings.settings():
        yield Heading(setting.label)
        caption = (
            f"{setting.label}, test queries: each system at its chosen dial, with 95 % intervals; above all systems, below those around "
            "“best”, where long intervals are cut; the dotted line is D0 before anything was added"
        )
        yield Plot(setting.name, caption, partial(tradeoff.draw, found))
        yield _scores(setting, found)
        yield before_in_words(found)
        for ours in (one for one in found if one.point.system.label in COMPARED and one.records):
            yield _against(setting, ours, found)


def _asked_and_found(findings: Findings) -> Iterator[Part]:
    """Whether ours is better on new corpora than each system it is up against, what it keeps of D0 beside them, and the bound."""
    for label in COMPARED:
        said = []
        for setting, found in findings.settings():
            ours = next((one for one in found if one.records and one.point.system.label == label), None)
            rivals = [one for one in found if ours and one.records and not one.reference and one.group != ours.group]
            if ours and rivals:
                new, kept = ([(one, ours.against(one, measure)) for one in rivals] for measure in (NEW, KEPT))
                said.append(f"- {setting.label}: A_T H@10 {_sorted_out(new)}. D0 H@1 {_sorted_out(kept)}.")
            said += [_bound(ours, one) for one in found if ours and one.records and one.point.system.label in BOUNDS]
        if said:
            yield Text(f"“{label}” against every continual system that ran there, by paired intervals over queries:\n\n" + "\n".join(said))


def _sorted_out(compared: Sequence[tuple[Finding, Compared | None]]) -> str:
    """Who is behind, who is ahead, and against whom nothing is shown."""
    groups = (("better", "better than"), ("worse", "worse than"), ("no difference shown", "no difference shown to"))
    names = {
        verdict: [plain(one.point.system.label) for one, each in compared if each and each.verdict == verdict] for verdict, _ in groups
    }
    return "; ".join(f"{words} {', '.join(names[verdict])}" for verdict, words in groups if names[verdict])


def _bound(ours: Finding, other: Finding) -> str:
    """How far ours is from a system that may read every old query."""
    both = [(name, ours.against(other, measure)) for name, measure in DIFFERENCES if measure in (NEW, KEPT)]
    said = [f"{name} {signed(one.difference.value)} ({between(one.difference, sign=True)})" for name, one in both if one]
    return f"  - minus “{plain(other.point.system.label)}”, which is forbidden: {', '.join(said)}"


def _summary(findings: Findings, label: str, name: str, measure: Measure) -> Table:
    """One figure of ours minus each other system's, stream by stream."""
    streams = [(setting, {one.point.system.label: one for one in found}) for setting, found in findings.settings()]
    groups = {one.point.system.label: one.group for _, found in streams for one in found.values()}
    lines = []
    for other, group in groups.items():
        if other == label:
            continue
        both = [(found.get(label), found.get(other)) for _, found in streams]
        differences = [ours.against(theirs, measure) if ours and theirs else None for ours, theirs in both]
        if any(differences):
            shown = [one and f"{signed(one.difference.value)} ({between(one.difference, sign=True)})" for one in differences]
            lines.append(line(other, *shown, group=group))
    columns = [Column(f"{label} minus", left=True), *(Column(setting.label) for setting, _ in streams)]
    return Table(f"{label} minus each: {name} in points, with 95 % intervals, paired over queries", columns, lines)


def _scores(setting: Setting, found: Sequence[Finding]) -> Table:
    lines: list[Line] = []
    for one in found:
        values: list[Entry | str | None] = [one.point.system.label, _dial(one)]
        for measure in (KEPT, KEPT_TEN, NEW, NEW_ONE):
            interval = one.estimate(measure)
            values += [one.score(measure), None if interval is None else between(interval)]
        seconds = one.each(lambda record: sum(step["seconds"] for step in record["steps"]))
        lines.append(line(*values, None if seconds is None else f"{seconds:,.0f}", group=one.group, ranked=not one.reference))
    columns = [Column("system", left=True), Column("dial", left=True)]
    for over, title in (("D0", "H@1"), ("D0", "H@10"), ("A_T", "H@10"), ("A_T", "H@1")):
        columns += [Column(title, over, "up"), Column(f"{title}, 95 %", over)]
    return Table(
        f"{setting.label}: after the last corpus, in per cent of test queries",
        [*columns, Column("seconds to learn, beside other work")],
        lines,
    )


def _dial(one: Finding) -> str:
    return f"{one.point.system.dial} {one.point.value}" if one.point.system.dial else ""


def _against(setting: Setting, ours: Finding, found: Sequence[Finding]) -> Table:
    lines = []
    for other in found:
        if other is ours or not other.records:
            continue
        entries: list[Entry | str | None] = [other.point.system.label]
        for _, measure in DIFFERENCES:
            entries += comparison(ours.against(other, measure))
        lines.append(line(*entries, group=other.group))
    name = ours.point.system.label
    columns = [Column(f"{name} minus", left=True)]
    columns += [Column(title, over) for over, _ in DIFFERENCES for title in ("points", "95 %", "p", "it is")]
    return Table(f"{setting.label}: {name} against each, paired over queries", columns, lines)
