"""Figures 5 and 6, Table 5: the largest topics of D0, their strongest terms, and queries that choose them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.figures import look_of, panels
from promptdsi.bench.findings import Findings, Heading, Part, Plot, Text
from promptdsi.bench.tables import Column, Table, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "topics"
SHOWN, TERMS, EXAMPLES = 8, 5, 3


class Topic(NamedTuple):
    number: int
    documents: int
    words: list[str]
    weights: list[float]
    examples: list[str]


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        for one in found:
            record = next((record for record in one.records if record.get("topics")), None)
            if record is None:
                yield Text(f"{one.label}: no topics are recorded: –")
                continue
            topics = read(record["topics"])
            title = f"{setting.label}, {one.label}, seed {record['cell']['seed']}"
            yield Text(
                f"{title}: {len(topics)} topics hold {sum(topic.documents for topic in topics):,} documents of D0, "
                f"mined by {record['cell']['params'].get('topic_engine', 'k-means')}."
            )
            name, caption = (
                f"{setting.name}-{one.label.lower()}",
                f"{title}: the largest topics (documents in brackets) and their strongest terms; bars: c-TF-IDF, a scale per panel",
            )
            yield Plot(name.replace(" ", "-"), caption, partial(_draw, topics[:SHOWN]))
            yield _table(title, topics)
            if any(topic.examples for topic in topics):
                yield _examples(title, topics)


def read(record: dict[str, Any]) -> list[Topic]:
    """Topics of a record, the largest first."""
    examples = record.get("examples") or [[] for _ in record["words"]]
    together = zip(record["counts"], record["words"], record["weights"], examples, strict=True)
    return sorted((Topic(number, *topic) for number, topic in enumerate(together)), key=lambda topic: (-topic.documents, topic.number))


def _table(title: str, topics: Sequence[Topic]) -> Table:
    lines = [line(str(topic.number), f"{topic.documents:,}", ", ".join(topic.words)) for topic in topics]
    return Table(f"{title}: all topics", [Column("topic"), Column("documents"), Column("strongest terms", left=True)], lines)


def _examples(title: str, topics: Sequence[Topic]) -> Table:
    lines = [
        line(", ".join(topic.words[:TERMS]), _marked(query, topic.words), group=f"Topic {topic.number}")
        for topic in topics[:SHOWN]
        for query in spread(topic.examples, EXAMPLES)
    ]
    return Table(
        f"{title}: queries that choose the largest topics, spread evenly; words that are terms of the topic in capitals",
        [Column("terms", left=True), Column("query", left=True)],
        lines,
    )


def spread(queries: Sequence[str], most: int) -> list[str]:
    """At most so many, at even distances: neighbours in a corpus are often about one thing, and picking would flatter.

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
    return re.sub(r"\w+", lambda found: found[0].upper() if found[0].lower() in words else found[0], query)


def _draw(topics: Sequence[Topic]) -> Figure:
    across = min(4, len(topics))
    down = -(-len(topics) // across)
    figure, axes = panels(down, across, height=0.3 + 1.45 * down)
    for place, ax in enumerate(axes.flat):
        if place >= len(topics):
            ax.set_visible(False)
            continue
        topic = topics[place]
        words, weights = topic.words[:TERMS], topic.weights[:TERMS]
        ax.barh(range(len(words)), weights, color=look_of("Topic").colour, height=0.7)
        ax.set_yticks(range(len(words)), [word if len(word) < 19 else word[:17] + "…" for word in words])
        ax.invert_yaxis()
        ax.set_xticks([])
        ax.grid(False)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"topic {topic.number} ({topic.documents:,})", loc="left")
    return figure
