"""Table 4: prompts chosen within the one pass, or by a first pass through the whole encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Summary, Text
from promptdsi.bench.system_results import SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, row
from promptdsi.evaluation.continual import Estimate, estimate

from ..figures import draw_differences, plot
from ..published import BERT, NQ, SPEED_UP, TWO_PASSES
from ..shared import SYSTEM, at_seeds, comparison
from ..summaries import listed, plural, regimes, tested, with_interval

NAMES = ("A_T H@10", "D0 H@10")
MEASURES = (on_d0("Hits@10"), on_d0("MRR@10"), on_new("Hits@10"), on_new("MRR@10"))


def report(results: SystemResults) -> Iterator[Part]:
    yield _summary(results)
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _scores(setting, systems)
        yield _differences(setting, pairs(systems))
    yield _paper()
    yield Text(
        "How much faster one pass is cannot be told from these runs, which were made beside other work: `make bench` measures both in turn "
        "(docs/results/bench-passes.md). The first pass is the same every epoch, so that training can cache its vectors; the "
        "floating-point operations alone allow a factor of 1.5 in training and 2 in search."
    )


def _summary(results: SystemResults) -> Summary:
    """One pass minus two, on new documents and on D0."""
    differences: dict[str, dict[str, Estimate]] = {}
    several = len(list(results.settings())) > 1
    for setting, systems in results.settings():
        for single, two in pairs(systems):
            for name, measure in zip(NAMES, (MEASURES[2], MEASURES[0]), strict=True):
                if (figures := single.difference(two, measure)) is not None:
                    label = f"{setting.label}, {single.label}" if several else single.label
                    differences.setdefault(label, {})[name] = estimate(figures)
    estimates = [each for both in differences.values() for each in both.values()]
    texts = [
        f"on {where} by {listed([f'{with_interval(both[name])} for {label}' for label, both in differences.items() if name in both])}"
        for name, where in zip(NAMES, ("new documents", "D0"), strict=True)
    ]
    none = sum(not each.excludes_zero for each in estimates)
    compared = plural(len(estimates), "comparison")
    limits = f"No difference is shown in {none} of {compared}; speed cannot be told from these runs (bench-passes.md)"
    rows = [row(label, *(with_interval(both[name]) if name in both else None for name in NAMES)) for label, both in differences.items()]
    figure = plot(
        "differences", "One pass minus two, in points, with 95 % intervals", partial(draw_differences, differences, "one − two, points")
    )
    return Summary(
        tested(results),
        f"Selecting prompts in one pass instead of two changes Hits@10 {', '.join(texts)}." if estimates else "Not both have run.",
        f"{'; '.join(filter(None, [limits, regimes(results)]))}.",
        figure,
        Table("One pass minus two: points, 95 % interval", [SYSTEM, *(Column(name) for name in NAMES)], rows),
    )


def pairs(systems: Sequence[SystemResult]) -> list[tuple[SystemResult, SystemResult]]:
    """One pass and two of each strategy, at the seeds both have: a seed decides where rows and prompts start.

    Labels are alike up to a comma.
    """
    twos = {result.label.split(",")[0]: result for result in systems if result.group == "two"}
    both = [(result, twos[result.label]) for result in systems if result.group == "one" and result.label in twos]
    return [
        (at_seeds(single, two.seeds) if two.seeds else single, at_seeds(two, single.seeds) if single.seeds else two) for single, two in both
    ]


def _scores(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    both = [result for pair in pairs(systems) for result in pair]
    seeds = sorted({seed for result in both for seed in result.seeds})
    shown = [*both, *(at_seeds(result, seeds) for result in systems if result.group not in ("one", "two"))]
    rows = [
        row(
            result.label,
            *(result.score(measure) for measure in MEASURES),
            ", ".join(map(str, result.seeds)),
            group=result.label.split(",")[0],
        )
        for result in shown
    ]
    columns = [SYSTEM, *(Column(result.name, "A_T" if result.new else "D0") for result in MEASURES), Column("seeds")]
    return Table(f"{setting.label}: one pass and two, after the last corpus, in per cent, at the seeds both have", columns, rows)


def _differences(setting: Setting, both: Sequence[tuple[SystemResult, SystemResult]]) -> Table:
    rows = []
    for result, two in both:
        for measure in MEASURES:
            name = f"{'A_T' if measure.new else 'D0'} {measure.name}"
            rows.append(row(name, *comparison(result.against(two, measure)), group=f"{result.label}: one pass minus two"))
    columns = [Column("figure", left=True), Column("difference"), Column("95 % interval"), Column("p"), Column("verdict", left=True)]
    return Table(f"{setting.label}: differences in points, over the same queries and seeds", columns, rows)


def _paper() -> Table:
    rows = []
    for label, figures in TWO_PASSES.items():
        rows.append(
            row(label, *(f"{figure:.1f}" for figure in BERT[NQ][label] if figure is not None), f"{SPEED_UP[label]:.1f}×", group=label)
        )
        rows.append(row(f"{label}, two passes", *(f"{figure:.1f}" for figure in figures), "1", group=label))
    columns = [SYSTEM, *(Column(result.name, "A_5" if result.new else "D0") for result in MEASURES), Column("claimed speed-up")]
    return Table("The paper (BERT, NQ320k); data, backbone and scale differ", columns, rows)
