"""Words beside rows: each system on every stream, `best` against each of them, and what D0 loses as documents arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from promptdsi.bench.report import Heading, Part, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row
from promptdsi.evaluation.continual import Figures, Matrix, estimate

from ..shared import comparison, interval, signed

GROUPS = REFERENCES, WORDS, ROWS_ALONE = ("References", "Words and rows", "Rows alone")
OURS = (WORDS, "best")
D0_FIRST, D0_TEN, NEW_FIRST, NEW_TEN = on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@1"), on_new("Hits@10")
SHOWN = (("D0", D0_FIRST), ("D0", D0_TEN), ("A_T", NEW_FIRST), ("A_T", NEW_TEN), ("A_T", on_new("MRR@10")))
DIFFERENCES = (("D0 H@1", D0_FIRST), ("A_T H@1", NEW_FIRST), ("A_T H@10", NEW_TEN), ("D0 H@10", D0_TEN))
CLAIMED = DIFFERENCES[:3]
BM25 = "BM25 with train queries"


def report(results: SystemResults) -> Iterator[Part]:
    streams = list(_streams(results))
    yield Heading("In short")
    yield from (Text(_verdict(name, systems)) for name, systems in streams if _find(systems, OURS))
    for name, systems in streams:
        yield Heading(name)
        yield _scores(name, systems)
        if ours := _find(systems, OURS):
            yield _against(name, ours, systems)


def _streams(results: SystemResults) -> Iterator[tuple[str, list[SystemResult]]]:
    """The systems of every stream, from all settings that have it: with words and without they begin from another D0."""
    streams: dict[str, tuple[str, list[SystemResult]]] = {}
    for setting, systems in results.settings():
        _, merged = streams.setdefault(str(sorted(setting.d0.stream.items())), (setting.label, []))
        merged += [result for result in systems if result.records]
    for name, merged in streams.values():
        yield name, sorted(merged, key=lambda result: GROUPS.index(result.group))


def _find(systems: Sequence[SystemResult], which: tuple[str, str]) -> SystemResult | None:
    return next((result for result in systems if (result.group, result.point.system.label) == which), None)


def _name(result: SystemResult) -> str:
    label = escape_markdown(result.point.system.label)
    return f"{label}, rows alone" if result.group == ROWS_ALONE else label


def fall_since_d1(matrix: Matrix, metric: str) -> Figures:
    """What D0 loses from D1 to the last corpus: other documents compete, or something is forgotten."""
    return matrix.entry(metric, 1, 0) - matrix.on_d0(metric)


FALL = Measure("fall", fall_since_d1, "Hits@10")


def _verdict(name: str, systems: Sequence[SystemResult]) -> str:
    """Whether ours is above each rival in the three figures, with which intervals, and what D0 loses beside BM25."""
    ours, lines = _find(systems, OURS), []
    assert ours is not None
    for other in systems:
        if other is ours:
            continue
        compared = [(figure, ours.against(other, measure)) for figure, measure in CLAIMED]
        texts = [f"{figure} {signed(both.difference.value)} ({interval(both.difference, sign=True)})" for figure, both in compared if both]
        better = sum(both is not None and both.verdict == "better" for _, both in compared)
        worse = sum(both is not None and both.verdict == "worse" for _, both in compared)
        lines.append(f"- minus {_name(other)}: {', '.join(texts)}; above zero in {better} of 3, below in {worse}")
    falls = [(result, result.figures(FALL)) for result in systems if result is ours or result.point.system.label == BM25]
    losses = ", ".join(f"{_name(result)} {100 * estimate(figures).value:.1f}" for result, figures in falls if figures is not None)
    return f"{name}, `best` with words:\n\n" + "\n".join(lines) + f"\n- D0 H@10 lost from D1 to the last corpus: {losses}"


def _scores(name: str, systems: Sequence[SystemResult]) -> Table:
    rows: list[TableRow] = []
    for result in systems:
        entries: list[TableEntry | str | None] = [_name(result)]
        for _, measure in SHOWN:
            value = result.estimate(measure)
            entries += [result.score(measure), None if value is None else interval(value)]
        fall, before = result.figures(FALL), result.value(Measure("before", lambda matrix, metric: matrix.entry(metric, 0, 0), "Hits@10"))
        entries += [None if before is None else f"{100 * before:.1f}", None if fall is None else f"{100 * float(fall[0]):.1f}"]
        rows.append(row(*entries, group=result.group, ranked=not result.reference))
    columns = [Column("system", left=True)]
    for over, measure in SHOWN:
        columns += [Column(measure.name, over, "up"), Column(f"{measure.name}, 95 %", over)]
    columns += [Column("H@10 before", "D0"), Column("H@10 lost since D1", "D0")]
    return Table(f"{name}: after the last corpus, in per cent of test queries", columns, rows)


def _against(name: str, ours: SystemResult, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for other in systems:
        if other is not ours:
            entries: list[TableEntry | str | None] = [_name(other)]
            for _, measure in DIFFERENCES:
                entries += comparison(ours.against(other, measure))
            rows.append(row(*entries, group=other.group))
    columns = [Column("best minus", left=True)]
    columns += [Column(title, over) for over, _ in DIFFERENCES for title in ("points", "95 %", "p", "it is")]
    return Table(f"{name}: best with words against each, paired over queries", columns, rows)
