"""How figures look: one colour and marker per system wherever it appears, safe for colour-blind readers, and bytes that do not change.

Figures are made without pyplot, which would keep them in a global list and could open a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.continual import Estimate
from promptdsi.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.0  # inches: a printed page
# Paul Tol's "muted" scheme: nine colours that stay apart for colour-blind readers (personal.sron.nl/~pault).
PALETTE = ("#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#DDCC77", "#44AA99", "#AA4499", "#999933")
MARKERS, OTHER_MARKERS = "os^DvP<Xp", "h>*d"  # no other label can look like a system of the paper
GREY, ORANGE = "#777777", "#EE7733"  # references; ours, whose variants are warm too
WARM = ("#CC3311", "#DDAA33", "#EE99AA", "#994455", "#661100", "#BBAA88", "#FFB570", "#E0607E", "#8B5A2B", "#B03060", "#F4C430")
RULES: dict[str, Any] = {
    "svg.hashsalt": "promptdsi",  # otherwise the names inside an SVG are random
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
    colour: str
    marker: str


# References are grey, ours warm. The systems of the paper's figures keep their distance; any other label gets a look from its letters.
REFERENCES = {
    **{"Warm rows, untrained": ">", "Rehearsal": "h", "Rehearsal, with all that best has": "d", "Joint": "x", "Multi": "8"},
    **{"BM25": "s", "BM25 with train queries": "D", "Dense": "+"},
}
OURS = {
    **{"best": "*", "best without fitted lengths": "o", "best without anchor": "s", "Stand-ins": "v", "best with stand-ins": "^"},
    **{"best, longer rows": "p", "best with S++ prompts": "D", "best with S++, small start": "P", "best with S++ and a null prompt": "X"},
    **{"best, ten spans, sharper": "h", "best, ten spans": "<", "best, sharper": ">"},
}
KNOWN = ("IncDSI", "DSI++", "Topic", "Sequential", "S++", "IncDSI*", "L2P", "CODA", "Rows only")


def look_of(label: str) -> Look:
    """Colour and marker of a system.

    Examples
    --------
    >>> look_of("S++") == look_of("S++"), look_of("S++").colour != look_of("L2P").colour
    (True, True)
    """
    if label in KNOWN:
        place = KNOWN.index(label)
        return Look(PALETTE[place], MARKERS[place])
    if label in REFERENCES:
        return Look(GREY, REFERENCES[label])
    if (kin := label.partition(", ")[0]) in KNOWN:  # a variant has the colour of what it varies
        return Look(PALETTE[KNOWN.index(kin)], OTHER_MARKERS[len(label) % len(OTHER_MARKERS)])
    if label in OURS:
        return Look((ORANGE, *WARM)[list(OURS).index(label)], OURS[label])
    number = int(hashlib.sha256(label.encode()).hexdigest()[:8], 16)
    return Look(PALETTE[number % len(PALETTE)], OTHER_MARKERS[number // len(PALETTE) % len(OTHER_MARKERS)])


@contextmanager
def style() -> Iterator[None]:
    """The rules above, while figures are made or saved, and nothing of the user's own settings."""
    try:
        import matplotlib
    except ImportError:
        raise PromptDSIError("figures need matplotlib: pip install 'promptdsi[bench]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in RULES.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]
        yield


def panels(down: int, across: int, *, height: float, width: float = WIDTH, **shared: Any) -> tuple[Figure, Any]:
    """A figure of equal panels: (figure, axes as an array (down, across)). `height` is of the whole figure, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(down, across, squeeze=False, **shared)


def draw_line(ax: Any, at: Sequence[float], found: Sequence[Estimate], label: str, look: Look, *, kind: str = "-") -> None:
    """A line in per cent with its intervals, from end to end: that of a maximum (F_t) may lie off its figure."""
    ax.vlines(at, [100 * each.low for each in found], [100 * each.high for each in found], color=look.colour, linewidth=0.6)
    ax.plot(at, [100 * each.value for each in found], color=look.colour, marker=look.marker, linestyle=kind, label=label)


def legend_below(figure: Figure, axes: Any, columns: int = 5) -> None:
    """One legend for all panels, under them, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    for ncols in range(min(columns, max(1, len(labels))), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=ncols)
        figure.draw_without_rendering()  # before, a legend does not know its width
        if ncols == 1 or legend.get_window_extent().width < 0.9 * figure.bbox.width:  # letters are wider at another resolution
            return
        legend.remove()


def save(draw: Callable[[], Figure], path: Path) -> list[Path]:
    """Draw a figure and write it as PNG and SVG, the same bytes each time: neither says when or by what it was made."""
    nothing: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    written = []
    with style():
        figure = draw()
        figure.draw_without_rendering()  # lays the panels out, once for both formats
        figure.set_layout_engine("none")
        for kind, metadata in nothing.items():
            target = path.parent / f"{path.name}.{kind}"  # not with_suffix: a name may hold a dot
            with atomic_write(target) as out:
                figure.savefig(out, format=kind, dpi=200, metadata=metadata)
            written.append(target)
    return written
