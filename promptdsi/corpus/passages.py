"""Passages: a document longer than the model reads, split where its text suggests it. Every character belongs to exactly one passage.

The title, and the heading a passage stands under, are put in front of its text: a passage must be understood without its neighbours.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus, Document, Pair, whole_text
from promptdsi.corpus.split_words import split_words

TokenStarts = Callable[[Sequence[str]], list[NDArray[np.int64]]]  # where each token of each text begins, in characters
MARKED, UNDERLINED = r"#{1,6}[ \t]+(?P<marked>\S(?:.*[^ \t\r#\n])?)[ \t\r#]*", r"(?P<underlined>\S.{0,120}?)\r?\n(?:={3,}|-{3,})[ \t\r]*"
HEADING = re.compile(rf"^(?:{MARKED}|{UNDERLINED})$", re.MULTILINE)
# Where a text may be split, best first; a passage begins there: the next passage's first character.
BREAKS = [re.compile(pattern) for pattern in (r"\n[ \t\r]*\n\s*", r"\n\s*", r"(?<=[.!?;…])[\"'”’)\]]*\s+|(?<=[。！？])", r"\s+")]
SPECIAL_TOKENS = 2
LEAST = 0.25  # of the limit: a passage is not shorter than that for the sake of a better break
PIECE = 1_000_000  # passages of a corpus that are stored together, at most: what a process reads or writes at a time
LEAST_SECTION = 16  # tokens: a shorter section, such as a heading alone, stays with the next one


class Passage(NamedTuple):
    """A part of a document: characters `start` to `end` of its text, and the heading it stands under."""

    start: int
    end: int
    heading: str = ""


@dataclass(frozen=True)
class Passages:
    """The passages of a corpus, document by document."""

    corpus: Corpus
    by_document: Sequence[Sequence[Passage]]  # by document

    @property
    def counts(self) -> list[int]:
        return [len(parts) for parts in self.by_document]

    @property
    def docids(self) -> list[str]:
        """The docid of each passage's document."""
        return [document.docid for document, parts in zip(self.corpus.documents, self.by_document, strict=True) for _ in parts]

    def documents(self) -> list[Document]:
        """Each passage as a document of its own: the same docid, the title with the heading, and the passage's text."""
        pairs = zip(self.corpus.documents, self.by_document, strict=True)
        return [passage_document(document, part) for document, parts in pairs for part in parts]

    def texts_with_queries(self, pairs: Iterable[Pair]) -> Iterator[str]:
        """The text of each passage whose words count: title, heading and text, and the queries of its document that fit it best."""
        queries: dict[str, list[str]] = {}
        for pair in pairs:
            queries.setdefault(pair.docid, []).append(pair.query.text)
        for document, parts in zip(self.corpus.documents, self.by_document, strict=True):
            texts = [whole_text(passage_document(document, part)) for part in parts]
            fitting: list[list[str]] = [[] for _ in texts]
            for query in queries.get(document.docid, ()):
                words = set(split_words(query))
                common = [len(words.intersection(split_words(text))) for text in texts] if len(texts) > 1 else [0]
                fitting[common.index(max(common))].append(query)
            yield from ("\n".join([text, *more]) for text, more in zip(texts, fitting, strict=True))

    def pieces(self) -> list[range]:
        """The positions of the documents in pieces of at most `PIECE` passages; a document is never divided."""
        firsts, passages = [0], 0
        for position, count in enumerate(self.counts):
            if passages + count > PIECE and position > firsts[-1]:
                firsts.append(position)
                passages = 0
            passages += count
        return [range(*bounds) for bounds in pairwise([*firsts, len(self.by_document)])]

    def boundaries(self) -> list[list[int]]:
        """Where the passages of each document begin, and where the last ends; nothing for a document of one passage."""
        return [[*(part.start for part in parts), parts[-1].end] if len(parts) > 1 else [] for parts in self.by_document]


