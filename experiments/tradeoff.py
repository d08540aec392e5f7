"""The figure of the frontier: Hits@10 on the new corpora against what is retained of D0, for all systems and near `best`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.system_results import Measure, SystemResult, on_d0, on_new
from promptdsi.evaluation.continual import Estimate

from .figures import GREY, legend_below, look_of, panels
from .selection_rule import OURS
from .shared import before

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UP = on_new("Hits@10")
COLUMNS = 3  # panels side by side
RETAINING = 0.3  # systems that retain so much less of D0 than the best are not drawn
NEAR, ROOM = 12.0, 1.0  # the lower panels show what is within so many points of `best`, and so much around it
ACROSS = {"Hits@1": on_d0("Hits@1"), "Hits@10": on_d0("Hits@10")}


class Spot(NamedTuple):
    across: Estimate
    up: Estimate

    def near(self, other: Spot) -> bool:
        return abs(self.across.value - other.across.value) < NEAR / 100 and abs(self.up.value - other.up.value) < NEAR / 100


def draw(results: Sequence[SystemResult], chosen: Mapping[str, Any] | None = None) -> Figure:
    """All systems above; below, once `best` has run, those near it.

    With `chosen`, a line joins the values of each swept parameter and a ring marks the chosen one; without, each system is a point
    with its intervals.
    """
    systems: dict[str, list[SystemResult]] = {}
    for result in results:
        if result.records:
            systems.setdefault(result.point.system.label, []).append(result)
    figure, axes = panels(2, 2, height=7.2) if OURS in systems else panels(1, 2, height=3.9)
    for column, (name, across) in enumerate(ACROSS.items()):
        spots = {label: [_spot(result, across) for result in points] for label, points in systems.items()}
        for label, points in systems.items():
            _draw_system(axes[0, column], label, list(zip(points, spots[label], strict=True)), chosen)
        if OURS in systems:
            center = _center(systems[OURS], spots[OURS], (chosen or {}).get(OURS))
            shown = {
                label: [(result, spot) for result, spot in zip(points, spots[label], strict=True) if spot.near(center)]
                for label, points in systems.items()
            }
            for label, points_near in shown.items():
                _draw_system(axes[1, column], label, points_near, chosen)
            _around(axes[1, column], [spot for points_near in shown.values() for _, spot in points_near])
        for ax in axes[:, column]:
            _draw_before(ax, results, across)
            ax.set_xlabel(f"D0 {name} after the last corpus, %")
    for ax in axes[:, 0]:
        ax.set_ylabel("$A_T$ Hits@10 on new corpora, %")
    if OURS in systems:
        axes[0, 0].set_title("all", loc="left")
        axes[1, 0].set_title(f"around “{OURS}”", loc="left")
    legend_below(figure, axes[0, 0], columns=4)
    return figure


def _spot(result: SystemResult, across: Measure) -> Spot:
    x, y = result.estimate(across), result.estimate(UP)
    assert x is not None, "only systems that have run are drawn"
    assert y is not None
    return Spot(x, y)


def _center(points: Sequence[SystemResult], spots: Sequence[Spot], chosen: Any) -> Spot:
    """Where `best` is, at its chosen value."""
    at = [spot for result, spot in zip(points, spots, strict=True) if result.point.value == chosen]
    return (at or spots)[0]


def _draw_system(ax: Any, label: str, points: Sequence[tuple[SystemResult, Spot]], chosen: Mapping[str, Any] | None) -> None:
    look, best = look_of(label), label == OURS
    x, y = [100 * spot.across.value for _, spot in points], [100 * spot.up.value for _, spot in points]
    width, height = (2.0, 7.0) if best else (0.9, 4.5)
    kind = "" if chosen is None else "-"
    ax.plot(
        x,
        y,
        color=look.color,
        marker=look.marker,
        linestyle=kind,
        linewidth=width,
        markersize=height,
        label=label,
        zorder=4 if best else 3,
    )
    for result, spot in points:
        if chosen is None:
            ax.hlines(100 * spot.up.value, 100 * spot.across.low, 100 * spot.across.high, color=look.color, linewidth=0.6)
            ax.vlines(100 * spot.across.value, 100 * spot.up.low, 100 * spot.up.high, color=look.color, linewidth=0.6)
        elif result.point.system.parameter and chosen.get(label) == result.point.value:
            at = (100 * spot.across.value, 100 * spot.up.value)
            ax.plot(*at, color=look.color, marker="o", markersize=9, markerfacecolor="none", linestyle="", linewidth=0.6)


def _draw_before(ax: Any, systems: Sequence[SystemResult], across: Measure) -> None:
    """D0 before anything was added, for the systems that start from its checkpoint."""
    value = before(systems, across.metric)
    if value is not None:
        ax.axvline(100 * value, color=GREY, linewidth=0.8, linestyle=":", label="D0 before")


def _around(ax: Any, spots: Sequence[Spot]) -> None:
    """Limits that contain every spot; intervals may be cut."""
    x, y = ([100 * value for value in values] for values in ([spot.across.value for spot in spots], [spot.up.value for spot in spots]))
    ax.set_xlim(min(x) - ROOM, min(100.0, max(x) + ROOM))
    ax.set_ylim(min(y) - ROOM, min(100.0, max(y) + ROOM))


def draw_settings(settings: Sequence[tuple[str, Sequence[SystemResult]]], across: Measure, name: str) -> Figure:
    """A panel per setting: the new against what is retained, around the systems that have not forgotten D0."""
    columns = min(len(settings), COLUMNS)
    down = -(-len(settings) // columns)
    figure, axes = panels(down, columns, height=0.9 + 2.7 * down)
    for ax, (label, results) in zip(axes.flat, settings, strict=False):
        spots = [(result, _spot(result, across)) for result in results if result.records]
        best = max(spot.across.value for _, spot in spots)
        near = [(result, spot) for result, spot in spots if spot.across.value > best - RETAINING]
        for result, spot in near:
            _draw_system(ax, result.point.system.label, [(result, spot)], None)
        _around(ax, [spot for _, spot in near])
        _draw_before(ax, results, across)
        ax.set_title(label, loc="left")
        ax.set_xlabel(f"D0 {name} after the last corpus, %")
    for ax in axes.flat[len(settings) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("$A_T$ Hits@10 on new corpora, %")
    most = max(range(len(settings)), key=lambda index: sum(bool(result.records) for result in settings[index][1]))
    legend_below(figure, axes.flat[most], columns=4)
    return figure
