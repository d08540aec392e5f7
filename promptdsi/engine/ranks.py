"""Exact ranks of documents without sorting: how many others score higher, from approximate scores whose error is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from promptdsi.engine.top_k import Numbers
from promptdsi.engine.words import WordQuery
from promptdsi.model.path import Floats

if TYPE_CHECKING:
    from promptdsi.engine.row_table import RowTable

SCORES = 1 << 22  # held at a time: the rows are read once for as many queries as that allows


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
