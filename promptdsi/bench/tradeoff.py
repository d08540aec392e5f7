"""The figure of the frontier: what was learned of the new corpora against what is left of D0, whole and near `best`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.choosing import OURS
from promptdsi.bench.figures import GREY, legend_below, look_of, panels
from promptdsi.bench.findings import Finding, Measure, before, on_d0, on_new
from promptdsi.evaluation.continual import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UP = on_new("Hits@10")
NEAR, ROOM = 12.0, 1.0  # the lower panels show what is within so many points of `best`, and so much around it
ACROSS = {"Hits@1": on_d0("Hits@1"), "Hits@10": on_d0("Hits@10")}


class Spot(NamedTuple):
    across: Estimate
    up: Estimate

    def near(self, other: Spot) -> bool:
        return abs(self.across.value - other.across.value) < NEAR / 100 and abs(self.up.value - other.up.value) < NEAR / 100


def draw(found: Sequence[Finding], chosen: Mapping[str, Any] | None = None) -> Figure:
    """Above everything, below, once `best` has run, what is near it.

    With `chosen`, a line joins the values of each dial and a ring marks the one taken; without, each system is a point with its
    intervals.
    """
    systems: dict[str, list[Finding]] = {}
    for one in found:
        if one.records:
            systems.setdefault(one.point.system.label, []).append(one)
    figure, axes = panels(2, 2, height=7.2) if OURS in systems else panels(1, 2, height=3.9)
    for column, (name, across) in enumerate(ACROSS.items()):
        spots = {label: [_spot(one, across) for one in points] for label, points in systems.items()}
        for label, points in systems.items():
            _draw_system(axes[0, column], label, list(zip(points, spots[label], strict=True)), chosen)
        if OURS in systems:
            centre = _centre(systems[OURS], spots[OURS], (chosen or {}).get(OURS))
            shown = {
                label: [(one, spot) for one, spot in zip(points, spots[label], strict=True) if spot.near(centre)]
                for label, points in systems.items()
            }
            for label, here in shown.items():
                _draw_system(axes[1, column], label, here, chosen)
            _around(axes[1, column], [spot for here in shown.values() for _, spot in here])
        for ax in axes[:, column]:
            _draw_before(ax, found, across)
            ax.set_xlabel(f"D0 {name} after the last corpus, %")
    for ax in axes[:, 0]:
        ax.set_ylabel("$A_T$ Hits@10 on new corpora, %")
    if OURS in systems:
        axes[0, 0].set_title("all", loc="left")
        axes[1, 0].set_title(f"around “{OURS}”", loc="left")
    legend_below(figure, axes[0, 0], columns=4)
    return figure


def _spot(one: Finding, across: Measure) -> Spot:
    x, y = one.estimate(across), one.estimate(UP)
    assert x is not None, "only what has run is drawn"
    assert y is not None
    return Spot(x, y)


def _centre(points: Sequence[Finding], spots: Sequence[Spot], chosen: Any) -> Spot:
    """Where `best` is, at its chosen dial."""
    at = [spot for one, spot in zip(points, spots, strict=True) if one.point.value == chosen]
    return (at or spots)[0]


def _draw_system(ax: Any, label: str, here: Sequence[tuple[Finding, Spot]], chosen: Mapping[str, Any] | None) -> None:
    look, best = look_of(label), label == OURS
    x, y = [100 * spot.across.value for _, spot in here], [100 * spot.up.value for _, spot in here]
    width, height = (2.0, 7.0) if best else (0.9, 4.5)
    kind = "" if chosen is None else "-"
    ax.plot(
        x,
        y,
        color=look.colour,
        marker=look.marker,
        linestyle=kind,
        linewidth=width,
        markersize=height,
        label=label,
        zorder=4 if best else 3,
    )
    for one, spot in here:
        if chosen is None:
            ax.hlines(100 * spot.up.value, 100 * spot.across.low, 100 * spot.across.high, color=look.colour, linewidth=0.6)
            ax.vlines(100 * spot.across.value, 100 * spot.up.low, 100 * spot.up.high, color=look.colour, linewidth=0.6)
        elif one.point.system.dial and chosen.get(label) == one.point.value:
            at = (100 * spot.across.value, 100 * spot.up.value)
            ax.plot(*at, color=look.colour, marker="o", markersize=9, markerfacecolor="none", linestyle="", linewidth=0.6)


def _draw_before(ax: Any, found: Sequence[Finding], across: Measure) -> None:
    """What D0 had before anything was added, for the systems that begin from its checkpoint."""
    value = before(found, across.metric)
    if value is not None:
        ax.axvline(100 * value, color=GREY, linewidth=0.8, linestyle=":", label="D0 before")


def _around(ax: Any, spots: Sequence[Spot]) -> None:
    """As much as these spots need: none of them lies outside, whatever its interval does."""
    x, y = ([100 * value for value in values] for values in ([spot.across.value for spot in spots], [spot.up.value for spot in spots]))
    ax.set_xlim(min(x) - ROOM, min(100.0, max(x) + ROOM))
    ax.set_ylim(min(y) - ROOM, min(100.0, max(y) + ROOM))
