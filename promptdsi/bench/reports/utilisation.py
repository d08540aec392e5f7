"""Figure 4: which prompts test queries choose, corpus by corpus (METHOD 6.6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.bench.figures import GREY, look_of, panels
from promptdsi.bench.findings import Finding, Findings, Heading, Part, Plot, Text, spread
from promptdsi.bench.plan import Setting
from promptdsi.bench.tables import Column, Entry, Line, Table, line, plain, score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "utilisation"


class Use(NamedTuple):
    """How a pool is used: shares of the prompts that are chosen at all, and more often than if all were chosen alike."""

    utilisation: float
    frequent: float


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        chosen = [one for one in found if one.records and one.records[0].get("chosen")]
        yield Heading(setting.label)
        if without := [one.label for one in found if one.records and one not in chosen]:
            yield Text(f"Prompts are not chosen one by one: {plain(', '.join(without))}.")
        if chosen:
            caption = f"{setting.label}: share of test queries that choose each prompt; dashed: 1/M"
            yield Plot(setting.name, caption, partial(_draw, chosen))
        yield _table(setting, found)
    yield Text(
        "Utilisation is the share of a pool's M prompts that at least one test query chooses; frequent is the share chosen by more than "
        "1/M of the queries, as the paper counts it. Figures show the first seed; pools of more than ten prompts are sorted there by how "
        "often all corpora together choose them."
    )


def as_in_the_paper(found: Sequence[Finding]) -> list[Finding]:
    """Pools without options of ours."""
    return [one for one in found if not one.point.system.params.get("prompt_options")]


def counts_of(record: dict[str, Any]) -> NDArray[np.float64]:
    """How often each corpus's queries chose each prompt: (corpora, M)."""
    return np.array(record["chosen"]["test"], dtype=np.float64)


def use(counts: NDArray[np.float64]) -> Use:
    """The use of a pool by the queries of one corpus.

    Examples
    --------
    >>> use(np.array([7.0, 1.0, 0.0, 2.0]))
    Use(utilisation=0.75, frequent=0.25)
    """
    shares = counts / max(1.0, counts.sum())
    return Use(float((counts > 0).mean()), float((shares > 1 / len(counts)).mean()))


def _table(setting: Setting, found: Sequence[Finding]) -> Table:
    lines: list[Line] = []
    for one in found:
        if not one.records or not one.records[0].get("chosen"):
            lines.append(line(None, None, None, None, group=one.label))
            continue
        counted = [counts_of(record) for record in one.records]
        pool = ", ".join(sorted({str(counts.shape[1]) for counts in counted}, key=int))
        for corpus in range(len(counted[0])):
            lines.append(line(f"D{corpus}", pool, *_shown([use(counts[corpus]) for counts in counted]), group=one.label))
        lines.append(line("all corpora", pool, *_shown([use(counts.sum(axis=0)) for counts in counted]), group=one.label))
    columns = [Column("corpus", left=True), Column("M"), Column("utilisation, %"), Column("frequent, %")]
    return Table(f"{setting.label}: how much of each pool test queries use", columns, lines)


def _shown(uses: Sequence[Use]) -> list[Entry | None]:
    columns = [[one.utilisation for one in uses], [one.frequent for one in uses]]
    return [score(float(np.mean(values)), spread(values)) for values in columns]


def _draw(chosen: Sequence[Finding]) -> Figure:
    corpora = len(counts_of(chosen[0].records[0]))
    figure, axes = panels(len(chosen), corpora, height=0.5 + 1.25 * len(chosen), sharey="row")
    for down, one in enumerate(chosen):
        counts = counts_of(one.records[0])  # (corpora, M)
        # A pool of one prompt per corpus keeps its order, which means something; a large one is sorted.
        order = np.arange(counts.shape[1]) if counts.shape[1] <= 10 else np.argsort(-counts.sum(axis=0), kind="stable")
        for corpus in range(corpora):
            ax = axes[down, corpus]
            shares = counts[corpus][order] / max(1.0, counts[corpus].sum())
            ax.bar(np.arange(1, len(order) + 1), 100 * shares, width=0.8, color=look_of(one.label).colour)
            ax.axhline(100 / len(order), color=GREY, linestyle="--", linewidth=0.8)
            ax.set_xticks([1, len(order)] if len(order) > 10 else range(1, len(order) + 1))
            ax.set_title(f"D{corpus}" if not down else "")
            ax.set_xlabel("prompt" if down == len(chosen) - 1 else "")
            ax.set_ylabel(f"{one.label.replace(', ', chr(10))}\nqueries, %" if not corpus else "")
    return figure
