"""Ablations, one change at a time: each row against the first of its group, over the same queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, row

from ..shared import OF_P, comparison

MEASURES = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10"))


def report(results: SystemResults) -> Iterator[Part]:
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _table(setting, systems)
    marked = "Changes are in points against the first row of a group; those whose 95 % interval excludes zero are marked with *"
    yield Text(f"{marked}; {OF_P}")


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
