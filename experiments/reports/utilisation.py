"""Figure 4: which prompts test queries choose, corpus by corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import SUMMARY_ROWS, Heading, Part, Plot, Summary, Text
from promptdsi.bench.run_records import RunRecord
from promptdsi.bench.system_results import SystemResult, SystemResults, spread
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row, score

from ..figures import GREY, look_of, panels, plot
from ..summaries import listed, tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Use(NamedTuple):
    """How a pool is used: shares of the prompts that are chosen at all, and more often than if all were chosen alike."""

    utilisation: float
    frequent: float


def report(results: SystemResults) -> Iterator[Part]:
    yield from _summary(results)
    for place, (setting, systems) in enumerate(results.settings()):
        chosen = selecting(systems)
        yield Heading(setting.label)
        if without := [result.label for result in systems if result.records and result not in chosen]:
            yield Text(f"Prompts are not selected one by one: {escape_markdown(', '.join(without))}.")
        if chosen and place:  # that of the first setting is in the summary
            yield _figure(setting, chosen)
        yield _table(setting, systems)
    yield Text(
        "Utilisation is the share of a pool's M prompts that at least one test query selects; frequent is the share selected by more than "
        "1/M of the queries, as the paper counts it. Figures show the first seed; pools of more than ten prompts are sorted there by how "
        "often all corpora together select them."
    )


def selecting(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems that select prompts, and have run."""
    return [result for result in systems if result.records and result.records[0].prompt_counts]


def _figure(setting: Setting, chosen: Sequence[SystemResult]) -> Plot:
    caption = f"{setting.label}: share of test queries that select each prompt; dashed: 1/M"
    return plot(setting.name, caption, partial(_draw, chosen))


def _summary(results: SystemResults) -> Iterator[Summary]:
    """How much of its pool each system uses, over the queries of all corpora."""
    rows, texts = [], []
    pools = [(setting, chosen) for setting, systems in results.settings() if (chosen := selecting(systems))]
    for setting, chosen in pools:
        for result in chosen:
            counted = [counts_of(record) for record in result.records]
            shown = _shown([use(counts.sum(axis=0)) for counts in counted])
            rows.append(row(f"{setting.label}, {result.label}", str(counted[0].shape[1]), *shown))
            if result in as_in_the_paper(chosen) and (share := shown[0]) is not None:
                texts.append(f"{result.label} {share.text} % ({setting.label})")
    if pools:
        columns = [Column("system", left=True), Column("M"), Column("utilisation, %"), Column("frequent, %")]
        yield Summary(
            tested(results),
            f"Of its pool, the queries of all corpora together use: {listed(texts)}.",
            "Where a pool is all in use, no other can use more; no interval is given, because a resample of queries can only lose prompts.",
            _figure(*pools[0]),
            Table("How much of each pool the test queries of all corpora use", columns, rows[:SUMMARY_ROWS]),
        )


def as_in_the_paper(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Pools without options of ours."""
    return [result for result in systems if not result.point.system.params.get("prompt_options")]


def counts_of(record: RunRecord) -> NDArray[np.float64]:
    """How often each corpus's queries chose each prompt: (corpora, M)."""
    assert record.prompt_counts is not None, "only systems that select prompts are counted"
    return np.array(record.prompt_counts["test"], dtype=np.float64)


def use(counts: NDArray[np.float64]) -> Use:
    """The use of a pool by the queries of one corpus.

    Examples
    --------
    >>> use(np.array([7.0, 1.0, 0.0, 2.0]))
    Use(utilisation=0.75, frequent=0.25)
    """
    shares = counts / max(1.0, counts.sum())
    return Use(float((counts > 0).mean()), float((shares > 1 / len(counts)).mean()))


def _table(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows: list[TableRow] = []
    for result in systems:
        if not result.records or not result.records[0].prompt_counts:
            rows.append(row(None, None, None, None, group=result.label))
            continue
        counted = [counts_of(record) for record in result.records]
        pool = ", ".join(sorted({str(counts.shape[1]) for counts in counted}, key=int))
        for corpus in range(len(counted[0])):
            rows.append(row(f"D{corpus}", pool, *_shown([use(counts[corpus]) for counts in counted]), group=result.label))
        rows.append(row("all corpora", pool, *_shown([use(counts.sum(axis=0)) for counts in counted]), group=result.label))
    columns = [Column("corpus", left=True), Column("M"), Column("utilisation, %"), Column("frequent, %")]
    return Table(f"{setting.label}: how much of each pool test queries use", columns, rows)


def _shown(uses: Sequence[Use]) -> list[TableEntry | None]:
    columns = [[used.utilisation for used in uses], [used.frequent for used in uses]]
    return [score(float(np.mean(values)), spread(values)) for values in columns]


def _draw(chosen: Sequence[SystemResult]) -> Figure:
    corpora = len(counts_of(chosen[0].records[0]))
    figure, axes = panels(len(chosen), corpora, height=0.5 + 1.25 * len(chosen), sharey="row")
    for down, result in enumerate(chosen):
        counts = counts_of(result.records[0])  # (corpora, M)
        # A pool of one prompt per corpus keeps its order, which means something; a large one is sorted.
        order = np.arange(counts.shape[1]) if counts.shape[1] <= 10 else np.argsort(-counts.sum(axis=0), kind="stable")
        for corpus in range(corpora):
            ax = axes[down, corpus]
            shares = counts[corpus][order] / max(1.0, counts[corpus].sum())
            ax.bar(np.arange(1, len(order) + 1), 100 * shares, width=0.8, color=look_of(result.label).color)
            ax.axhline(100 / len(order), color=GREY, linestyle="--", linewidth=0.8)
            ax.set_xticks([1, len(order)] if len(order) > 10 else range(1, len(order) + 1))
            ax.set_title(f"D{corpus}" if not down else "")
            ax.set_xlabel("prompt" if down == len(chosen) - 1 else "")
            ax.set_ylabel(f"{result.label.replace(', ', chr(10))}\nqueries, %" if not corpus else "")
    return figure