def passage_document(document: Document, passage: Passage) -> Document:
    """A passage as a document of its own."""
    if passage.start == 0 and passage.end == len(document.text):
        return document
    title = ". ".join(part for part in (document.title, passage.heading) if part)
    return Document(document.docid, document.text[passage.start : passage.end].strip() or document.text, title)


def whole_documents(corpus: Corpus) -> Passages:
    """Every document as one passage, however long."""
    return Passages(corpus, [[Passage(0, len(document.text))] for document in corpus.documents])


def cut_corpus(corpus: Corpus, limit: int, token_starts: TokenStarts) -> Passages:
    """Cut every document of more than `limit` tokens, title included, into passages of at most that."""
    by_document: list[list[Passage]] = [[Passage(0, len(document.text))] for document in corpus.documents]
    # A token has at least one character: most documents need no look at their tokens.
    longer = [number for number, document in enumerate(corpus.documents) if len(whole_text(document)) > limit - SPECIAL_TOKENS]
    documents = [corpus.documents[number] for number in longer]
    wholes = token_starts([whole_text(document) for document in documents])
    for number, document, starts in zip(longer, documents, wholes, strict=True):
        if len(starts) > limit - SPECIAL_TOKENS:
            before = len(whole_text(document)) - len(document.text)  # the title and what joins it to the text
            title = int(np.searchsorted(starts, before))
            room = limit - SPECIAL_TOKENS - min(title, limit // 4)
            by_document[number] = cut_text(document.text, starts[title:] - before, room, token_starts)
    return Passages(corpus, by_document)


def cut_text(text: str, starts: NDArray[np.int64], limit: int, token_starts: TokenStarts) -> list[Passage]:
    """Cut a text whose tokens begin at `starts` into passages of at most `limit` tokens, each with its heading.

    A passage ends at a heading if there is one, else at the first empty line after a quarter of the limit, else at the last good break
    within it: a line, a sentence, a word.
    """
    headings = [(match.start(), match["marked"] or match["underlined"]) for match in HEADING.finditer(text)]
    costs = [len(tokens) + 1 for tokens in token_starts([name for _, name in headings])] if headings else []
    positions = [position for position, _ in headings]
    breaks = [[match.end() for match in pattern.finditer(text)] for pattern in BREAKS]
    passages: list[Passage] = []
    start = 0
    while start < len(text):
        number = bisect.bisect_right(positions, start) - 1  # the heading this passage stands under
        under = number >= 0 and positions[number] < start  # if it begins with it, the heading is in its text
        room = limit - min(costs[number], limit // 4) if under else limit
        end = _end(len(text), start, starts, max(room, 1), positions, breaks)
        passages.append(Passage(start, end, headings[number][1] if under else ""))
        start = end
    return passages


def _end(length: int, start: int, starts: NDArray[np.int64], room: int, headings: list[int], breaks: list[list[int]]) -> int:
    """Where the passage that begins at `start` ends."""
    first = int(np.searchsorted(starts, start))
    furthest = max(int(starts[first + room]), start + 1) if first + room < len(starts) else length  # one character may be several tokens
    least = int(starts[first + int(LEAST * room)]) if first + room < len(starts) else length
    section = int(starts[first + LEAST_SECTION]) if first + LEAST_SECTION < len(starts) else length
    heading = headings[position] if (position := bisect.bisect_left(headings, section)) < len(headings) else length
    if start < heading <= furthest and heading < length:
        return heading
    if furthest == length:
        return length
    paragraph = breaks[0][position] if (position := bisect.bisect_right(breaks[0], max(start, least))) < len(breaks[0]) else length
    if paragraph <= furthest:  # the first, not the last: a passage about one thing is found more often than one about three
        return paragraph
    for positions in breaks[1:]:
        last = positions[position - 1] if (position := bisect.bisect_right(positions, furthest)) else 0
        if last > max(start, least):
            return last
    return furthest
