"""Which value of its dial a system gets. Decided on dev queries of one stream; nothing here can see a test query.

`best` takes the dial with the largest sum of Hits@10 on new corpora and Hits@1 on D0. Every other system takes, of the dials
that keep D0's Hits@1 at least as well as `best` minus half a point, the one with the highest Hits@10 on new corpora; where
none does, the one that keeps D0 best. Where that is so for "Rows only", "best, longer rows" is `best` as it would be if D0 were
worth no more to it: of its dials that keep D0's Hits@1 at least as well as "Rows only" at its own, the one with the highest
Hits@10 on new corpora.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptdsi.bench.expectations import CONTROL
from promptdsi.bench.findings import Finding, on_d0, on_new
from promptdsi.errors import PromptDSIError

OURS, LONGER, SHARPER = "best", "best, longer rows", "best, ten spans, sharper"
SLACK = 0.005  # half a point
NEW, KEPT = on_new("Hits@10"), on_d0("Hits@1")


def tried(found: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings of each system that has a dial and has run."""
    systems: dict[str, list[Finding]] = {}
    for one in found:
        if one.point.split != "dev":
            raise PromptDSIError("a choice is made on dev queries; this experiment asks others")
        if one.point.system.dial and one.records:
            systems.setdefault(one.point.system.label, []).append(one)
    return systems


def choose(found: Sequence[Finding]) -> dict[str, Any]:
    """The chosen value of each system's dial, by label."""
    systems = tried(found)
    if OURS not in systems:
        return {}
    floors = dict.fromkeys(systems, floor(systems))
    if LONGER in systems and CONTROL in systems:
        floors[LONGER] = min(floor(systems), value(keeping(systems[CONTROL], floor(systems)), KEPT))
    taken = {label: best_sum(points) if label == OURS else keeping(points, floors[label]) for label, points in systems.items()}
    return {label: one.point.value for label, one in taken.items()}


def best_sum(points: Sequence[Finding]) -> Finding:
    return max(points, key=lambda one: (value(one, NEW) + value(one, KEPT), value(one, NEW)))


def floor(systems: Mapping[str, Sequence[Finding]]) -> float:
    """What of D0's Hits@1 others must keep to be compared as equals of `best`."""
    return value(best_sum(systems[OURS]), KEPT) - SLACK


def keeping(points: Sequence[Finding], least: float) -> Finding:
    """Of the dials that keep D0 above the floor the one that learns the new best; else the one that keeps D0 best."""
    able = [one for one in points if value(one, KEPT) >= least]
    return max(able, key=lambda one: value(one, NEW)) if able else max(points, key=lambda one: value(one, KEPT))


def value(one: Finding, measure: Any) -> float:
    found = one.value(measure)
    assert found is not None  # only what has run is looked at
    return found
