"""Every system at every value of its dial, on dev queries, and which value is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from promptdsi.bench import choosing, tradeoff
from promptdsi.bench.findings import Data, Finding, Findings, Heading, Part, Plot, Text, on_d0, on_new
from promptdsi.bench.plan import Setting
from promptdsi.bench.tables import Column, Entry, Table, line
from promptdsi.errors import UsageError

NAME = "choosing"
COLUMNS = (
    *(on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10")),
    *(on_new("Hits@10", "A_T H@10"), on_new("Hits@1", "A_T H@1"), on_new("MRR@10", "A_T M@10")),
)
RULE = " ".join((choosing.__doc__ or "").split("\n\n", 1)[1].split())


def parts(findings: Findings) -> Iterator[Part]:
    if len(findings.experiment.settings) > 1:
        raise UsageError("dials are chosen on one stream; the scale names several settings for this experiment")
    for setting, found in findings.settings():
        chosen = choosing.choose(found)
        yield Heading(setting.label)
        caption = (
            f"{setting.label}, dev queries: up is learning the new, right is keeping the old; a line joins the values of a dial, a ring "
            "is the one chosen, the dotted line D0 before anything was added; above all values tried, below those around the chosen “best”"
        )
        yield Plot(setting.name, caption, partial(tradeoff.draw, found, chosen))
        yield _table(setting, found, chosen)
        yield Text(f"The rule: {RULE}")
        if said := list(_limits(found, chosen)):
            yield Text("What limits the choice:\n\n" + "\n".join(f"- {one}" for one in said))
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


def _limits(found: Sequence[Finding], chosen: dict[str, Any]) -> Iterator[str]:
    """Where the sweep ends at the chosen value, and who keeps less of D0 than the rule asks at any value."""
    systems = choosing.tried(found)
    floor = choosing.floor(systems)
    edges, below = [], []
    for label, points in systems.items():
        values = [one.point.value for one in points]
        if len(values) > 1 and chosen[label] in (values[0], values[-1]):
            edges.append(label)
        if label != choosing.OURS and all(choosing.value(one, choosing.KEPT) < floor for one in points):
            below.append(label)
    if edges:
        yield f"at an edge of the values tried, so that another value might serve it better: {quoted(edges)}"
    if below:
        yield (
            f"no value keeps {100 * floor:.2f} of D0's Hits@1, so the best-keeping one is taken, and it is compared where it keeps "
            f"less than `{choosing.OURS}`: {quoted(below)}"
        )


def quoted(labels: Sequence[str]) -> str:
    """Labels in a sentence: some have a comma."""
    return ", ".join(f"“{label}”" for label in labels)
