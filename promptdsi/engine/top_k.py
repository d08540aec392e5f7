"""The k best documents of a query, and ranks of given ones, by approximate scores of bounded error: few rows are scored exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.quantized import QuantizedQuery
from promptdsi.engine.words import WordQuery
from promptdsi.model.path import Floats, unit

if TYPE_CHECKING:
    from promptdsi.engine.row_table import RowChunk, RowTable

Numbers = NDArray[np.int64]
CANDIDATES = 64  # candidates scored exactly without a second look at their bounds: scoring them is faster than looking
EXACT_ROWS = 8_192  # rows scored exactly at once: bounds memory where many rows tie
ROUNDING = 2.0**-23  # relative error of float32, for each term of a sum
SCORES = 1 << 22  # held at a time for ranks: the rows are read once for as many queries as that allows
SAMPLE = 16  # groups per result wanted, whose maxima estimate the k-th best score


class TopK:
    """The k best documents of one query among the chunks seen so far, each by its best row."""

    def __init__(self, table: RowTable, query: Floats, k: int, words: WordQuery | None = None) -> None:
        self.table, self.query, self.k, self.words = table, query, k, words
        self.pairs: list[tuple[float, int]] = []  # (score, row), best first
        self.threshold = -np.inf  # an exact score below it cannot be among the k best

    def update(self, chunk: RowChunk, scores: Floats, bound: float | np.float32, query: QuantizedQuery | None = None) -> None:
        """Take a chunk into account. No score of it is off by more than `bound`; `query` gives the bound of each single row."""
        words_error = np.float32(0)
        if self.words:
            self.words.add_to(scores, chunk.first)
            words_error = self.words.error
        whole_bound = bound + words_error
        if self.threshold == -np.inf:
            self.threshold = kth_best(chunk.best_of_documents(scores), self.k) - float(whole_bound)  # k documents certainly reach it
        candidates = np.flatnonzero(scores >= self.threshold - whole_bound if self.threshold > -np.inf else scores > -np.inf)
        first, rest = candidates, candidates[:0]
        if (limit := max(2 * self.k, CANDIDATES)) < len(candidates):
            # Score the most promising first: the threshold is then exact, and few of the rest still reach it.
            order = np.argpartition(scores[candidates], len(candidates) - limit)
            first, rest = candidates[order[-limit:]], candidates[order[:-limit]]
        self._score(first + chunk.first)
        rest = rest[scores[rest] >= self.threshold - whole_bound]
        if len(rest):  # the bound of the chunk's worst row was not enough: take each row's own
            length, error = chunk.length[rest], chunk.error[rest]
            if query is None:
                bounds = bound * ((length + error) / (chunk.max_length + chunk.max_error))
            else:
                bounds = query.error_bound(length, error)
            self._score(rest[scores[rest] >= self.threshold - bounds - words_error] + chunk.first)

    def _score(self, rows: Numbers) -> None:
        """Score rows exactly and keep the best of the k best documents."""
        if not len(rows):
            return
        scores = self.table.scores(self.query, rows, self.words)
        if self.table.document_starts is not None:
            rows, scores = self._best_rows(rows, scores)
        kth = np.partition(scores, len(scores) - self.k)[len(scores) - self.k] if len(scores) > self.k else -np.inf
        good = scores >= max(kth, self.threshold)
        pairs = zip(scores[good].tolist(), rows[good].tolist(), strict=True)
        self.pairs = sorted([*self.pairs, *pairs], key=lambda pair: (-pair[0], self.table.docids[pair[1]], pair[1]))
        if self.table.document_starts is not None:  # a document may have rows in two chunks
            best: dict[int, tuple[float, int]] = {}
            for pair in self.pairs:
                best.setdefault(self.table.document_rows(pair[1])[0], pair)
            self.pairs = list(best.values())
        self.pairs = self.pairs[: self.k]
        if len(self.pairs) == self.k:
            self.threshold = max(self.threshold, self.pairs[-1][0])

    def _best_rows(self, rows: Numbers, scores: Floats) -> tuple[Numbers, Floats]:
        """Of each document its best row, the first of equal ones."""
        assert self.table.document_starts is not None
        documents = np.searchsorted(self.table.document_starts, rows, side="right")
        order = np.lexsort((rows, -scores, documents))
        best = order[np.flatnonzero(np.diff(documents[order], prepend=-1))]
        return rows[best], scores[best]


def kth_best(scores: Floats, k: int) -> float:
    """A score that at least k of these reach, and not many more; -inf where there are fewer than k."""
    if len(scores) < k:
        return -np.inf
    groups = SAMPLE * k
    if len(scores) >= 2 * groups:  # the k-th best of group maxima is a lower bound, found without partitioning all scores
        scores = scores[: len(scores) // groups * groups].reshape(-1, groups).max(0)
    return float(np.partition(scores, len(scores) - k)[len(scores) - k])


def nearest_documents(
    table: RowTable, chunks: Sequence[RowChunk], directions: Floats, excluded: Sequence[range], k: int
) -> list[list[tuple[int, float]]]:
    """The k live documents with the row of highest cosine to each unit vector, a document excluded; (row, cosine), best first."""
    nearest: list[dict[int, tuple[float, int]]] = [{} for _ in excluded]  # document's first row → best cosine, its row
    rounding = np.float32(4 * ROUNDING * directions.shape[1])  # of a float32 cosine
    for chunk in chunks:
        products = chunk.products(directions, table.threads, unit)
        for direction, document_rows, scores, nearby in zip(directions, excluded, products, nearest, strict=True):
            scores[max(document_rows.start - chunk.first, 0) : max(document_rows.stop - chunk.first, 0)] = -np.inf
            kth = kth_best(chunk.best_of_documents(scores), k)
            # Those that may be among the k best, exactly: a product's last bits depend on what else is in it, and on the processor.
            others = chunk.first + np.flatnonzero((scores >= kth - 2 * rounding) & (scores > -np.inf))
            for pair in zip(_cosines(table, direction, others).tolist(), others.tolist(), strict=True):
                document = table.document_rows(pair[1]).start
                nearby[document] = max(nearby.get(document, pair), pair)
    return [[(row, cosine) for cosine, row in sorted(nearby.values(), key=lambda pair: -pair[0])[:k]] for nearby in nearest]


def _cosines(table: RowTable, direction: Floats, rows: Numbers) -> Floats:
    """Exact cosines of some rows with a unit vector: summed in float64, rounded to float32."""
    cosines = np.empty(len(rows), np.float32)
    for first in range(0, len(rows), EXACT_ROWS):
        some = slice(first, first + EXACT_ROWS)
        cosines[some] = (unit(table.vectors(rows[some]).astype(np.float64)) * direction.astype(np.float64)).sum(1)
    return cosines


def ranks_of_rows(table: RowTable, queries: Floats, targets: Sequence[Sequence[int]], words: Sequence[WordQuery | None]) -> list[Numbers]:
    """Exact ranks of some rows' documents for each query (B, D), from 1."""
    ranks: list[Numbers] = []
    size = max(1, SCORES // max(len(table), 1))
    for first in range(0, len(queries), size):
        scores, bounds = every_score(table, queries[first : first + size])
        for number, (approximate, bound) in enumerate(zip(scores, bounds, strict=True), first):
            query, rows, query_words = queries[number], targets[number], words[number]
            exact = [float(table.scores(query, table.document_rows(row), query_words).max()) for row in rows]
            ranks.append(1 + count_before(table, query, approximate, bound, exact, [table.docids[row] for row in rows], query_words))
    return ranks


def every_score(table: RowTable, queries: Floats) -> tuple[Floats, Floats]:
    """The approximate score of every row by rows alone (B, N), and for each query a bound on its error (B,)."""
    parts = [(scores, bounds) for _, scores, bounds in table.products(queries)]
    scores = parts[0][0] if len(parts) == 1 else np.concatenate([part for part, _ in parts], 1)
    return scores, np.max([bounds for _, bounds in parts], axis=0)


def count_before(
    table: RowTable,
    query: Floats,
    approximate: Floats,
    bound: np.float32,
    scores: Sequence[float],
    docids: Sequence[str],
    words: WordQuery | None,
) -> Numbers:
    """How many live documents score higher than each of some documents, or equal with an earlier docid.

    `approximate` (N,) is the score of every row by rows alone, off by at most `bound`; word scores are added to it.
    """
    error = float(bound)
    if words:
        words.add_to(approximate, 0)
        error += float(words.error)
    best = approximate if table.document_starts is None else np.maximum.reduceat(approximate, table.document_starts)
    counts = np.zeros(len(scores), np.int64)
    for position, (score, docid) in enumerate(zip(scores, docids, strict=True)):
        gap = best - np.float32(score)
        rows, firsts = _rows_of_documents(table, np.flatnonzero(np.abs(gap) <= error))  # those that are undecided
        exact = np.maximum.reduceat(table.scores(query, rows, words), firsts) if len(rows) else np.empty(0, np.float32)
        tied = rows[firsts[exact == score]]
        higher = np.count_nonzero(gap > error) + np.count_nonzero(exact > score)
        counts[position] = higher + sum(table.docids[row] < docid for row in tied.tolist())
    return counts


def _rows_of_documents(table: RowTable, documents: Numbers) -> tuple[Numbers, Numbers]:
    """The rows of some documents, given by their numbers in order, and where in that list each document begins."""
    if table.document_starts is None:
        return documents, np.arange(len(documents))
    ends = np.append(table.document_starts[1:], len(table))
    counts = ends[documents] - table.document_starts[documents]
    firsts = np.cumsum(counts) - counts
    return np.repeat(table.document_starts[documents] - firsts, counts) + np.arange(counts.sum()), firsts
