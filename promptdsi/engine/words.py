"""Word scores: the share of a query's information that the words of a passage carry, exact for every generation.

    coverage(q, p) = Σ_t tf_q(t) · idf(t) · tf_p(t) / (tf_p(t) + k1 (1 − b + b |p| / average))  ÷  Σ_t tf_q(t) · idf(t)

This is Lucene's BM25 divided by what the query's words weigh, so it lies between 0 and 1. The postings of a corpus are one immutable
blob; idf and average length are statistics of their own, computed once and frozen, so adding, deleting or purging a document changes no
score of another: except that a word which only a purged document had weighs in a query as an unseen one from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.split_words import split_words
from promptdsi.engine.postings import Ints, Occurrences, Postings, Terms, WordStatistics, encode_term, merge_small
from promptdsi.model.path import Floats

K1, B = 1.5, 0.75


class QueryTerm(NamedTuple):
    """A word of a query: its share of the query's information, and where it occurs in each of the table's postings."""

    word: str
    share: float
    occurrences: tuple[Occurrences | None, ...]


class WordTable:
    """The word weights of all passages of a generation, in the order of its rows. Immutable, so threads may share it.

    `first` is the number of the first passage: below 0 where rows begin within the first postings.
    """

    def __init__(
        self, postings: Sequence[Postings], statistics: WordStatistics, *, weight: float = 1.0, salt: str = "", first: int = 0
    ) -> None:
        self.parts, self.statistics, self.weight, self.salt = postings, statistics, weight, salt
        self.postings = merge_small(postings)
        self.firsts = np.cumsum([first, *(len(part.lengths) for part in self.postings)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def grown(self, postings: Sequence[Postings]) -> WordTable:
        """The same with the words of a new corpus; statistics are taken anew as `WordStatistics.grown` says."""
        parts = [*self.parts, *postings]
        return WordTable(parts, self.statistics.grown(parts), weight=self.weight, salt=self.salt)

    def weighted(self, weight: float) -> WordTable:
        """The same with another weight of words beside rows."""
        return WordTable(self.parts, self.statistics, weight=weight, salt=self.salt)

    @cached_property
    def terms(self) -> list[Terms]:
        """The terms of each of the postings."""
        return [part.terms for part in self.postings]

    @cached_property
    def known_terms(self) -> Terms:
        """The terms of the statistics."""
        return self.statistics.terms

    @cached_property
    def penalties(self) -> list[Floats]:
        """k1 (1 − b + b |p| / average) of each passage: (n,) for each of the postings."""
        average = self.statistics.average
        return [(K1 * (1 - B) + K1 * B / average * part.lengths).astype(np.float32) for part in self.postings]

    def query(self, text: str) -> WordQuery:
        """The words of a query, ready to be scored."""
        counts = Counter(split_words(text))
        encoded = [encode_term(word, self.salt) for word in counts]
        idf = [self.statistics.idf(number) for number in self.known_terms.find(encoded)]
        weights = [count * each for count, each in zip(counts.values(), idf, strict=True)]
        total = sum(weights)
        numbers = zip(*(terms.find(encoded) for terms in self.terms), strict=True)  # of each word, in each of the postings
        terms = [
            QueryTerm(word, weight / total, self._occurrences(places))
            for word, weight, places in zip(counts, weights, numbers, strict=True)
            if max(places) >= 0
        ]
        return WordQuery(self, terms, total)

    def _occurrences(self, numbers: Sequence[int]) -> tuple[Occurrences | None, ...]:
        return tuple(part.occurrences(number) if number >= 0 else None for part, number in zip(self.postings, numbers, strict=True))


class WordQuery:
    """One query against a table of word weights. Scores are `weight` · coverage. `information` is what all its words weigh."""

    def __init__(self, table: WordTable, terms: Sequence[QueryTerm], information: float) -> None:
        self.table, self.terms, self.information = table, terms, information
        # Each of the sums and products below rounds its result by at most 2⁻²⁴ of it, and no result exceeds the weight.
        self.error = np.float32(table.weight * (len(terms) + 8) * 2.0**-23)

    def add_to(self, scores: Floats, first: int) -> None:
        """Add approximate word scores to those of consecutive passages, beginning with number `first`; off by at most `error`."""
        table = self.table
        for number, part in enumerate(table.postings):
            start = int(table.firsts[number])
            low, high = max(first - start, 0), min(first + len(scores) - start, len(part.lengths))
            if low >= high:
                continue
            bounds = np.array([low, high], np.int32)  # of the type of the passages, which are copied otherwise
            for term in self.terms:
                if (occurrences := term.occurrences[number]) is None:
                    continue
                passages, counts = occurrences
                if low or high < len(part.lengths):
                    chosen = slice(*np.searchsorted(passages, bounds).tolist())
                    passages, counts = passages[chosen], counts[chosen]
                share = counts / (counts + table.penalties[number][passages])  # float32: a float32 and 16 bits
                # A term has each passage once, so no two of these additions meet.
                inside = passages if start == first else passages + np.int64(start - first)
                scores[inside] += np.float32(table.weight * term.share) * share

    def scores(self, passages: Sequence[int] | Ints) -> NDArray[np.float64]:
        """Exact word scores of some passages."""
        return self.table.weight * self.coverage(passages)

    def coverage(self, passages: Sequence[int] | Ints) -> NDArray[np.float64]:
        """The share of the query's information that these passages' words carry, 0 to 1: (n,) in float64."""
        total = np.zeros(len(passages))
        for term, saturation in zip(self.terms, self._saturation(np.asarray(passages, np.int64)), strict=True):
            total += term.share * saturation  # term by term: equal passages sum in the same order, so they tie
        return total

    def matches(self, passage: int) -> list[tuple[str, float]]:
        """The words of the query that a passage contains, with what each adds to its score, most first."""
        saturation = self._saturation(np.array([passage], np.int64))[:, 0].tolist()
        added = [(term.word, self.table.weight * term.share * value) for term, value in zip(self.terms, saturation, strict=True)]
        return sorted(((word, weight) for word, weight in added if weight), key=lambda pair: (-pair[1], pair[0]))

    def _saturation(self, numbers: Ints) -> NDArray[np.float64]:
        """tf / (tf + k1 (1 − b + b |p| / average)) of each term in some passages: (terms, n)."""
        table = self.table
        saturation = np.zeros((len(self.terms), len(numbers)))
        blocks = np.searchsorted(table.firsts, numbers, side="right") - 1
        for block in set(blocks.tolist()):
            inside = np.flatnonzero(blocks == block)
            local = (numbers[inside] - table.firsts[block]).astype(np.int32)  # of the type of the passages, which are copied otherwise
            counts = np.zeros((len(self.terms), len(local)))
            for row, term in enumerate(self.terms):
                if (occurrences := term.occurrences[block]) is None:
                    continue
                position = np.searchsorted(occurrences.passages, local)
                matching = occurrences.passages.take(position, mode="clip") == local
                counts[row] = matching * occurrences.counts.take(position, mode="clip")
            penalty = K1 * (1 - B + B * table.postings[block].lengths[local] / table.statistics.average)
            saturation[:, inside] = counts / (counts + penalty)
        return saturation


class Calibration(NamedTuple):
    """A logistic regression on the score of a hit, its margin over the best other document, its coverage, and the query's information.

    `bound` is the confidence that nearly all right first hits reached it was fitted on: below it nothing certain was found.
    """

    intercept: float
    score: float
    margin: float
    coverage: float
    bound: float
    information: float = 0.0  # a query of few or common words is easily matched

    def confidence(self, scores: Sequence[float], coverage: Sequence[float], information: float = 0.0) -> list[float]:
        """The probability that each hit of one query is right; the scores are those of all hits, best first."""
        values = np.asarray(scores, np.float64)
        if not len(values):
            return []
        # The best other document is the second hit for the first one, and the first for all others.
        others = np.append(values[1:2] if len(values) > 1 else values[:1] - 1, np.repeat(values[:1], len(values) - 1))
        features = np.stack([values, values - others, np.asarray(coverage, np.float64)], 1)
        logits = self.intercept + features @ np.array([self.score, self.margin, self.coverage]) + self.information * information
        return [float(value) for value in 1 / (1 + np.exp(-logits.clip(-30, 30)))]
