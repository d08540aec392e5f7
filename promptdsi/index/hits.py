"""Hits: what a search returns, and why each document is where it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.engine.selection import Floats, unit
from promptdsi.engine.threads import one_thread_each
from promptdsi.errors import UsageError
from promptdsi.index.neighbours import Neighbour, neighbours
from promptdsi.index.snapshot import Snapshot
from promptdsi.methods.method import check_k

SNIPPET = 180  # characters
READ, MATCHES = 20_000, 200  # characters of a text, and words of the query in it, that a snippet is looked for in
NEWER = 5  # documents that are named; all are counted
WORD = re.compile(r"\w+")


class Why(NamedTuple):
    """Why a document stands where it does.

    `prompt` is the number of the prompt the query chose and `similarity` its key's cosine (`topic`: the words of that
    prompt's topic); `rank_without` and `score_without` are the document's without any prompt; `query` is the kept query of
    this document nearest to the one asked; `newer` lists the first documents of later generations that stand before it, `newer_count`
    counts all; `neighbours` are the documents with the nearest rows.
    """

    prompt: int | None
    similarity: float | None
    topic: list[str]
    rank_without: int
    score_without: float
    query: str | None
    query_similarity: float | None
    newer: list[str]
    newer_count: int
    neighbours: list[Neighbour]

    def to_json(self) -> dict[str, Any]:
        return self._asdict() | {"neighbours": [one._asdict() for one in self.neighbours]}


class Hit(NamedTuple):
    """One document found. `corpus` and `since` say what it arrived with and in which generation."""

    rank: int
    docid: str
    score: float
    title: str
    snippet: str
    corpus: str
    since: int
    why: Why | None = None

    def to_json(self) -> dict[str, Any]:
        said = self._asdict()
        why = said.pop("why")
        return said | ({"why": why.to_json()} if why else {})


class Wanted(NamedTuple):
    """One query and what is to be found for it."""

    query: str
    k: int = 10
    explain: bool = False


class Stopped(Exception):
    """Nobody waits for the answers any more."""


def search(snapshot: Snapshot, queries: Sequence[str], *, k: int, explain: bool = False) -> list[list[Hit]]:
    """The k best documents of each query, ties by docid."""
    check_k(k)
    return answer(snapshot, [Wanted(query, k, explain) for query in queries])


def answer(snapshot: Snapshot, wanted: Sequence[Wanted], *, stop: Callable[[], bool] = lambda: False) -> list[list[Hit]]:
    """The best documents of each query; all are encoded and scored together, whatever each asks for. `stop` is asked in between."""
    for query, _, _ in wanted:
        if not isinstance(query, str) or not query.strip():
            raise UsageError("a query is empty: give a few words to look for")
        try:
            query.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"the query {query[:50]!a} is not UTF-8") from None
    if not wanted:
        return []
    with one_thread_each():
        vectors = snapshot.encoder.encode([one.query for one in wanted])
        found = snapshot.table.top(vectors, max(one.k for one in wanted))
        answers = []
        for (query, k, explain), vector, rows, scores in zip(wanted, vectors, found.rows.tolist(), found.scores.tolist(), strict=True):
            if stop():
                raise Stopped
            hits = [_hit(snapshot, query, rank, *pair) for rank, pair in enumerate(zip(rows[:k], scores[:k], strict=True), 1)]
            answers.append(_explained(snapshot, query, vector, rows[:k], hits) if explain else hits)
        return answers


def _hit(snapshot: Snapshot, query: str, rank: int, row: int, score: float) -> Hit:
    entry = snapshot.place(row).entry
    document = snapshot.document(row)
    title, text = (document.title, snippet(document.text, query)) if document else ("", "")
    return Hit(rank, snapshot.table.docids[row], score, title, text, entry.name, entry.since)


def _explained(snapshot: Snapshot, query: str, vector: Floats, rows: list[int], hits: list[Hit]) -> list[Hit]:
    if not hits:
        return hits
    chosen = snapshot.encoder.choose(query)
    prompt = int(chosen.ids[0]) if chosen and not (chosen.hidden is not None and chosen.hidden[0]) else None
    topics = snapshot.manifest.metadata.get("topics")  # of a strategy whose prompts stand for topics
    words = topics["words"] if topics else []
    topic = words[prompt] if prompt is not None and prompt < len(words) else []
    plain = snapshot.encoder.encode([query], prompted=False)[0]  # (D,)
    ranks = snapshot.table.ranks(plain, rows).tolist()
    scores = snapshot.table.scores(plain, rows).tolist()
    alike, nearest = neighbours(snapshot, rows), _nearest(snapshot, rows, hits, vector)
    similarity = float(chosen.similarity[0]) if chosen and chosen.similarity is not None else None
    explained = []
    for place, hit in enumerate(hits):
        newer = [other.docid for other in hits[:place] if other.since > hit.since]
        why = Why(prompt, similarity, topic, ranks[place], scores[place], *nearest[place], newer[:NEWER], len(newer), alike[place])
        explained.append(hit._replace(why=why))
    return explained


def _nearest(snapshot: Snapshot, rows: list[int], hits: list[Hit], vector: Floats) -> list[tuple[str | None, float | None]]:
    """For each document the kept query nearest to the one asked, where the owner kept any."""
    kept = [
        [one["text"] for one in snapshot.kept_queries(snapshot.place(row).number).get(hit.docid, [])]
        for row, hit in zip(rows, hits, strict=True)
    ]
    texts = [text for own in kept for text in own]
    close = (unit(snapshot.encoder.encode(texts)) @ unit(vector)).tolist() if texts else []
    found: list[tuple[str | None, float | None]] = []
    for own in kept:
        near, close = close[: len(own)], close[len(own) :]
        found.append(max(zip(own, near, strict=True), key=lambda pair: pair[1], default=(None, None)))
    return found


def places(text: str, words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Where words stand in a text as whole words, in any case."""
    lower = text.lower()
    if len(lower) != len(text):  # İ becomes two letters: it stays as it is
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    for word in words:
        at = lower.find(word)
        while at >= 0:
            before, after = lower[at - 1 : at], lower[at + len(word) : at + len(word) + 1]
            if not WORD.match(before) and not WORD.match(after):
                yield at, word
            at = lower.find(word, at + len(word))


def snippet(text: str, query: str, width: int = SNIPPET) -> str:
    """The stretch of a text with most words of the query, cut at words.

    Examples
    --------
    >>> snippet("Tea is brewed with water. Coffee is ground first, then brewed slowly.", "ground coffee", 30)
    '… Coffee is ground first, then …'
    """
    text = " ".join(text[:READ].split())
    if len(text) <= width:
        return text
    wanted = set(WORD.findall(query.lower())) - STOPWORDS
    found = sorted(places(text, wanted))[:MATCHES]
    best = max(found, key=lambda start: (len({word for at, word in found if 0 <= at - start[0] < width}), -start[0]), default=(0, ""))
    sentence = text.rfind(". ", 0, best[0] + 1)
    first = sentence + 2 if sentence >= 0 else 0
    if best[0] - first > width // 3:
        first = text.rfind(" ", 0, max(0, best[0] - width // 6)) + 1
    last = len(text) if first + width >= len(text) else text.rfind(" ", first + 1, first + width + 1)
    last = first + width if last <= first else last
    return ("… " if first else "") + text[first:last].strip() + (" …" if last < len(text) else "")
