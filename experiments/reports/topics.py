"""Figures 5 and 6, Table 5: the largest topics of D0, their strongest terms, and queries that choose them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Plot, Summary, Text
from promptdsi.bench.run_records import RunRecord, TopicRecord
from promptdsi.bench.system_results import SystemResult, SystemResults
from promptdsi.bench.tables import Column, Table, row

from ..figures import look_of, panels, plot
from ..summaries import tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN, TERMS, EXAMPLES = 8, 5, 3


class Topic(NamedTuple):
    number: int
    documents: int
    words: list[str]
    weights: list[float]
    examples: list[str]


class Mined(NamedTuple):
    """The topics of a system in a setting, the largest first."""

    setting: Setting
    result: SystemResult
    topics: list[Topic]
    record: RunRecord

    @property
    def title(self) -> str:
        return f"{self.setting.label}, {self.result.label}, seed {self.record.run.seed}"

    @property
    def text(self) -> str:
        engine = self.record.run.params.get("topic_engine", "k-means")
        return f"{len(self.topics)} topics hold {sum(topic.documents for topic in self.topics):,} documents of D0, mined by {engine}"

    @property
    def figure(self) -> Plot:
        caption = f"{self.title}: the largest topics (documents in brackets) and their strongest terms; bars: c-TF-IDF, a scale per panel"
        name = f"{self.setting.name}-{self.result.label.lower()}".replace(" ", "-")
        return plot(name, caption, partial(_draw, self.topics[:SHOWN]))


def report(results: SystemResults) -> Iterator[Part]:
    records = [
        Mined(setting, result, read(record.topics, results.queries.get(setting.name)), record)
        for setting, systems in results.settings()
        for result in systems
        if (record := next((record for record in result.records if record.topics), None)) is not None and record.topics
    ]
    if not records:
        yield Text("No topics are recorded: –")
        return
    yield _summary(results, records)
    for place, mined in enumerate(records):
        yield Heading(mined.setting.label)
        yield Text(f"{mined.title}: {mined.text}.")
        if place:  # that of the first setting is in the summary
            yield mined.figure
        yield _table(mined.title, mined.topics)
        if any(topic.examples for topic in mined.topics):
            yield _examples(mined.title, mined.topics)


def _summary(results: SystemResults, records: Sequence[Mined]) -> Summary:
    first = records[0]
    columns = [Column("topic"), Column("documents"), Column("strongest terms", left=True)]
    rows = [row(str(topic.number), f"{topic.documents:,}", ", ".join(topic.words[:TERMS])) for topic in first.topics[:SHOWN]]
    return Summary(
        tested(results),
        f"{'; '.join(f'{mined.setting.label}: {mined.text}' for mined in records)}.",
        "Nothing is judged: the paper's topics are of other documents, and their number is not comparable.",
        first.figure,
        Table(f"{first.title}: the largest topics", columns, rows),
    )


def read(record: TopicRecord, queries: dict[str, str] | None = None) -> list[Topic]:
    """Topics of a record, the largest first; their examples are dev queries where the texts of `queries` are given by id."""
    examples = record.examples or [[] for _ in record.words]
    if queries is not None and record.queryids is not None:
        examples = [[queries[queryid] for queryid in queryids] for queryids in record.queryids]
    topics = zip(record.counts, record.words, record.weights, examples, strict=True)
    return sorted((Topic(number, *topic) for number, topic in enumerate(topics)), key=lambda topic: (-topic.documents, topic.number))


def _table(title: str, topics: Sequence[Topic]) -> Table:
    rows = [row(str(topic.number), f"{topic.documents:,}", ", ".join(topic.words)) for topic in topics]
    return Table(f"{title}: all topics", [Column("topic"), Column("documents"), Column("strongest terms", left=True)], rows)


def _examples(title: str, topics: Sequence[Topic]) -> Table:
    rows = [
        row(", ".join(topic.words[:TERMS]), _marked(query, topic.words), group=f"Topic {topic.number}")
        for topic in topics[:SHOWN]
        for query in spread(topic.examples, EXAMPLES)
    ]
    return Table(
        f"{title}: queries that choose the largest topics, spread evenly; words that are terms of the topic in capitals",
        [Column("terms", left=True), Column("query", left=True)],
        rows,
    )


def spread(queries: Sequence[str], most: int) -> list[str]:
    """At most so many, evenly spaced: neighbors in a corpus are often about one subject, and picking by hand would be biased.

    Examples
    --------
    >>> spread("abcdefgh", 3)
    ['a', 'c', 'f']
    >>> spread("ab", 3)
    ['a', 'b']
    """
    shown = min(most, len(queries))
    return [queries[n * len(queries) // shown] for n in range(shown)]


def _marked(query: str, words: Sequence[str]) -> str:
    """A query with its topic's terms in capitals, which Markdown and LaTeX both keep.

    Examples
    --------
    >>> _marked("When was the city founded?", ["city", "when"])
    'WHEN was the CITY founded?'
    """
    return re.sub(r"\w+", lambda match: match[0].upper() if match[0].lower() in words else match[0], query)


def _draw(topics: Sequence[Topic]) -> Figure:
    across = min(4, len(topics))
    down = -(-len(topics) // across)
    figure, axes = panels(down, across, height=0.3 + 1.45 * down)
    for index, ax in enumerate(axes.flat):
        if index >= len(topics):
            ax.set_visible(False)
            continue
        topic = topics[index]
        words, weights = topic.words[:TERMS], topic.weights[:TERMS]
        ax.barh(range(len(words)), weights, color=look_of("Topic").color, height=0.7)
        ax.set_yticks(range(len(words)), [word if len(word) < 19 else word[:17] + "…" for word in words])
        ax.invert_yaxis()
        ax.set_xticks([])
        ax.grid(False)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"topic {topic.number} ({topic.documents:,})", loc="left")
    return figure
