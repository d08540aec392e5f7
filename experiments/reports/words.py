"""Words beside rows: each system on every stream, `best` against each of them, and what D0 loses as documents arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench.report import Attached, Heading, Part, Summary, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row
from promptdsi.evaluation.continual import Estimate, Figures, Matrix, estimate

from ..figures import draw_differences, plot
from ..shared import interval
from ..summaries import D0_WORDS, NEW_WORDS, listed, over_settings, seeds_in_words, tested, upper_first, with_interval

GROUPS = REFERENCES, WORDS, ROWS_ALONE = ("References", "Words and rows", "Rows alone")
OURS = (WORDS, "best")
D0_FIRST, D0_TEN, NEW_FIRST, NEW_TEN = on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@1"), on_new("Hits@10")
SHOWN = (("D0", D0_FIRST), ("D0", D0_TEN), ("A_T", NEW_FIRST), ("A_T", NEW_TEN), ("A_T", on_new("MRR@10")))
DIFFERENCES = (("D0 H@1", D0_FIRST), ("A_T H@1", NEW_FIRST), ("A_T H@10", NEW_TEN), ("D0 H@10", D0_TEN))
CLAIMED = DIFFERENCES[:3]
BM25 = "BM25 with train queries"


SHORT = (
    (REFERENCES, BM25),
    (REFERENCES, "Hybrid"),
    (WORDS, "Rehearsal, with all that best has"),
    (ROWS_ALONE, "best"),
    (ROWS_ALONE, "S++"),
)
Streams = Sequence[tuple[str, Sequence[SystemResult]]]


def report(results: SystemResults) -> Iterator[Part]:
    streams = list(streams_of(results))
    yield _summary(results, streams)
    yield Heading("All streams")
    for name, measure in DIFFERENCES:
        table = _all_streams(streams, name, measure)
        yield table if (name, measure) in CLAIMED else Attached(table)
    yield _all_scores(streams)
    yield Text(_lost(streams))
    for name, systems in streams:
        yield Attached(_scores(name, systems))
    yield Text(f"Every figure with its interval: {results.experiment.name}.json.")


def _summary(results: SystemResults, streams: Streams) -> Summary:
    """Words and rows in one score against BM25, the hybrid without training, full replay, and rows alone."""
    compared = {(rival, measure): differences_from(streams, rival, measure) for rival in SHORT for measure in (NEW_FIRST, D0_FIRST)}
    ran = {key: differences for key, differences in compared.items() if differences}
    first = [over_settings(each, NEW_WORDS, _quoted(rival)) for (rival, measure), each in ran.items() if measure is NEW_FIRST][:2]
    old = [over_settings(each, D0_WORDS, _quoted(rival)) for (rival, measure), each in ran.items() if measure is D0_FIRST][:2]
    result = f"At rank one, `best` with words retrieves {'; '.join(first) or 'nothing to compare'}; of D0 {'; '.join(old) or 'the same'}."
    open_ends = [
        f"from {_quoted(rival)} on {number} of {len(each)}"
        for (rival, measure), each in ran.items()
        if measure is NEW_FIRST and (number := sum(not difference.excludes_zero for difference in each.values()))
    ]
    limits = f"No difference at rank one of new documents is shown {listed(open_ends)}; " if open_ends else ""
    common = f"{seeds_in_words(results)}, the streams share documents, and parameters were chosen on one of them (Hyper-parameters, below)"
    rows = [
        row(f"best − {_quoted(rival)}", _figure(measure), *(with_interval(each[name]) if name in each else None for name, _ in streams))
        for (rival, measure), each in ran.items()
    ]
    columns = [Column("compared", left=True), Column("figure", left=True), *(Column(name) for name, _ in streams)]
    shown_differences = {f"{_quoted(rival)}, {_figure(measure)}": each for (rival, measure), each in ran.items()}
    caption = "`best` with words minus each, in points, with 95 % intervals; right of zero `best` is ahead"
    figure = plot("differences", caption, partial(draw_differences, shown_differences, "best minus the other, points"))
    table = Table("`best` with words minus each: points, 95 % interval", columns, rows)
    return Summary(tested(results), result, f"{limits}{common if limits else upper_first(common)}.", figure, table)


def _figure(measure: Measure) -> str:
    return next(name for name, each in DIFFERENCES if each is measure)


def _quoted(rival: tuple[str, str]) -> str:
    group, label = rival
    return f"“{label}”, rows alone" if group == ROWS_ALONE else f"“{label}”"


def differences_from(streams: Streams, rival: tuple[str, str], measure: Measure) -> dict[str, Estimate]:
    """`best` with words minus a rival, by stream."""
    differences: dict[str, Estimate] = {}
    for name, systems in streams:
        ours, theirs = _find(systems, OURS), _find(systems, rival)
        figures = ours.difference(theirs, measure) if ours and theirs else None
        differences |= {} if figures is None else {name: estimate(figures)}
    return differences


def _rivals(streams: Streams) -> list[tuple[str, str]]:
    names = dict.fromkeys((result.group, result.point.system.label) for _, systems in streams for result in systems)
    return sorted((name for name in names if name != OURS), key=lambda name: GROUPS.index(name[0]))


def _all_streams(streams: Streams, name: str, measure: Measure) -> Table:
    rows = []
    for rival in _rivals(streams):
        differences = differences_from(streams, rival, measure)
        texts = [with_interval(differences[stream]) if stream in differences else None for stream, _ in streams]
        rows.append(row(rival[1], *texts, group=rival[0]))
    columns = [Column("best with words minus", left=True), *(Column(stream) for stream, _ in streams)]
    return Table(f"{name} in points, with 95 % intervals, paired over queries", columns, rows)


def _all_scores(streams: Streams) -> Table:
    """Every system in every stream: D0 H@1 / A_T H@1 / A_T H@10."""
    rows = []
    for name in [OURS, *_rivals(streams)]:
        texts = []
        for _, systems in streams:
            result = _find(systems, name)
            entries = [None if result is None else result.score(measure) for measure in (D0_FIRST, NEW_FIRST, NEW_TEN)]
            texts.append(" / ".join(entry.text for entry in entries if entry) or None)
        rows.append(row(name[1], *texts, group=name[0]))
    columns = [Column("system", left=True), *(Column(stream) for stream, _ in streams)]
    return Table("D0 H@1 / A_T H@1 / A_T H@10 after the last corpus, in per cent of test queries", columns, rows)


def _lost(streams: Streams) -> str:
    """What D0 loses as documents arrive, beside BM25."""
    lines = []
    for name, systems in streams:
        falls = [
            (result, result.figures(FALL)) for result in systems if result is _find(systems, OURS) or result.point.system.label == BM25
        ]
        lines.append(f"{name}: " + ", ".join(f"{_name(result)} {100 * figures[0]:.1f}" for result, figures in falls if figures is not None))
    return f"D0 H@10 lost from D1 to the last corpus, in points: {'; '.join(lines)}."


def streams_of(results: SystemResults) -> Iterator[tuple[str, list[SystemResult]]]:
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
