"""Table 4: prompts chosen within the one pass, or by a first pass through the whole encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from promptdsi.bench.findings import Finding, Findings, Heading, Part, Text, at_seeds, on_d0, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.published import BERT, NQ, SPEED_UP, TWO_PASSES
from promptdsi.bench.reports.main import SYSTEM, comparison
from promptdsi.bench.tables import Column, Table, line

NAME = "passes"
MEASURES = (on_d0("Hits@10"), on_d0("MRR@10"), on_new("Hits@10"), on_new("MRR@10"))


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        yield _scores(setting, found)
        yield _differences(setting, pairs(found))
    yield _paper()
    yield Text(
        "How much faster one pass is cannot be told from cells, which run beside other work: `make bench` measures both in turn "
        "(docs/results/bench-passes.md). The first pass is the same every epoch, so that training can keep its vectors; the "
        "floating-point operations alone allow a factor of 1.5 in training and 2 in search."
    )


def pairs(found: Sequence[Finding]) -> list[tuple[Finding, Finding]]:
    """One pass and two of each strategy, at the seeds both have: a seed decides where rows and prompts start.

    Labels are alike up to a comma.
    """
    twos = {one.label.split(",")[0]: one for one in found if one.group == "two"}
    both = [(one, twos[one.label]) for one in found if one.group == "one" and one.label in twos]
    return [(at_seeds(one, two.seeds) if two.seeds else one, at_seeds(two, one.seeds) if one.seeds else two) for one, two in both]


def _scores(setting: Setting, found: Sequence[Finding]) -> Table:
    both = [one for pair in pairs(found) for one in pair]
    seeds = sorted({seed for one in both for seed in one.seeds})
    shown = [*both, *(at_seeds(one, seeds) for one in found if one.group not in ("one", "two"))]
    lines = [
        line(one.label, *(one.score(measure) for measure in MEASURES), ", ".join(map(str, one.seeds)), group=one.label.split(",")[0])
        for one in shown
    ]
    columns = [SYSTEM, *(Column(one.name, "A_T" if one.new else "D0") for one in MEASURES), Column("seeds")]
    return Table(f"{setting.label}: one pass and two, after the last corpus, in per cent, at the seeds both have", columns, lines)


def _differences(setting: Setting, both: Sequence[tuple[Finding, Finding]]) -> Table:
    lines = []
    for one, two in both:
        for measure in MEASURES:
            name = f"{'A_T' if measure.new else 'D0'} {measure.name}"
            lines.append(line(name, *comparison(one.against(two, measure)), group=f"{one.label}: one pass minus two"))
    columns = [Column("figure", left=True), Column("difference"), Column("95 % interval"), Column("p"), Column("verdict", left=True)]
    return Table(f"{setting.label}: differences in points, over the same queries and seeds", columns, lines)


def _paper() -> Table:
    lines = []
    for label, figures in TWO_PASSES.items():
        lines.append(
            line(label, *(f"{figure:.1f}" for figure in BERT[NQ][label] if figure is not None), f"{SPEED_UP[label]:.1f}×", group=label)
        )
        lines.append(line(f"{label}, two passes", *(f"{figure:.1f}" for figure in figures), "1", group=label))
    columns = [SYSTEM, *(Column(one.name, "A_5" if one.new else "D0") for one in MEASURES), Column("claimed speed-up")]
    return Table("The paper (BERT, NQ320k); data, backbone and scale differ", columns, lines)
