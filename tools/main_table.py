"""Tables 2 and 3 whole: what the paper prints of every system beside what the cells say."""

from __future__ import annotations

from collections.abc import Sequence

from promptdsi.experiments.expectations import D0, NEW
from promptdsi.experiments.findings import Finding
from promptdsi.experiments.published import MS_MARCO, NQ, Published
from promptdsi.experiments.tables import NONE, Column, Entry, Table, between, line, score

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
        f"Hits@10 of every system after the last corpus; ours with 95 % intervals. {NONE} is what the paper does not print and what is not "
        "planned or has not run here. MRR@10 is in the report."
    )
    return f"{said}\n\n{Table('', columns, lines).markdown().strip()}"


def printed(tables: dict[str, Published], label: str) -> list[str | None]:
    found = [tables[data].get(label, (None,) * 4)[place] for data in (NQ, MS_MARCO) for place in (HITS_ON_D0, HITS_ON_NEW)]
    return [None if figure is None else f"{figure:.1f}" for figure in found]


def measured(one: Finding | None) -> list[Entry | None]:
    entries: list[Entry | None] = []
    for measure in (D0, NEW):
        found = None if one is None else one.estimate(measure)
        shown = None if found is None else score(found.value)
        entries.append(None if found is None or shown is None else Entry(f"{shown.text} ({between(found)})"))
    return entries
