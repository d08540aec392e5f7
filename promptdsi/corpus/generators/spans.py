"""spans: queries without a model, at once: the title, the document's sentences, and its informative word spans.

Informative spans are maximal runs of words that are not function words, scored as in RAKE (Rose et al., 2010): the sum over
their words of degree / frequency, both counted in this document alone. Sentences lose some of their function words, by
seed, because people do not type whole sentences.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from promptdsi.corpus.generators.generator import Generator
from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.corpus.records import Document

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
PHRASE_END = re.compile(r"[,;:()\[\]{}\"“”«»—–.!?\n|]+")
MAX_SENTENCE_WORDS = 24
MAX_SPAN_WORDS = 5


class Spans(Generator):
    """Title, sentences and informative spans, taken in turn."""

    NAME = "spans"
    batch_size = 1000

    def __init__(self, *, per_document: int = 5, seed: int = 0, word_dropout: float = 0.5) -> None:
        self.per_document = per_document
        self.seed = seed
        self.word_dropout = word_dropout  # share of a sentence's function words that is left out

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        for document in documents:
            # Seeded by the document, so that its queries do not depend on its neighbours.
            rng = random.Random(f"{self.seed}\0{document.title}\0{document.text}")
            sentences = self._sentences(document.text, rng)
            spans = informative_spans(f"{document.title}. {document.text}")
            in_turn = (query for query in chain.from_iterable(zip_longest(sentences, spans)) if query is not None)
            yield list(chain([document.title], in_turn))

    def _sentences(self, text: str, rng: random.Random) -> list[str]:
        """The sentences in a random order, as somebody in a hurry would type them."""
        sentences = [shortened for sentence in SENTENCE_END.split(text) if len(shortened := self._hurried(sentence, rng)) >= 2]
        rng.shuffle(sentences)
        return [" ".join(words) for words in sentences]

    def _hurried(self, sentence: str, rng: random.Random) -> list[str]:
        words = WORD.findall(sentence)
        kept = [word for word in words if word.lower() not in STOPWORDS or rng.random() >= self.word_dropout]
        start = rng.randrange(max(1, len(kept) - MAX_SENTENCE_WORDS + 1))
        return kept[start : start + MAX_SENTENCE_WORDS]


def informative_spans(text: str) -> list[str]:
    """Runs of content words, best first.

    Examples
    --------
    >>> informative_spans("The solar wind shapes the tail of a comet. A comet is ice and dust.")
    ['solar wind shapes', 'tail', 'comet', 'ice', 'dust']
    """
    spans = [span for phrase in PHRASE_END.split(text) for span in _runs(phrase)]
    frequency = Counter(word.lower() for span in spans for word in span)
    degree: Counter[str] = Counter()
    for span in spans:
        for word in span:
            degree[word.lower()] += len(span)
    scores = {" ".join(span): sum(degree[word.lower()] / frequency[word.lower()] for word in span) for span in spans}
    first_seen = {span: place for place, span in enumerate(scores)}
    return sorted(scores, key=lambda span: (-scores[span], first_seen[span]))


def _runs(phrase: str) -> Iterator[list[str]]:
    run: list[str] = []
    for word in WORD.findall(phrase):
        if word.lower() not in STOPWORDS and not word.isdigit():
            run.append(word)
        elif run:
            yield run[:MAX_SPAN_WORDS]
            run = []
    if run:
        yield run[:MAX_SPAN_WORDS]
