"""Tables 2 and 3 whole: what the paper prints of every system beside what the cells say."""

from __future__ import annotations

from collections.abc import Sequence

from promptdsi.bench.expectations import D0, NEW
from promptdsi.bench.findings import Finding, on_d0, on_new
from promptdsi.bench.published import MS_MARCO, NQ, Published
from promptdsi.bench.tables import NONE, Column, Table, between, line

HITS_ON_D0, HITS_ON_NEW = 0, 2  # places in a printed line


def whole(tables: dict[str, Published], found: Sequence[Finding]) -> str:
    """The paper's systems in its order, then those only we have."""
    ran = {one.label: one for one in found}
    theirs = list(tables[NQ])
    ours = [label for label in ran if label not in theirs]
    lines = [
        line(label, *printed(tables, label), *measured(ran.get(label)), group=group)
        for group, labels in (("In the paper", theirs), ("Only here", ours))
        for label in labels
    ]
    columns = [Column("system", left=True)]
    columns += [Column(name, data) for data in (f"{NQ}, paper:", f"{MS_MARCO}, paper:") for name in ("D0", "A_5")]
    columns += [Column(name, "ours:") for name in ("D0", "A_T")]
    said = (
        f"Hits@10 / MRR@10 of every system after the last corpus; ours with a 95 % interval of Hits@10. {NONE} is what the paper does not "
        "print, and what is not planned or has not run here."
    )
    return f"{said}\n\n{Table('', columns, lines).markdown().strip()}"


def printed(tables: dict[str, Published], label: str) -> list[str | None]:
    lines = [tables[data].get(label) for data in (NQ, MS_MARCO)]
    return [None if one is None else _pair(*one[first : first + 2]) for one in lines for first in (HITS_ON_D0, HITS_ON_NEW)]


def _pair(*figures: float | None) -> str:
    return " / ".join(NONE if figure is None else f"{figure:.1f}" for figure in figures)


def measured(one: Finding | None) -> list[str | None]:
    shown: list[str | None] = []
    for hits, reciprocal in ((D0, on_d0("MRR@10")), (NEW, on_new("MRR@10"))):
        found = None if one is None else (one.estimate(hits), one.value(reciprocal))
        if found is None or found[0] is None or found[1] is None:
            shown.append(None)
        else:
            shown.append(f"{100 * found[0].value:.1f} ({between(found[0])}) / {100 * found[1]:.1f}")
    return shown
