"""Every system at every value of its dial, on dev queries, and which value is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from promptdsi.errors import UsageError
from promptdsi.experiments import choosing
from promptdsi.experiments.figures import GREY, legend_below, look_of, panels
from promptdsi.experiments.findings import Data, Finding, Findings, Heading, Part, Plot, Text, on_d0, on_new
from promptdsi.experiments.plan import Setting
from promptdsi.experiments.tables import Column, Entry, Table, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "choosing"
ACROSS = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"))
NEW = on_new("Hits@10", "A_T H@10")
COLUMNS = (*ACROSS, NEW, on_new("Hits@1", "A_T H@1"), on_new("MRR@10", "A_T M@10"))
RULE = " ".join((choosing.__doc__ or "").split("\n\n", 1)[1].split())


def parts(findings: Findings) -> Iterator[Part]:
    if len(findings.experiment.settings) > 1:
        raise UsageError("dials are chosen on one stream; the scale names several settings for this experiment")
    for setting, found in findings.settings():
        chosen = choosing.choose(found)
        yield Heading(setting.label)
        caption = f"{setting.label}, dev queries: up is learning the new, right is keeping the old; a line joins the values of a dial"
        yield Plot(setting.name, caption, partial(draw, found))
        yield _table(setting, found, chosen)
        yield Text(f"The rule: {RULE}")
        yield Data({"chosen": chosen, "setting": setting.name, "split": findings.experiment.split, "rule": RULE})


def _table(setting: Setting, found: Sequence[Finding], chosen: dict[str, object]) -> Table:
    lines = []
    for one in found:
        system = one.point.system
        is_chosen = bool(system.dial) and system.label in chosen and chosen[system.label] == one.point.value
        dial = f"{system.dial} {one.point.value}" if system.dial else ""
        entries: list[Entry | str | None] = [
            system.label,
            dial,
            "chosen" if is_chosen else "",
            *(one.score(measure) for measure in COLUMNS),
        ]
        lines.append(line(*entries, group=one.group, ranked=False))
    columns = [Column("system", left=True), Column("dial", left=True), Column(""), *(Column(measure.name) for measure in COLUMNS)]
    return Table(f"{setting.label}: every dial, in per cent of dev queries", columns, lines)


def draw(found: Sequence[Finding]) -> Figure:
    """New against old, one line per system through the values of its dial."""
    figure, axes = panels(1, 2, height=4.2)
    systems: dict[str, list[Finding]] = {}
    for one in found:
        if one.records:
            systems.setdefault(one.point.system.label, []).append(one)
    for ax, across in zip(axes[0], ACROSS, strict=True):
        for label, points in systems.items():
            at = [(100 * choosing.value(one, across), 100 * choosing.value(one, NEW)) for one in points]
            look = look_of(label)
            colour = GREY if points[0].reference else look.colour
            ours = label.startswith(choosing.OURS)
            ax.plot(*zip(*at, strict=True), color=colour, marker=look.marker, label=label, linewidth=2 if ours else 1)
        ax.set_xlabel(f"{across.name} kept, %")
    axes[0, 0].set_ylabel("A_T Hits@10 on new corpora, %".replace("A_T", "$A_T$"))
    legend_below(figure, axes[0, 0], columns=4)
    return figure
