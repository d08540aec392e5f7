"""spans: queries without a model: the title, the document's sentences, and its informative word spans.

Informative spans are maximal runs of words that are not function words, scored as in RAKE (Rose et al., 2010): the sum over
their words of degree / frequency, both counted in this document alone. Sentences lose some of their function words at
random, because people do not type whole sentences.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from promptdsi.corpus.corpus import Document
from promptdsi.corpus.generators import Generator
from promptdsi.corpus.generators.stopwords import STOPWORDS

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
PHRASE_END = re.compile(r"[,;:()\[\]{}\"“”«»—–.!?\n|]+")
MAX_SENTENCE_WORDS = 24
MAX_SPAN_WORDS = 5


@dataclass(kw_only=True)
class Spans(Generator):
    """The title, then sentences and informative spans in turn."""

    NAME = "spans"
    batch_size = 1000

    word_dropout: float = 0.5  # share of a sentence's function words that is left out

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        for document in documents:
            # Seeded by the document, so that its queries do not depend on its neighbours.
            rng = random.Random(f"{self.seed}\0{document.title}\0{document.text}")
            sentences = self._sentences(document.text, rng)
            spans = informative_spans(f"{document.title}. {document.text}")
            in_turn = (query for query in chain.from_iterable(zip_longest(sentences, spans)) if query is not None)
            yield list(chain([document.title], in_turn))

    def _sentences(self, text: str, rng: random.Random) -> list[str]:
        """The shortened sentences in a random order."""
        sentences = [shortened for sentence in SENTENCE_END.split(text) if len(shortened := self._shorten(sentence, rng)) >= 2]
        rng.shuffle(sentences)
        return [" ".join(words) for words in sentences]

    def _shorten(self, sentence: str, rng: random.Random) -> list[str]:
        words = WORD.findall(sentence)
        words = [word for word in words if word.lower() not in STOPWORDS or rng.random() >= self.word_dropout]
        start = rng.randrange(max(1, len(words) - MAX_SENTENCE_WORDS + 1))
        return words[start : start + MAX_SENTENCE_WORDS]


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
    return sorted(scores, key=lambda span: -scores[span])  # stable: equal scores stay in reading order


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
