"""The systems at their chosen parameters, evaluated on the test split, and `best`, at each of its two row norms, against each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Attached, Heading, Part, Summary, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row
from promptdsi.evaluation.continual import Estimate, estimate

from .. import selection_rule, tradeoff
from ..figures import plot
from ..shared import before_in_words, interval
from ..summaries import D0_WORDS, NEW_WORDS, listed, over_settings, seeds_in_words, tested, upper_first, with_interval

RETAINED, RETAINED_TEN, NEW, NEW_FIRST = on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@10"), on_new("Hits@1")
COMPARED = (selection_rule.OURS, selection_rule.LARGER_NORM)  # with every other system
FULL_REPLAY = ("Rehearsal", "Rehearsal, with all that best has")
DIFFERENCES = (("A_T H@10", NEW), ("A_T H@1", NEW_FIRST), ("D0 H@1", RETAINED), ("D0 H@10", RETAINED_TEN))


SHORT = ("BM25 with train queries", "Rehearsal, with all that best has", "Rows only", "IncDSI", "S++")  # rivals of the summary


def report(results: SystemResults) -> Iterator[Part]:
    yield _summary(results)
    yield Heading("All streams")
    yield from _by_rival(results)
    for label in COMPARED:
        for name, measure in DIFFERENCES:
            if (table := _all_streams(results, label, name, measure)).rows:
                shown = label == selection_rule.OURS and measure is not RETAINED_TEN
                yield table if shown else Attached(table)
    yield _all_scores(results)
    for setting, systems in results.settings():
        yield Text(f"{setting.label}: {before_in_words(systems).text}")
        yield Attached(_scores(setting, systems))
    yield Text(f"Every figure with its interval, and further differences: {results.experiment.name}.json.")


def _summary(results: SystemResults) -> Summary:
    """Our rows against the strongest that learns nothing, full replay, rows only, IncDSI and S++."""
    settings = [(setting.label, systems) for setting, systems in results.settings()]
    compared = {(rival, measure): differences_from(settings, rival, measure) for rival in SHORT for measure in (NEW, RETAINED)}
    new = [over_settings(compared[rival, NEW], NEW_WORDS, f"“{rival}”") for rival in (SHORT[-1], SHORT[-2], SHORT[0])]
    d0 = over_settings(compared[SHORT[-1], RETAINED], D0_WORDS, f"“{SHORT[-1]}”")
    result = f"In the top ten, `{selection_rule.OURS}` retrieves {'; '.join(filter(None, new))}; of D0's first hits it retains {d0}."
    open_ends = [
        f"from “{rival}” on {number} of {len(compared[rival, NEW])}"
        for rival in SHORT
        if (number := sum(not each.excludes_zero for each in compared[rival, NEW].values()))
    ]
    limits = f"No difference in the top ten is shown {listed(open_ends)}; " if open_ends else ""
    common = f"{seeds_in_words(results)}, parameters were chosen on one stream, and the streams share documents"
    figure = plot(
        "streams",
        "New documents against what is retained of D0, test queries, 95 % intervals; the dotted line is D0 before anything was added",
        partial(tradeoff.draw_settings, settings, RETAINED, "Hits@1"),
    )
    rows = [
        row(f"best − {rival}", name, *(with_interval(each) if (each := by_setting.get(label)) else None for label, _ in settings))
        for (rival, measure), by_setting in compared.items()
        for name in ["A_T H@10" if measure is NEW else "D0 H@1"]
        if by_setting
    ]
    columns = [Column("compared", left=True), Column("figure", left=True), *(Column(label) for label, _ in settings)]
    table = Table("`best` minus each: points, 95 % interval", columns, rows)
    return Summary(tested(results), result, f"{limits}{common if limits else upper_first(common)}.", figure, table)


def differences_from(settings: Sequence[tuple[str, Sequence[SystemResult]]], rival: str, measure: Measure) -> dict[str, Estimate]:
    """`best` minus a rival, by setting."""
    differences: dict[str, Estimate] = {}
    for label, systems in settings:
        by_label = {result.point.system.label: result for result in systems if result.records}
        if {selection_rule.OURS, rival} <= by_label.keys():
            figures = by_label[selection_rule.OURS].difference(by_label[rival], measure)
            differences |= {} if figures is None else {label: estimate(figures)}
    return differences


def _all_scores(results: SystemResults) -> Table:
    """Every system in every stream: D0 H@1 / A_T H@10."""
    settings = list(results.settings())
    groups = {result.point.system.label: result.group for _, systems in settings for result in systems if result.records}
    rows = []
    for label, group in groups.items():
        texts = []
        for _, systems in settings:
            result = next((result for result in systems if result.records and result.point.system.label == label), None)
            entries = [None if result is None else result.score(measure) for measure in (RETAINED, NEW)]
            texts.append(" / ".join(entry.text for entry in entries if entry) or None)
        rows.append(row(label, *texts, group=group))
    columns = [Column("system", left=True), *(Column(setting.label) for setting, _ in settings)]
    return Table("D0 H@1 / A_T H@10 after the last corpus, in per cent of test queries", columns, rows)


def _by_rival(results: SystemResults) -> Iterator[Part]:
    """Whether ours is better on new corpora than each continual system, what both retain of D0, and the distance to full replay."""
    for label in COMPARED:
        lines = []
        for setting, systems in results.settings():
            ours = next((result for result in systems if result.records and result.point.system.label == label), None)
            rivals = [result for result in systems if ours and result.records and not result.reference and result.group != ours.group]
            if ours and rivals:
                new, retained = ([(rival, _difference(ours, rival, measure)) for rival in rivals] for measure in (NEW, RETAINED))
                lines.append(f"- {setting.label}: A_T H@10 {_by_verdict(new)}. D0 H@1 {_by_verdict(retained)}.")
            bounds = [result for result in systems if result.records and result.point.system.label in FULL_REPLAY]
            lines += [_against_full_replay(ours, bound) for bound in bounds if ours]
        if lines:
            yield Text(f"“{label}” against every continual system that ran there, by paired intervals over queries:\n\n" + "\n".join(lines))


def _difference(ours: SystemResult, other: SystemResult | None, measure: Measure) -> Estimate | None:
    figures = None if other is None else ours.difference(other, measure)
    return None if figures is None else estimate(figures)


def _verdict(difference: Estimate) -> str:
    return "no difference shown to" if not difference.excludes_zero else "better than" if difference.value > 0 else "worse than"


def _by_verdict(compared: Sequence[tuple[SystemResult, Estimate | None]]) -> str:
    """Which systems are worse, which better, and against which no difference is shown."""
    names: dict[str, list[str]] = {"better than": [], "worse than": [], "no difference shown to": []}
    for rival, difference in compared:
        if difference is not None:
            names[_verdict(difference)].append(escape_markdown(rival.point.system.label))
    return "; ".join(f"{words} {', '.join(labels)}" for words, labels in names.items() if labels)


def _against_full_replay(ours: SystemResult, other: SystemResult) -> str:
    """The distance from a system that may read every old query."""
    differences = [(name, _difference(ours, other, measure)) for name, measure in DIFFERENCES if measure in (NEW, RETAINED)]
    numbers = [f"{name} {with_interval(difference)}" for name, difference in differences if difference]
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
        differences = [_difference(ours, theirs, measure) if ours else None for ours, theirs in pairs]
        if any(differences):
            rows.append(row(other, *(difference and with_interval(difference) for difference in differences), group=group))
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
