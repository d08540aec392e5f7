"""Figures 2 and 3: A_t, LA_t and F_t after each corpus. References that learn all new corpora at once have no curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import SUMMARY_ROWS, Attached, Heading, Part, Plot, Summary, Text
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, escape_markdown, row, score
from promptdsi.evaluation.continual import Estimate, Figures, Matrix

from ..figures import draw_line, legend_below, look_of, panels, plot
from ..shared import interval, step_by_step
from ..summaries import regimes, tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("Hits@10", "MRR@10")
NEAR = 0.2
AtStep = Callable[[Matrix, str, int], Figures]
STATISTICS: dict[str, tuple[AtStep, str, str]] = {
    "A_t": (Matrix.average, "average performance", "up"),
    "LA_t": (Matrix.learning, "learning performance", "up"),
    "F_t": (Matrix.forgetting, "forgetting", "down"),
}


def report(results: SystemResults) -> Iterator[Part]:
    yield from _summary(results)
    for place, (setting, systems) in enumerate(results.settings()):
        stepwise = [result for result in systems if step_by_step(result)]
        yield Heading(setting.label)
        if left_out := [result.label for result in systems if result.records and not step_by_step(result)]:
            yield Text(f"No curve for systems that learn all new corpora at once: {escape_markdown(', '.join(left_out))}.")
        if not stepwise:
            continue
        if place:  # that of the first setting is in the summary
            yield _plot(setting.name, setting.label, stepwise)
        if 0 < len(near := close(stepwise)) < len(stepwise):
            yield _plot(f"{setting.name}-near", f"{setting.label}, those within {100 * NEAR:.0f} points of the best A_T", near)
        for metric in METRICS:
            for name in STATISTICS:
                table = _table(setting, systems, metric, name)
                yield table if metric == METRICS[0] else Attached(table)
    yield Text("F_t takes the best of earlier steps, and chance makes a best look better: its intervals lean upwards.")


def _summary(results: SystemResults) -> Iterator[Summary]:
    """A_T, LA_T and F_T of the first setting that has curves."""
    for setting, systems in results.settings():
        if stepwise := [result for result in systems if step_by_step(result)]:
            ends = {result.label: [curve(result, name, METRICS[0])[-1] for name in STATISTICS] for result in stepwise}
            best, least = max(ends, key=lambda label: ends[label][0].value), min(ends, key=lambda label: ends[label][2].value)
            result = (
                f"After the last corpus {best} has the highest A_T, {_in_words(ends[best][0])}, and {least} the least forgetting F_T, "
                f"{_in_words(ends[least][2])} ({setting.label}, {METRICS[0]})"
            )
            shown = sorted(ends, key=lambda label: -ends[label][0].value)[:SUMMARY_ROWS]
            rows = [row(label, *(_with_interval(each) for each in ends[label])) for label in shown]
            columns = [Column("system", left=True), *(Column(name.replace("_t", "_T"), best=STATISTICS[name][2]) for name in STATISTICS)]
            table = Table(f"{setting.label}: {METRICS[0]} after the last corpus in per cent, with 95 % intervals", columns, rows)
            limits = "; ".join(filter(None, ["Intervals of F_T lean upwards, because F_T takes a best of earlier steps", regimes(results)]))
            yield Summary(tested(results), f"{result}.", f"{limits}.", _plot(setting.name, setting.label, stepwise), table)
            return


def _in_words(each: Estimate) -> str:
    return f"{100 * each.value:.1f} ({interval(each)})".replace("-", "−")


def close(results: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems near the best at the end: one that forgot everything would press all others into one line."""
    ends = [result.value(on_new("Hits@10")) or 0.0 for result in results]
    return [result for result, end in zip(results, ends, strict=True) if end > max(ends) - NEAR]


def after(name: str, metric: str, step: int) -> Measure:
    """A statistic after one step."""
    statistic = STATISTICS[name][0]
    return Measure(f"{name} {metric}", lambda run, which: statistic(run, which, step), metric, new=True)


def curve(result: SystemResult, name: str, metric: str) -> list[Estimate]:
    """From t = 1 to the last step."""
    estimates = [result.estimate(after(name, metric, step)) for step in range(1, result.runs[0].last + 1)]
    return [estimate for estimate in estimates if estimate is not None]


def _table(setting: Setting, systems: Sequence[SystemResult], metric: str, name: str) -> Table:
    last = next(result.runs[0].last for result in systems if result.runs)
    rows = []
    for result in systems:
        entries: list[TableEntry | str | None] = [None] * last
        if step_by_step(result):
            entries = [_with_interval(estimate) for estimate in curve(result, name, metric)]
        rows.append(row(result.label, *entries))
    columns = [Column("system", left=True), *(Column(f"t = {step}", best=STATISTICS[name][2]) for step in range(1, last + 1))]
    return Table(f"{setting.label}: {name} ({STATISTICS[name][1]}), {metric} in per cent, with 95 % intervals", columns, rows)


def _with_interval(estimate: Estimate) -> TableEntry:
    entry = score(estimate.value)
    assert entry is not None, "a value was given"
    return TableEntry(f"{entry.text} ({interval(estimate)})", entry.number)


def _plot(name: str, label: str, results: Sequence[SystemResult]) -> Plot:
    def draw() -> Figure:
        figure, axes = panels(len(METRICS), len(STATISTICS), height=4.6, sharex=True)
        for down, metric in enumerate(METRICS):
            for across, (symbol, (_, words, _)) in enumerate(STATISTICS.items()):
                ax = axes[down, across]
                for index, result in enumerate(results):
                    estimates, shift = curve(result, symbol, metric), (index - (len(results) - 1) / 2) * 0.5 / len(results)
                    steps = [step + shift for step in range(1, len(estimates) + 1)]  # side by side, so that bars do not cover each other
                    draw_line(ax, steps, estimates, result.label, look_of(result.label))
                ax.set_title(f"{words} ${symbol}$" if not down else "")
                ax.set_ylabel(f"{metric}, %" if not across else "")
                ax.set_xticks(range(1, results[0].runs[0].last + 1))
                ax.set_xlabel("corpora learned, t" if down == len(METRICS) - 1 else "")
                if symbol == "F_t":
                    ax.axhline(0, color="black", linewidth=0.6)
        legend_below(figure, axes[0, 0])
        return figure

    return plot(name, f"{label}: A_t, LA_t and F_t after each corpus; bars are 95 % intervals over queries and seeds", draw)
