"""Tables that read well as Markdown and as LaTeX: the best figure of a column bold, the second underlined.

print(Table("Main", [Column("method", left=True), Column("H@10", best="up")], [line("L2P", score(0.861))]).markdown())
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from promptdsi.evaluation.continual import ROUNDING, Estimate

NONE = "–"
LINES_OF_A_PAGE, COLUMNS_OF_A_LINE = 40, 7
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$", "…": r"\ldots{}"},
    **{"✓": r"\checkmark{}", "✗": r"$\times$", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
}
SYMBOL = re.compile(r"\b(?:(LA|A|F)_([tT0-9])|(D)([0-9T]))\b")  # A_T and D0, which LaTeX sets with a subscript


class Entry(NamedTuple):
    """What stands in a table: a text, the number it is ranked by (as shown, so that what looks equal is equal), a spread."""

    text: str
    number: float | None = None
    spread: str = ""


class Column(NamedTuple):
    """`over` is a heading shared with neighbours; `best` is "up", "down" or "" where nothing is better."""

    title: str
    over: str = ""
    best: str = ""
    left: bool = False


class Line(NamedTuple):
    """A line; lines that are not `ranked` (references) are neither bold nor underlined."""

    entries: tuple[Entry, ...]
    group: str = ""
    ranked: bool = True


def line(*entries: Entry | str | None, group: str = "", ranked: bool = True) -> Line:
    """A line from what is at hand; None is shown as a dash."""
    return Line(tuple(Entry(NONE) if one is None else Entry(one) if isinstance(one, str) else one for one in entries), group, ranked)


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]

    def __post_init__(self) -> None:
        if wrong := [one for one in self.lines if len(one.entries) != len(self.columns)]:
            raise ValueError(f"{self.title}: a line has {len(wrong[0].entries)} entries, expected {len(self.columns)}")

    def places(self) -> list[list[int]]:
        """1 for the best of a column, 2 for the second, else 0; equal numbers share a place."""
        found = [[0] * len(self.columns) for _ in self.lines]
        for place, column in enumerate(self.columns):
            numbers = {i: one.entries[place].number for i, one in enumerate(self.lines) if one.ranked}
            known = {i: number for i, number in numbers.items() if number is not None}
            if not column.best or len(known) < 2:  # alone, nothing is best
                continue
            order = sorted(set(known.values()), reverse=column.best == "up")[:2]
            for i, number in known.items():
                found[i][place] = order.index(number) + 1 if number in order else 0
        return found

    def markdown(self) -> str:
        titles = [plain(f"{one.over} {one.title}".strip()) for one in self.columns]
        written = [titles, [":--" if one.left else "--:" for one in self.columns]]
        group = ""
        for one, places in zip(self.lines, self.places(), strict=True):
            if one.group and one.group != group:
                written.append([f"*{plain(one.group)}*", *[""] * (len(self.columns) - 1)])
            group = one.group
            written.append([_markdown(entry, place) for entry, place in zip(one.entries, places, strict=True)])
        return "\n".join("| " + " | ".join(cells) + " |" for cells in written) + "\n"

    def latex(self, label: str) -> str:
        """A float, shrunk to the line where it has many columns; of more lines than a page has, a longtable."""
        spread = "; subscripts: standard deviation over seeds" if any(entry.spread for one in self.lines for entry in one.entries) else ""
        named = rf"\caption{{{escape(self.title + spread)}}}", rf"\label{{{label}}}"
        aligned = "{" + "".join("l" if one.left else "r" for one in self.columns) + "}"
        body = [r"\toprule", *self._latex_header(), *self._latex_lines(), r"\bottomrule"]
        if len(self.lines) > LINES_OF_A_PAGE:
            written = [r"\begin{longtable}" + aligned, *named[:1], named[1] + r" \\", *body, r"\end{longtable}"]
        else:
            wide = len(self.columns) > COLUMNS_OF_A_LINE
            table = [r"\begin{tabular}" + aligned, *body, r"\end{tabular}" + ("}" if wide else "")]
            shrunk = [r"\resizebox{\linewidth}{!}{%"] if wide else []
            written = [r"\begin{table}[t]", r"\centering", *named, *shrunk, *table, r"\end{table}"]
        return "\n".join(written) + "\n"

    def _latex_lines(self) -> list[str]:
        written = []
        group = ""
        for number, (one, places) in enumerate(zip(self.lines, self.places(), strict=True)):
            if one.group != group and number:
                written.append(r"\midrule")
            if one.group and one.group != group:
                written.append(rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{escape(one.group)}}}}} \\")
            group = one.group
            written.append(" & ".join(_latex(entry, place) for entry, place in zip(one.entries, places, strict=True)) + r" \\")
        return written

    def _latex_header(self) -> list[str]:
        written = []
        if any(one.over for one in self.columns):
            cells, rules, first = [], [], 1
            for over, columns in groupby(self.columns, key=lambda column: column.over):
                width = len(list(columns))
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(over)}}}" if over else " & ".join([""] * width))
                rules += [rf"\cmidrule(lr){{{first}-{first + width - 1}}}"] if over else []
                first += width
            written = [" & ".join(cells) + r" \\", " ".join(rules)]
        return [*written, " & ".join(escape(one.title) for one in self.columns) + r" \\", r"\midrule"]


def _markdown(entry: Entry, place: int) -> str:
    text = plain(entry.text)
    text = f"**{text}**" if place == 1 else f"<ins>{text}</ins>" if place == 2 else text
    return f"{text} ± {entry.spread}" if entry.spread else text


def _latex(entry: Entry, place: int) -> str:
    text = escape(entry.text)
    text = rf"\textbf{{{text}}}" if place == 1 else rf"\underline{{{text}}}" if place == 2 else text
    return rf"{text}$_{{{entry.spread}}}$" if entry.spread else text


def escape(text: str) -> str:
    """Text as LaTeX prints it.

    Examples
    --------
    >>> print(escape("100 % of D0 & A_T"))
    100 \\% of $D_0$ \\& $A_T$
    """
    out, end = [], 0
    for found in SYMBOL.finditer(text):
        name, index = found[1] or found[3], found[2] or found[4]
        out += [*(LATEX.get(sign, sign) for sign in text[end : found.start()]), f"${name}_{index}$"]
        end = found.end()
    return " ".join("".join([*out, *(LATEX.get(sign, sign) for sign in text[end:])]).split())


def plain(text: str) -> str:
    """Text as Markdown prints it, in one line.

    Examples
    --------
    >>> print(plain("IncDSI* | A_T"))
    IncDSI\\* \\| A_T
    """
    return re.sub(r"[\\`*|<\[\]]|(?<!\w)_|_(?!\w)", lambda found: "\\" + found[0], " ".join(text.split()))


def score(value: float | None, spread: float | None = None) -> Entry | None:
    """A share as per cent.

    Examples
    --------
    >>> score(0.8614, 0.002)
    Entry(text='86.1', number=86.1, spread='0.2')
    """
    if value is None:
        return None
    text = f"{100 * value:.1f}".replace("-0.0", "0.0")
    return Entry(text.replace("-", "−"), float(text), "" if spread is None else f"{100 * spread:.1f}")


def signed(value: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def end(value: float) -> str:
    """An end of an interval around a difference: never rounded to zero, because on which side of it an end lies is what matters.

    Examples
    --------
    >>> end(0.012), end(0.0003), end(-0.0003), end(1e-17)
    ('+1.2', '+0.03', '−0.03', '0.0')
    """
    if abs(value) <= ROUNDING:
        return "0.0"
    digits = next((digits for digits in (1, 2, 3) if round(100 * value, digits)), 4)
    return f"{100 * value:+.{digits}f}".replace("-", "−")


def between(found: Estimate, *, sign: bool = False) -> str:
    """An interval in points: 84.0 to 88.1, or with signs for a difference."""
    low, high = (end(each) if sign else f"{100 * each:.1f}".replace("-0.0", "0.0").replace("-", "−") for each in (found.low, found.high))
    return f"{low} to {high}"


def count(number: float) -> str:
    """A number of parameters as the paper prints it.

    Examples
    --------
    >>> count(7_583_232), count(345_600), count(512)
    ('7.6 M', '346 k', '512')
    """
    if number >= 999_500:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.0f} k" if number >= 1000 else f"{number:.0f}"


def size(number: float) -> str:
    """Bytes in words.

    Examples
    --------
    >>> size(322_560), size(333_671_424), size(0)
    ('315.0 KiB', '318.2 MiB', '0 B')
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 2**power:
            return f"{number / 2**power:,.1f} {unit}"
    return f"{number:.0f} B"
