"""Figure 7: one prompted layer at a time, then windows of several; and which layer the paper's three criteria select here."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import SUMMARY_ROWS, Heading, Part, Plot, Summary, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, row
from promptdsi.evaluation.continual import Estimate, Matrix

from ..figures import GREY, MARKERS, Look, draw_line, legend_below, look_of, panels, plot
from ..shared import interval, signed
from ..summaries import listed, regimes, seeds_in_words, tested, upper_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D0, D0_MRR, NEW, NEW_MRR = on_d0("Hits@10"), on_d0("MRR@10"), on_new("Hits@10"), on_new("MRR@10")
FORGETTING = Measure("forgetting H@10", Matrix.d0_forgetting, "Hits@10")
CRITERIA = """The paper wants (1) lower forgetting on D0, (2) moderate performance on new corpora, (3) fewer layers. Read here as:

1. D0 H@10 is not shown to be worse than that of the layers with the best D0 H@10 (paired interval);
2. of those, A_T H@10 is not below the median over all layers tried;
3. of those, the fewest layers; then the higher A_T H@10, then the lower layer."""


def report(results: SystemResults) -> Iterator[Part]:
    for place, (setting, systems) in enumerate(results.settings()):
        if not place:
            yield _summary(results, setting, systems)
        yield Heading(setting.label)
        if place:  # that of the first setting is in the summary
            yield _figure(setting, systems)
        yield _single(setting, systems)
        yield from _windows(setting, systems)
        if any(len(layers_of(result)) > 1 and result.records for result in systems):
            caption = f"{setting.label}: windows of layers, change in per cent of the single layer 1 (dashed), with 95 % intervals"
            yield plot(f"{setting.name}-windows", caption, partial(_draw_windows, systems))
        yield Text(CRITERIA + "\n\n" + "\n".join(f"- {sentence}" for sentence in _chosen(systems)))


def _summary(results: SystemResults, setting: Setting, systems: Sequence[SystemResult]) -> Summary:
    """Per system the layers that retain D0 best, those best on new documents, and those the criteria select."""
    rows, chosen = [], []
    for label, tried in by_system(systems).items():
        ran = [result for result in tried if result.records]
        picks = {measure.name: max(ran, key=lambda result: result.value(measure) or 0.0) for measure in (D0, NEW) if ran}
        selected = choose(tried)
        chosen.append(f"layer {_name(selected)} for {label}" if selected else f"nothing yet for {label}")
        for why, result in (("best on D0", picks.get(D0.name)), ("best on new documents", picks.get(NEW.name)), ("selected", selected)):
            estimates = [None if result is None else result.estimate(measure) for measure in (D0, NEW)]
            texts = [None if each is None else f"{100 * each.value:.1f} ({interval(each)})" for each in estimates]
            rows.append(row(f"{label}, {why}", None if result is None else _name(result), *texts))
    limits = "; ".join(filter(None, ["a lower prompt also means more layers with dropout", seeds_in_words(results), regimes(results)]))
    columns = [Column("system", left=True), Column("layers"), Column("D0 H@10"), Column("A_T H@10")]
    table = Table(f"{setting.label}: layers, in per cent with 95 % intervals", columns, rows[:SUMMARY_ROWS])
    sentence = f"The paper's criteria, as read here, select {listed(chosen)}; the paper chooses layer 2 of 12."
    return Summary(tested(results), sentence, f"{upper_first(limits)}.", _figure(setting, systems), table)


def _figure(setting: Setting, systems: Sequence[SystemResult]) -> Plot:
    caption = f"{setting.label}: prompts at one layer; dashed: systems without prompts; bars and bands: 95 % intervals over queries"
    return plot(setting.name, caption, partial(_draw, systems))


def layers_of(result: SystemResult) -> list[int]:
    """The prompted layers of a system; none for a reference."""
    return list(result.point.value) if isinstance(result.point.value, list | tuple) else []


def by_system(systems: Sequence[SystemResult]) -> dict[str, list[SystemResult]]:
    groups: dict[str, list[SystemResult]] = {}
    for result in systems:
        if layers_of(result):
            groups.setdefault(result.point.system.label, []).append(result)
    return groups


def choose(tried: Sequence[SystemResult]) -> SystemResult | None:
    """The layers the criteria choose; nothing while some have not run."""
    if not tried or not all(result.records for result in tried):
        return None
    value = {result.label: (result.value(D0) or 0.0, result.value(NEW) or 0.0) for result in tried}
    best = max(tried, key=lambda result: value[result.label][0])
    keep = [result for result in tried if result is best or (compared := result.against(best, D0)) is None or compared.verdict != "worse"]
    middle = statistics.median(new for _, new in value.values())
    fair = [result for result in keep if value[result.label][1] >= middle] or keep
    return min(fair, key=lambda result: (len(layers_of(result)), -value[result.label][1], layers_of(result)[0]))


def _chosen(systems: Sequence[SystemResult]) -> Iterator[str]:
    for label, tried in by_system(systems).items():
        result = choose(tried)
        yield f"{label}: " + (f"layer {_name(result)}" if result else "–")
    yield "the paper chooses layer 2 of 12"


def _name(result: SystemResult) -> str:
    return ", ".join(str(layer) for layer in layers_of(result))


def _single(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows: list[TableRow] = []
    for label, tried in by_system(systems).items():
        rows += [row(_name(result), *_scores(result), group=label) for result in tried if len(layers_of(result)) == 1]
    rows += [row(result.label, *_scores(result), group="No prompts", ranked=False) for result in systems if not layers_of(result)]
    columns = [Column("layer", left=True)]
    shown = (("D0 H@10", "up"), ("D0 M@10", "up"), (f"D0 {FORGETTING.name}", "down"), ("A_T H@10", "up"), ("A_T M@10", "up"))
    for over, best in shown:
        columns += [Column("%", over, best), Column("95 % interval", over)]
    return Table(f"{setting.label}: one prompted layer", columns, rows)


def _scores(result: SystemResult) -> list[TableEntry | str | None]:
    """Each figure with its interval."""
    entries: list[TableEntry | str | None] = []
    for measure in (D0, D0_MRR, FORGETTING, NEW, NEW_MRR):
        estimate = result.estimate(measure)
        entries += [result.score(measure), None if estimate is None else interval(estimate)]
    return entries


def _windows(setting: Setting, systems: Sequence[SystemResult]) -> Iterator[Table]:
    """Several layers against the single first one, and against the single layer they begin with."""
    rows = []
    for label, tried in by_system(systems).items():
        single = {layers_of(result)[0]: result for result in tried if len(layers_of(result)) == 1}
        for result in sorted(
            (result for result in tried if len(layers_of(result)) > 1), key=lambda result: (len(layers_of(result)), layers_of(result))
        ):
            group = f"{label}, {len(layers_of(result))} layers"
            for base in sorted({1, layers_of(result)[0]} & set(single)):
                rows.append(row(_name(result), str(base), *_changes(result, single[base]), group=group))
    if rows:
        columns = [Column("layers", left=True), Column("against layer")]
        columns += [
            Column(title, over) for over in ("D0 H@10", "D0 M@10", "A_T H@10", "A_T M@10") for title in ("change, %", "95 % interval")
        ]
        yield Table(f"{setting.label}: windows of layers, change in per cent of what a single layer reaches", columns, rows)


def change(result: SystemResult, base: SystemResult, measure: Measure) -> Estimate | None:
    """How much more or less than `base`, as a share of what `base` reaches, as the paper prints it; None where that is nothing."""
    compared, reached = result.against(base, measure), base.value(measure)
    return Estimate(*(end / reached for end in compared.difference)) if compared is not None and reached else None


def _changes(result: SystemResult, base: SystemResult) -> list[TableEntry | str | None]:
    entries: list[TableEntry | str | None] = []
    for measure in (D0, D0_MRR, NEW, NEW_MRR):
        changed = change(result, base, measure)
        entries += [None, None] if changed is None else [signed(changed.value), interval(changed, sign=True)]
    return entries


def _draw(systems: Sequence[SystemResult]) -> Figure:
    figure, axes = panels(1, 2, height=2.7)
    for ax, measure, title in ((axes[0, 0], D0, "retained of D0 at the end"), (axes[0, 1], NEW, "mean of the new corpora, $A_T$")):
        groups = by_system(systems)
        for index, (label, tried) in enumerate(groups.items()):
            shown = [(layers_of(result)[0], result.estimate(measure)) for result in tried if len(layers_of(result)) == 1]
            points = [(layer, estimate) for layer, estimate in shown if estimate is not None]
            shift = (index - (len(groups) - 1) / 2) * 0.12
            draw_line(ax, [layer + shift for layer, _ in points], [estimate for _, estimate in points], label, look_of(label))
        for result in systems:
            if not layers_of(result) and (estimate := result.estimate(measure)) is not None:
                look = look_of(result.label)
                ax.axhspan(100 * estimate.low, 100 * estimate.high, color=look.color, alpha=0.12, linewidth=0)
                ax.axhline(100 * estimate.value, color=look.color, linestyle="--", label=result.label)
        ax.set_xticks(sorted({layers_of(result)[0] for result in systems if layers_of(result)}))
        ax.set_xlabel("prompted layer")
        ax.set_title(title)
    axes[0, 0].set_ylabel("Hits@10, %")
    legend_below(figure, axes[0, 0])
    return figure


def _draw_windows(systems: Sequence[SystemResult]) -> Figure:
    figure, axes = panels(1, 4, height=2.6)
    shown = ((D0, "D0, Hits@10"), (D0_MRR, "D0, MRR@10"), (NEW, "$A_T$ Hits@10"), (NEW_MRR, "$A_T$ MRR@10"))
    for ax, (measure, title) in zip(axes[0], shown, strict=True):
        for label, tried in by_system(systems).items():
            base = next((result for result in tried if layers_of(result) == [1]), None)
            for width in sorted({len(layers_of(result)) for result in tried} - {1}):
                windows = [result for result in tried if len(layers_of(result)) == width]
                changes = [(layers_of(result)[0], change(result, base, measure)) for result in windows] if base else []
                points = [(first, changed) for first, changed in changes if changed is not None]
                at, look = [first + 0.08 * (width - 2) for first, _ in points], Look(look_of(label).color, MARKERS[width])
                kind = "-" if width == 2 else ":"
                draw_line(ax, at, [estimate for _, estimate in points], f"{label}, {width} layers", look, kind=kind)
        ax.axhline(0, color=GREY, linestyle="--", linewidth=0.8)
        ax.set_xticks(sorted({layers_of(result)[0] for result in systems if len(layers_of(result)) > 1}))
        ax.set_xlabel("first prompted layer")
        ax.set_title(title)
    axes[0, 0].set_ylabel("change, %")
    legend_below(figure, axes[0, 0])
    return figure
