"""Figures 2 and 3: A_t, LA_t and F_t after each corpus. References that learn all new corpora at once have no curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from promptdsi.bench.figures import draw_line, legend_below, look_of, panels
from promptdsi.bench.findings import Finding, Findings, Heading, Measure, Part, Plot, Text, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.tables import Column, Entry, Table, between, line, plain, score
from promptdsi.evaluation.continual import Estimate, Figures, Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "curves"
METRICS = ("Hits@10", "MRR@10")
NEAR = 0.2
AtStep = Callable[[Matrix, str, int], Figures]
STATISTICS: dict[str, tuple[AtStep, str, str]] = {
    "A_t": (Matrix.average, "average performance", "up"),
    "LA_t": (Matrix.learning, "learning performance", "up"),
    "F_t": (Matrix.forgetting, "forgetting", "down"),
}


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        drawn = [one for one in found if one.step_by_step]
        yield Heading(setting.label)
        if left_out := [one.label for one in found if one.records and not one.step_by_step]:
            yield Text(f"No curve for what learns all new corpora at once: {plain(', '.join(left_out))}.")
        if not drawn:
            continue
        yield _plot(setting.name, setting.label, drawn)
        if 0 < len(near := close(drawn)) < len(drawn):
            yield _plot(f"{setting.name}-near", f"{setting.label}, those within {100 * NEAR:.0f} points of the best A_T", near)
        for metric in METRICS:
            for name in STATISTICS:
                yield _table(setting, found, metric, name)
    yield Text("F_t takes the best of earlier steps, and chance makes a best look better: its intervals lean upwards.")


def close(drawn: Sequence[Finding]) -> list[Finding]:
    """Those near the best at the end: what forgot everything would press all others into one line."""
    ends = [one.value(on_new("Hits@10")) or 0.0 for one in drawn]
    return [one for one, end in zip(drawn, ends, strict=True) if end > max(ends) - NEAR]


def after(name: str, metric: str, step: int) -> Measure:
    """A statistic after one step."""
    statistic = STATISTICS[name][0]
    return Measure(f"{name} {metric}", lambda run, which: statistic(run, which, step), metric, new=True)


def curve(one: Finding, name: str, metric: str) -> list[Estimate]:
    """From t = 1 to the last step."""
    found = [one.estimate(after(name, metric, step)) for step in range(1, one.runs[0].last + 1)]
    return [each for each in found if each is not None]


def _table(setting: Setting, found: Sequence[Finding], metric: str, name: str) -> Table:
    last = next(one.runs[0].last for one in found if one.runs)
    lines = []
    for one in found:
        entries: list[Entry | str | None] = [None] * last
        if one.step_by_step:
            entries = [_with_interval(each) for each in curve(one, name, metric)]
        lines.append(line(one.label, *entries))
    columns = [Column("system", left=True), *(Column(f"t = {step}", best=STATISTICS[name][2]) for step in range(1, last + 1))]
    return Table(f"{setting.label}: {name} ({STATISTICS[name][1]}), {metric} in per cent, with 95 % intervals", columns, lines)


def _with_interval(found: Estimate) -> Entry:
    shown = score(found.value)
    assert shown is not None, "a value was given"
    return Entry(f"{shown.text} ({between(found)})", shown.number)


def _plot(name: str, label: str, drawn: Sequence[Finding]) -> Plot:
    def draw() -> Figure:
        figure, axes = panels(len(METRICS), len(STATISTICS), height=4.6, sharex=True)
        for down, metric in enumerate(METRICS):
            for across, (symbol, (_, words, _)) in enumerate(STATISTICS.items()):
                ax = axes[down, across]
                for place, one in enumerate(drawn):
                    found, aside = curve(one, symbol, metric), (place - (len(drawn) - 1) / 2) * 0.5 / len(drawn)
                    draw_line(ax, [step + aside for step in range(1, len(found) + 1)], found, one.label, look_of(one.label))
                ax.set_title(f"{words} ${symbol}$" if not down else "")
                ax.set_ylabel(f"{metric}, %" if not across else "")
                ax.set_xticks(range(1, drawn[0].runs[0].last + 1))
                ax.set_xlabel("corpora learned, t" if down == len(METRICS) - 1 else "")
                if symbol == "F_t":
                    ax.axhline(0, color="black", linewidth=0.6)
        legend_below(figure, axes[0, 0])
        return figure

    return Plot(name, f"{label}: A_t, LA_t and F_t after each corpus; bars are 95 % intervals over queries and seeds", draw)
