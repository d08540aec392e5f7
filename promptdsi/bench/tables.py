"""Tables as Markdown and as LaTeX: the best number of a column bold, the second best underlined.

print(Table("Main", [Column("method", left=True), Column("H@10", best="up")], [row("L2P", score(0.861))]).markdown())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

NONE = "–"
PAGE_ROWS, PAGE_COLUMNS = 40, 7  # of a printed page
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$", "…": r"\ldots{}"},
    **{"✓": r"\checkmark{}", "✗": r"$\times$", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
}
MARKDOWN_MARKS = ("%s", "**%s**", "<ins>%s</ins>", " ± %s")  # of a number by its place: none, best, second; and of its spread
LATEX_MARKS = ("%s", r"\textbf{%s}", r"\underline{%s}", r"$_{%s}$")
# A_T and D0, which LaTeX sets with a subscript, or a single sign
SYMBOL_OR_SIGN = re.compile(r"\b(?:(LA|A|F)_([tT0-9])|(D)([0-9T]))\b|.", re.DOTALL)


class TableEntry(NamedTuple):
    """A text, the number it is ranked by (as printed, so that what looks equal is equal), and a spread."""

    text: str
    number: float | None = None
    spread: str = ""


class Column(NamedTuple):
    """`over` is a heading shared with neighbours; `best` is "up", "down" or "" where nothing is better."""

    title: str
    over: str = ""
    best: str = ""
    left: bool = False


class TableRow(NamedTuple):
    """Rows that are not `ranked` (references) are neither bold nor underlined."""

    entries: tuple[TableEntry, ...]
    group: str = ""
    ranked: bool = True


def row(*entries: TableEntry | str | None, group: str = "", ranked: bool = True) -> TableRow:
    """A row of entries or texts; None is printed as a dash."""
    typed = (TableEntry(NONE) if entry is None else TableEntry(entry) if isinstance(entry, str) else entry for entry in entries)
    return TableRow(tuple(typed), group, ranked)


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row.entries) != len(self.columns)]:
            raise ValueError(f"{self.title}: a row has {len(wrong[0].entries)} entries, expected {len(self.columns)}")

    def unmarked(self) -> Table:
        """The same table with nothing bold or underlined."""
        return replace(self, columns=[column._replace(best="") for column in self.columns])

    def content(self) -> dict[str, object]:
        """The table for other programs: texts as they are printed, without marks."""
        titles = [f"{column.over} {column.title}".strip() for column in self.columns]
        rows = [[entry.text + (f" ± {entry.spread}" if entry.spread else "") for entry in row.entries] for row in self.rows]
        return {"title": self.title, "columns": titles, "groups": [row.group for row in self.rows], "rows": rows}

    def places(self) -> list[list[int]]:
        """Per entry 1 for the best of its column, 2 for the second, else 0; equal numbers share a place."""
        places = [[0] * len(self.columns) for _ in self.rows]
        for j, column in enumerate(self.columns):
            numbers = {i: number for i, row in enumerate(self.rows) if row.ranked and (number := row.entries[j].number) is not None}
            if not column.best or len(numbers) < 2:  # a single number is not the best of anything
                continue
            order = sorted(set(numbers.values()), reverse=column.best == "up")[:2]
            for i, number in numbers.items():
                places[i][j] = order.index(number) + 1 if number in order else 0
        return places

    def _groups(self, escape: Callable[[str], str], marks: Sequence[str]) -> Iterator[tuple[str, list[list[str]]]]:
        """Neighbours of one group: its name, and the entries of each row, as they are printed."""
        for group, members in groupby(zip(self.rows, self.places(), strict=True), key=lambda member: member[0].group):
            yield (
                escape(group),
                [[_marked(*entry, escape, marks) for entry in zip(row.entries, places, strict=True)] for row, places in members],
            )

    def markdown(self) -> str:
        titles = [escape_markdown(f"{column.over} {column.title}".strip()) for column in self.columns]
        lines = [titles, [":--" if column.left else "--:" for column in self.columns]]
        for group, rows in self._groups(escape_markdown, MARKDOWN_MARKS):
            lines += [[f"*{group}*", *[""] * (len(self.columns) - 1)]] if group else []
            lines += rows
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def latex(self, label: str) -> str:
        """A float, scaled to the page where it has many columns; a longtable where it has more rows than a page."""
        spread = "; subscripts: standard deviation over seeds" if any(entry.spread for row in self.rows for entry in row.entries) else ""
        caption, named = rf"\caption{{{escape_latex(self.title + spread)}}}", rf"\label{{{label}}}"
        aligned = "{" + "".join("l" if column.left else "r" for column in self.columns) + "}"
        body = [r"\toprule", *self._latex_header(), *self._latex_rows(), r"\bottomrule"]
        if len(self.rows) > PAGE_ROWS:
            lines = [r"\begin{longtable}" + aligned, caption, named + r" \\", *body, r"\end{longtable}"]
        else:
            wide = len(self.columns) > PAGE_COLUMNS
            table = [r"\begin{tabular}" + aligned, *body, r"\end{tabular}" + ("}" if wide else "")]
            scaled = [r"\resizebox{\linewidth}{!}{%"] if wide else []
            lines = [r"\begin{table}[t]", r"\centering", caption, named, *scaled, *table, r"\end{table}"]
        return "\n".join(lines) + "\n"

    def _latex_rows(self) -> list[str]:
        lines = []
        for number, (group, rows) in enumerate(self._groups(escape_latex, LATEX_MARKS)):
            lines += [r"\midrule"] if number else []
            lines += [rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{group}}}}} \\"] if group else []
            lines += [" & ".join(entries) + r" \\" for entries in rows]
        return lines

    def _latex_header(self) -> list[str]:
        lines = []
        if any(column.over for column in self.columns):
            heads, rules, first = [], [], 1
            for over, columns in groupby(self.columns, key=lambda column: column.over):
                width = len(list(columns))
                heads.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(over)}}}" if over else " & ".join([""] * width))
                rules += [rf"\cmidrule(lr){{{first}-{first + width - 1}}}"] if over else []
                first += width
            lines = [" & ".join(heads) + r" \\", " ".join(rules)]
        return [*lines, " & ".join(escape_latex(column.title) for column in self.columns) + r" \\", r"\midrule"]


def _marked(entry: TableEntry, place: int, escape: Callable[[str], str], marks: Sequence[str]) -> str:
    text = marks[place] % escape(entry.text)
    return text + marks[3] % entry.spread if entry.spread else text


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it.

    Examples
    --------
    >>> print(escape_latex("100 % of D0 & A_T"))
    100 \\% of $D_0$ \\& $A_T$
    """

    def escaped(match: re.Match[str]) -> str:
        name, index = match[1] or match[3], match[2] or match[4]
        return f"${name}_{index}$" if name else LATEX.get(match[0], match[0])

    return " ".join(SYMBOL_OR_SIGN.sub(escaped, text).split())


def escape_markdown(text: str) -> str:
    """Text as Markdown prints it, in one line.

    Examples
    --------
    >>> print(escape_markdown("IncDSI* | A_T"))
    IncDSI\\* \\| A_T
    """
    return re.sub(r"[\\`*|<\[\]]|(?<!\w)_|_(?!\w)", lambda match: "\\" + match[0], " ".join(text.split()))


def score(value: float | None, spread: float | None = None) -> TableEntry | None:
    """A share as per cent.

    Examples
    --------
    >>> score(0.8614, 0.002)
    TableEntry(text='86.1', number=86.1, spread='0.2')
    """
    if value is None:
        return None
    text = f"{100 * value:.1f}".replace("-0.0", "0.0")
    return TableEntry(text.replace("-", "−"), float(text), "" if spread is None else f"{100 * spread:.1f}")
