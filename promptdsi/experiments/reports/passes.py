"""Table 4: prompts chosen within the one pass, or by a first pass through the whole encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from promptdsi.experiments.findings import Finding, Findings, Heading, Part, Text, on_d0, on_new, total
from promptdsi.experiments.plan import Setting
from promptdsi.experiments.published import BERT, SPEED_UP, TWO_PASSES
from promptdsi.experiments.reports.main import SYSTEM, comparison
from promptdsi.experiments.tables import Column, Entry, Table, line

NAME = "passes"
MEASURES = (on_d0("Hits@10"), on_d0("MRR@10"), on_new("Hits@10"), on_new("MRR@10"))


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        yield _scores(setting, found)
        yield _differences(setting, pairs(found))
    yield _paper()
    yield Text(
        "Speed-up is the time of two passes over that of one: of training, and per query at search. Cells run beside other work, "
        "so these ratios may be off by half; `make bench` measures both in turn (bench-passes.md). "
        "The first pass is the same every epoch, so that training can keep its vectors; the floating-point operations alone "
        "allow a factor of 1.5 in training and 2 in search."
    )


def pairs(found: Sequence[Finding]) -> list[tuple[Finding, Finding]]:
    """One pass and two of each strategy: labels are alike up to a comma."""
    twos = {one.label.split(",")[0]: one for one in found if one.group == "two"}
    return [(one, twos[one.label]) for one in found if one.group == "one" and one.label in twos]


def _scores(setting: Setting, found: Sequence[Finding]) -> Table:
    speed = {two.label: _speed_ups(one, two) for one, two in pairs(found)}
    lines = []
    for one, two in pairs(found):
        lines.append(line(one.label, *(one.score(measure) for measure in MEASURES), *speed[two.label], group=one.label))
        lines.append(line(two.label, *(two.score(measure) for measure in MEASURES), "1", "1", group=one.label))
    columns = [SYSTEM, *(Column(one.name, "A_T" if one.new else "D0") for one in MEASURES)]
    columns += [Column("training", "speed-up"), Column("search", "speed-up")]
    return Table(f"{setting.label}: one pass and two, after the last corpus, in per cent", columns, lines)


def _speed_ups(one: Finding, two: Finding) -> list[Entry | str | None]:
    """How much faster one pass is: training, search."""
    if not one.records or not two.records:
        return [None, None]
    trained = [each.each(lambda record: total(record, "training_seconds")) or 0.0 for each in (one, two)]
    asked = [each.each(lambda record: record["queries_per_second"]) or 0.0 for each in (one, two)]
    ratios = (trained[1] / trained[0] if trained[0] else 0.0, asked[0] / asked[1] if asked[1] else 0.0)
    return [f"{ratio:.2f}×" if ratio else None for ratio in ratios]


def _differences(setting: Setting, both: Sequence[tuple[Finding, Finding]]) -> Table:
    lines = []
    for one, two in both:
        for measure in MEASURES:
            name = f"{'A_T' if measure.new else 'D0'} {measure.name}"
            lines.append(line(name, *comparison(one.against(two, measure)), group=f"{one.label}: one pass minus two"))
    columns = [Column("figure", left=True), Column("difference"), Column("95 % interval"), Column("p"), Column("verdict", left=True)]
    return Table(f"{setting.label}: differences in points, over the same queries; two passes have one seed", columns, lines)


def _paper() -> Table:
    lines = []
    for label, figures in TWO_PASSES.items():
        lines.append(
            line(label, *(f"{figure:.1f}" for figure in BERT[label] if figure is not None), f"{SPEED_UP[label]:.1f}×", group=label)
        )
        lines.append(line(f"{label}, two passes", *(f"{figure:.1f}" for figure in figures), "1", group=label))
    columns = [SYSTEM, *(Column(one.name, "A_5" if one.new else "D0") for one in MEASURES), Column("claimed speed-up")]
    return Table("The paper (BERT, NQ320k); data, backbone and scale differ", columns, lines)
