"""Figures 5 and 6, Table 5: the largest topics of D0, their strongest terms, and queries that choose them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from promptdsi.bench.report import Heading, Part, Text
from promptdsi.bench.run_records import TopicRecord
from promptdsi.bench.system_results import SystemResults
from promptdsi.bench.tables import Column, Table, row

from ..figures import look_of, panels, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN, TERMS, EXAMPLES = 8, 5, 3


class Topic(NamedTuple):
    number: int
    documents: int
    words: list[str]
    weights: list[float]
    examples: list[str]


def report(results: SystemResults) -> Iterator[Part]:
    for setting, systems in results.settings():
        yield Heading(setting.label)
        for result in systems:
            record = next((record for record in result.records if record.topics), None)
            if record is None or record.topics is None:
                yield Text(f"{result.label}: no topics are recorded: –")
                continue
            topics = read(record.topics, results.queries.get(setting.name))
            title = f"{setting.label}, {result.label}, seed {record.run.seed}"
            yield Text(
                f"{title}: {len(topics)} topics hold {sum(topic.documents for topic in topics):,} documents of D0, "
                f"mined by {record.run.params.get('topic_engine', 'k-means')}."
            )
            name, caption = (
                f"{setting.name}-{result.label.lower()}",
                f"{title}: the largest topics (documents in brackets) and their strongest terms; bars: c-TF-IDF, a scale per panel",
            )
            yield plot(name.replace(" ", "-"), caption, partial(_draw, topics[:SHOWN]))
            yield _table(title, topics)
            if any(topic.examples for topic in topics):
                yield _examples(title, topics)


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
