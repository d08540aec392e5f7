"""Tables: what is bold and underlined, what LaTeX and Markdown get to see."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_latex, row

numbers = st.lists(st.lists(st.none() | st.integers(-3, 3).map(float), min_size=2, max_size=2), min_size=1, max_size=6)


@given(numbers, st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_best_is_bold_and_the_second_underlined(given_numbers: list[list[float | None]], ranked: list[bool]) -> None:
    rows = [
        TableRow(tuple(TableEntry("–" if n is None else f"{n:.0f}", n) for n in figures), ranked=ranks)
        for figures, ranks in zip(given_numbers, ranked, strict=False)
    ]
    table = Table("t", [Column("a", best="up"), Column("b", best="down")], rows)
    shown = [[entry.strip() for entry in line.split("|")[1:-1]] for line in table.markdown().splitlines()[2:]]
    for column, sign in ((0, 1), (1, -1)):
        values = [sign * n for each in rows if each.ranked and (n := each.entries[column].number) is not None]
        order = sorted(set(values), reverse=True) if len(values) > 1 else []
        for each, entries in zip(rows, shown, strict=True):
            number = each.entries[column].number
            value = None if number is None or not each.ranked else sign * number
            assert entries[column].startswith("**") == (value is not None and order[:1] == [value])
            assert entries[column].startswith("<ins>") == (value is not None and order[1:2] == [value])
    assert table.latex("x").count(r"\textbf{") == table.markdown().count("**") // 2


@given(st.text(max_size=30))
def test_latex_escapes_everything_special(text: str) -> None:
    left = re.sub(r"\$[A-Z]+_\w\$|\$(\\\w+|-)\$|\\text\w+\{\}|\\(checkmark|ldots)\{\}|\\[&%$#_{}]", "", escape_latex(text))
    assert not set(left) & set("&%$#_{}~^\\<>|\n")


def test_tables_have_heads_and_groups() -> None:
    table = Table("x", [Column("s", left=True), Column("H", "D0"), Column("M", "D0")], [row("a*|b", "1", None, group="g_1")])
    assert table.markdown() == "| s | D0 H | D0 M |\n| :-- | --: | --: |\n| *g_1* |  |  |\n| a\\*\\|b | 1 | – |\n"
    tex = table.latex("tab:x")
    assert r" & \multicolumn{2}{c}{$D_0$} \\" in tex and r"\cmidrule(lr){2-3}" in tex and r"\textit{g\_1}" in tex
    with pytest.raises(ValueError, match="2 entries, expected 3"):
        Table("x", table.columns, [row("a", "b")])
