"""One thing changed at a time: each line against the first of its group, over the same queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from promptdsi.bench.findings import Finding, Findings, Heading, Measure, Part, Text, on_d0, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.reports.main import OF_P, comparison
from promptdsi.bench.tables import Column, Entry, Line, Table, line

NAME = "ablations"
MEASURES = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10"))


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        yield _table(setting, found)
    marked = "Changes are in points against the first line of a group; those whose 95 % interval excludes zero are marked with *"
    yield Text(f"{marked}; {OF_P}")


def _table(setting: Setting, found: Sequence[Finding]) -> Table:
    lines: list[Line] = []
    for group, members in groupby(found, key=lambda one: one.group):
        base, *others = members
        lines.append(_line(base, None, group))
        lines += [_line(one, base, group) for one in others]
    columns = [Column("changed", left=True)]
    columns += [Column(title, measure.name) for measure in MEASURES for title in ("%", "change", "95 % interval", "p")]
    return Table(f"{setting.label}: one thing changed at a time; * where the 95 % interval of a change excludes zero", columns, lines)


def _line(one: Finding, base: Finding | None, group: str) -> Line:
    entries: list[Entry | str | None] = [one.label]
    for measure in MEASURES:
        entries += [one.score(measure), *(("", "", "") if base is None else _change(one, base, measure))]
    return line(*entries, group=group)


def _change(one: Finding, base: Finding, measure: Measure) -> list[Entry | str | None]:
    """The change with its mark, its interval and its p-value."""
    found = one.against(base, measure)
    change, interval, p, _ = comparison(found)
    return [f"{change}*" if found is not None and found.difference.excludes_zero else change, interval, p]
