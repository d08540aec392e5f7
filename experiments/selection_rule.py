"""Which value of its swept parameter a system gets. Decided on dev queries of one stream; nothing here reads a test query.

`best` takes the value with the largest sum of Hits@10 on new corpora and Hits@1 on D0. Every other system takes, of the values
that retain D0's Hits@1 at least as well as `best` minus half a point, the one with the highest Hits@10 on new corpora; where
none does, the one that retains D0 best. Where that is so for "Rows only", "best, larger row norm" is `best` as it would be if D0 were
worth no more to it: of its values that retain D0's Hits@1 at least as well as "Rows only" at its own, the one with the highest
Hits@10 on new corpora.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptdsi.bench.system_results import Measure, SystemResult, on_d0, on_new
from promptdsi.errors import PromptDSIError

from .published import CONTROL

OURS, LARGER_NORM = "best", "best, larger row norm"
TOLERANCE = 0.005  # half a point
NEW, RETAINED = on_new("Hits@10"), on_d0("Hits@1")

Swept = Mapping[str, Sequence[SystemResult]]


def swept_systems(results: Sequence[SystemResult]) -> dict[str, list[SystemResult]]:
    """The results of each system that has a swept parameter and has run."""
    systems: dict[str, list[SystemResult]] = {}
    for result in results:
        if result.point.split != "dev":
            raise PromptDSIError("parameters are chosen on the dev split; this experiment is evaluated on another")
        if result.point.system.parameter and result.records:
            systems.setdefault(result.point.system.label, []).append(result)
    return systems


def choose(results: Sequence[SystemResult]) -> dict[str, Any]:
    """The chosen value of each system's parameter, by label."""
    systems = swept_systems(results)
    if OURS not in systems:
        return {}
    floors = dict.fromkeys(systems, floor(systems))
    if LARGER_NORM in systems and CONTROL in systems:
        floors[LARGER_NORM] = min(floor(systems), value(retaining(systems[CONTROL], floor(systems)), RETAINED))
    chosen = {label: best_sum(points) if label == OURS else retaining(points, floors[label]) for label, points in systems.items()}
    return {label: result.point.value for label, result in chosen.items()}


def best_sum(points: Sequence[SystemResult]) -> SystemResult:
    return max(points, key=lambda result: (value(result, NEW) + value(result, RETAINED), value(result, NEW)))


def floor(systems: Swept) -> float:
    """How much of D0's Hits@1 others must retain to be compared with `best` as equals."""
    return value(best_sum(systems[OURS]), RETAINED) - TOLERANCE


def retaining(points: Sequence[SystemResult], least: float) -> SystemResult:
    """Of the values that retain D0 above the floor the one that learns the new corpora best; else the one that retains D0 best."""
    eligible = [result for result in points if value(result, RETAINED) >= least]
    return max(eligible, key=lambda result: value(result, NEW)) if eligible else max(points, key=lambda result: value(result, RETAINED))


def value(result: SystemResult, measure: Measure) -> float:
    number = result.value(measure)
    assert number is not None  # only systems that have run are compared
    return number
