"""Figure 7: one prompted layer at a time, then windows of several; and which layer the paper's three criteria choose here."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from promptdsi.bench.figures import GREY, MARKERS, Look, draw_line, legend_below, look_of, panels
from promptdsi.bench.findings import Finding, Findings, Heading, Measure, Part, Plot, Text, on_d0, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.tables import Column, Entry, Line, Table, between, line, signed
from promptdsi.evaluation.continual import Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "layers"
D0, NEW, NEW_MRR = on_d0("Hits@10"), on_new("Hits@10"), on_new("MRR@10")
LOST = Measure("lost H@10", Matrix.d0_forgetting, "Hits@10")
CRITERIA = """The paper wants (1) lower forgetting on D0, (2) moderate performance on new corpora, (3) fewer layers. Read here as:

1. D0 H@10 is not shown to be worse than that of the layers with the best D0 H@10 (paired interval);
2. of those, A_T H@10 is not below the median over all layers tried;
3. of those, the fewest layers; then the higher A_T H@10, then the lower layer."""


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        if any(layers_of(one) and one.records for one in found):
            yield Plot(
                setting.name,
                f"{setting.label}: prompts at one layer; dashed: systems without prompts; bars and bands: 95 % intervals over queries",
                partial(_draw, found),
            )
        yield _single(setting, found)
        yield from _windows(setting, found)
        if any(len(layers_of(one)) > 1 and one.records for one in found):
            caption = f"{setting.label}: windows of layers, change against the single layer 1 (dashed), with 95 % intervals"
            yield Plot(f"{setting.name}-windows", caption, partial(_draw_windows, found))
        yield Text(CRITERIA + "\n\n" + "\n".join(f"- {sentence}" for sentence in _chosen(found)))


def layers_of(one: Finding) -> list[int]:
    """The layers a finding prompts; none for a reference."""
    return list(one.point.value) if isinstance(one.point.value, list | tuple) else []


def by_system(found: Sequence[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for one in found:
        if layers_of(one):
            groups.setdefault(one.point.system.label, []).append(one)
    return groups


def choose(tried: Sequence[Finding]) -> Finding | None:
    """The layers the criteria choose; nothing while some have not run."""
    if not tried or not all(one.records for one in tried):
        return None
    value = {one.label: (one.value(D0) or 0.0, one.value(NEW) or 0.0) for one in tried}
    best = max(tried, key=lambda one: value[one.label][0])
    keep = [one for one in tried if one is best or (compared := one.against(best, D0)) is None or compared.verdict != "worse"]
    middle = statistics.median(new for _, new in value.values())
    fair = [one for one in keep if value[one.label][1] >= middle] or keep
    return min(fair, key=lambda one: (len(layers_of(one)), -value[one.label][1], layers_of(one)[0]))


def _chosen(found: Sequence[Finding]) -> Iterator[str]:
    for label, tried in by_system(found).items():
        one = choose(tried)
        yield f"{label}: " + (f"layer {_name(one)}" if one else "–")
    yield "the paper chooses layer 2 of 12"


def _name(one: Finding) -> str:
    return ", ".join(str(layer) for layer in layers_of(one))


def _single(setting: Setting, found: Sequence[Finding]) -> Table:
    lines: list[Line] = []
    for label, tried in by_system(found).items():
        lines += [line(_name(one), *_scores(one), group=label) for one in tried if len(layers_of(one)) == 1]
    lines += [line(one.label, *_scores(one), group="No prompts", ranked=False) for one in found if not layers_of(one)]
    columns = [Column("layer", left=True)]
    for over, best in (("D0 H@10", "up"), (f"D0 {LOST.name}", "down"), ("A_T H@10", "up"), ("A_T M@10", "up")):
        columns += [Column("%", over, best), Column("95 % interval", over)]
    return Table(f"{setting.label}: one prompted layer", columns, lines)


def _scores(one: Finding) -> list[Entry | str | None]:
    """Each figure with its interval."""
    entries: list[Entry | str | None] = []
    for measure in (D0, LOST, NEW, NEW_MRR):
        found = one.estimate(measure)
        entries += [one.score(measure), None if found is None else between(found)]
    return entries


def _windows(setting: Setting, found: Sequence[Finding]) -> Iterator[Table]:
    """Several layers against the single first one, and against the single layer they begin with."""
    lines = []
    for label, tried in by_system(found).items():
        single = {layers_of(one)[0]: one for one in tried if len(layers_of(one)) == 1}
        for one in sorted((one for one in tried if len(layers_of(one)) > 1), key=lambda one: (len(layers_of(one)), layers_of(one))):
            group = f"{label}, {len(layers_of(one))} layers"
            for base in sorted({1, layers_of(one)[0]} & set(single)):
                lines.append(line(_name(one), str(base), *_changes(one, single[base]), group=group))
    if lines:
        columns = [Column("layers", left=True), Column("against layer")]
        columns += [Column(title, over) for over in ("D0 H@10", "A_T H@10", "A_T M@10") for title in ("change", "95 % interval")]
        yield Table(f"{setting.label}: windows of layers, change in points against a single layer", columns, lines)


def _changes(one: Finding, base: Finding) -> list[Entry | str | None]:
    entries: list[Entry | str | None] = []
    for measure in (D0, NEW, NEW_MRR):
        found = one.against(base, measure)
        entries += [None, None] if found is None else [signed(found.difference.value), between(found.difference, sign=True)]
    return entries


def _draw(found: Sequence[Finding]) -> Figure:
    figure, axes = panels(1, 2, height=2.7)
    for ax, measure, title in ((axes[0, 0], D0, "left of D0 at the end"), (axes[0, 1], NEW, "mean of the new corpora, $A_T$")):
        groups = by_system(found)
        for place, (label, tried) in enumerate(groups.items()):
            shown = [(layers_of(one)[0], one.estimate(measure)) for one in tried if len(layers_of(one)) == 1]
            known = [(layer, each) for layer, each in shown if each is not None]
            aside = (place - (len(groups) - 1) / 2) * 0.12
            draw_line(ax, [layer + aside for layer, _ in known], [each for _, each in known], label, look_of(label))
        for one in found:
            if not layers_of(one) and (found_there := one.estimate(measure)) is not None:
                look = look_of(one.label)
                ax.axhspan(100 * found_there.low, 100 * found_there.high, color=look.colour, alpha=0.12, linewidth=0)
                ax.axhline(100 * found_there.value, color=look.colour, linestyle="--", label=one.label)
        ax.set_xticks(sorted({layers_of(one)[0] for one in found if layers_of(one)}))
        ax.set_xlabel("prompted layer")
        ax.set_title(title)
    axes[0, 0].set_ylabel("Hits@10, %")
    legend_below(figure, axes[0, 0])
    return figure


def _draw_windows(found: Sequence[Finding]) -> Figure:
    figure, axes = panels(1, 3, height=2.6)
    shown = ((D0, "D0, Hits@10"), (NEW, "new corpora, $A_T$ Hits@10"), (NEW_MRR, "new corpora, $A_T$ MRR@10"))
    for ax, (measure, title) in zip(axes[0], shown, strict=True):
        for label, tried in by_system(found).items():
            base = next((one for one in tried if layers_of(one) == [1]), None)
            for width in sorted({len(layers_of(one)) for one in tried} - {1}):
                windows = [one for one in tried if len(layers_of(one)) == width]
                compared = [(layers_of(one)[0], one.against(base, measure)) for one in windows] if base else []
                known = [(first, each.difference) for first, each in compared if each is not None]
                at, look = [first + 0.08 * (width - 2) for first, _ in known], Look(look_of(label).colour, MARKERS[width])
                kind = "-" if width == 2 else ":"
                draw_line(ax, at, [each for _, each in known], f"{label}, {width} layers", look, kind=kind)
        ax.axhline(0, color=GREY, linestyle="--", linewidth=0.8)
        ax.set_xticks(sorted({layers_of(one)[0] for one in found if len(layers_of(one)) > 1}))
        ax.set_xlabel("first prompted layer")
        ax.set_title(title)
    axes[0, 0].set_ylabel("change, points")
    legend_below(figure, axes[0, 0])
    return figure
