"""How this study's figures look: one color and marker per system wherever it appears, safe for color-blind readers.

Figures are made without pyplot, which would keep them in a global list and could open a window.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.report import Plot
from promptdsi.evaluation.continual import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.0  # inches: a printed page
LABEL_WIDTH = 42  # characters of a line beside a figure
# Paul Tol's "muted" scheme: nine colors that stay apart for color-blind readers (personal.sron.nl/~pault).
PALETTE = ("#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#DDCC77", "#44AA99", "#AA4499", "#999933")
MARKERS, OTHER_MARKERS = "os^DvP<Xp", "h>*d"  # no other label can look like a system of the paper
GREY, ORANGE = "#777777", "#EE7733"  # references; ours, whose variants are warm too
WARM = ("#CC3311", "#DDAA33", "#661100", "#BBAA88", "#FFB570", "#E0607E")  # in the order of OURS
STYLE: dict[str, Any] = {
    "svg.fonttype": "path",  # looks the same everywhere
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}


class Look(NamedTuple):
    color: str
    marker: str


# References are grey, ours warm. The systems of the paper's figures keep their distance; any other label gets a look from its letters.
REFERENCES = {
    **{"Warm rows, untrained": ">", "Rehearsal": "h", "Rehearsal, with all that best has": "d", "Joint": "x", "Multi": "8"},
    **{"BM25": "s", "BM25 with train queries": "D", "Dense": "+"},
}
OURS = {
    **{"best": "*", "best without fitted norms": "o", "best without anchor": "s", "best, larger row norm": "p"},
    **{"best with S++ prompts": "D", "best with S++, small start": "P", "best with S++ and a null prompt": "X"},
}
SYSTEMS = ("IncDSI", "DSI++", "Topic", "Sequential", "S++", "IncDSI*", "L2P", "CODA", "Rows only")


def look_of(label: str) -> Look:
    """Colour and marker of a system.

    Examples
    --------
    >>> look_of("S++") == look_of("S++"), look_of("S++").color != look_of("L2P").color
    (True, True)
    """
    if label in SYSTEMS:
        index = SYSTEMS.index(label)
        return Look(PALETTE[index], MARKERS[index])
    if label in REFERENCES:
        return Look(GREY, REFERENCES[label])
    if (base := label.partition(", ")[0]) in SYSTEMS:  # a variant has the color of what it varies
        return Look(PALETTE[SYSTEMS.index(base)], OTHER_MARKERS[len(label) % len(OTHER_MARKERS)])
    if label in OURS:
        return Look((ORANGE, *WARM)[list(OURS).index(label)], OURS[label])
    number = int(hashlib.sha256(label.encode()).hexdigest()[:8], 16)
    return Look(PALETTE[number % len(PALETTE)], OTHER_MARKERS[number // len(PALETTE) % len(OTHER_MARKERS)])


def plot(name: str, caption: str, draw: Callable[[], Figure]) -> Plot:
    """A figure of a report, in this study's style."""
    return Plot(name, caption, draw, STYLE)


def panels(down: int, across: int, *, height: float, width: float = WIDTH, **shared: Any) -> tuple[Figure, Any]:
    """A figure of equal panels: (figure, axes as an array (down, across)). `height` is of the whole figure, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(down, across, squeeze=False, **shared)


def draw_line(ax: Any, at: Sequence[float], estimates: Sequence[Estimate], label: str, look: Look, *, kind: str = "-") -> None:
    """A line in per cent with its intervals, from end to end: that of a maximum (F_t) may lie off its line."""
    ax.vlines(at, [100 * point.low for point in estimates], [100 * point.high for point in estimates], color=look.color, linewidth=0.6)
    ax.plot(at, [100 * point.value for point in estimates], color=look.color, marker=look.marker, linestyle=kind, label=label)


def draw_differences(rows: Mapping[str, Mapping[str, Estimate | None]], xlabel: str) -> Figure:
    """A forest plot: a line of the figure per comparison, a marker with its interval per series, a line at zero."""
    names = list(dict.fromkeys(name for series in rows.values() for name in series))
    figure, axes = panels(1, 1, height=1.2 + 0.14 * len(rows) * (1 + len(names)))
    ax = axes[0, 0]
    for number, name in enumerate(names):
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        points = [(line, difference) for line, series in enumerate(rows.values()) if (difference := series.get(name)) is not None]
        at = [line + (number - (len(names) - 1) / 2) * 0.7 / len(names) for line, _ in points]
        ends = [[100 * getattr(difference, end) for _, difference in points] for end in ("low", "high", "value")]
        ax.hlines(at, ends[0], ends[1], color=color, linewidth=1.0)
        ax.plot(ends[2], at, color=color, marker=marker, linestyle="", label=name)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(rows)), [textwrap.fill(label, LABEL_WIDTH) for label in rows])
    ax.invert_yaxis()
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(xlabel)
    if len(names) > 1:
        legend_below(figure, ax)
    return figure


def legend_below(figure: Figure, axes: Any, columns: int = 5) -> None:
    """One legend for all panels, under them, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    for ncols in range(min(columns, max(1, len(labels))), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=ncols)
        figure.draw_without_rendering()  # before, a legend does not know its width
        if ncols == 1 or legend.get_window_extent().width < 0.9 * figure.bbox.width:  # letters are wider at another resolution
            return
        legend.remove()
