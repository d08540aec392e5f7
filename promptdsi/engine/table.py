"""All rows of a generation, those of large corpora mapped from their files, and exact search in them.

Every search has two steps. A quick look gives each row a score and how far off it may be: from whole-number codes for a few
queries, where reading the rows takes the time; from a float32 product for many. Then the few rows that may be among the best
are scored in float64. So what is found does not depend on how many ask at once, and equal rows tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.codes import Codes, Scan
from promptdsi.engine.selection import Floats, unit

Numbers = NDArray[np.int64]
SMALL = 2_048  # rows: such blocks are joined
FEW = 4  # queries for which codes are quicker: they are a quarter of the bytes, and read once for each query
CODED_ROWS = 1 << 18  # looked at together at most: enough that Python's part is small, few enough that scores stay in the cache
PRODUCT_SCORES = 1 << 22  # the same for many queries: rows times queries
SAMPLE = 16  # parts for each row wanted, whose best say roughly where the bar is
TOGETHER = 256  # queries looked for at once
EXACT_ROWS = 8_192  # scored exactly at a time: where many tie, memory stays small
ROUNDING = 2.0**-23  # of a float32 product, for each number summed


class Block(NamedTuple):
    """Rows that lie together."""

    rows: Floats  # (n, D)
    codes: Codes

    def part(self, first: int, count: int) -> Block:
        here = slice(first, first + count)
        codes, scale, error, length = self.codes
        return Block(self.rows[here], Codes(codes[here], scale[here], error[here], length[here]))


class Piece(NamedTuple):
    """Rows that are looked at together."""

    first: int  # number of the first
    block: Block
    dead: Numbers  # places in the piece
    length: float  # the largest of `block.codes`
    error: float  # the same


class Top(NamedTuple):
    """The best rows of each query, best first, and their scores: (B, k) each."""

    rows: Numbers
    scores: Floats


class Table:
    """Rows by number, in the order of `docids`; `dead` ones are never found. Threads may share it; it never changes."""

    def __init__(self, blocks: Sequence[Block], docids: Sequence[str], dead: set[int], *, threads: int = 1) -> None:
        self.blocks, self.docids, self.dead, self.threads = blocks, docids, dead, threads
        self.firsts = np.cumsum([0, *(len(block.rows) for block in blocks)])
        self._dead = np.array(sorted(dead), np.int64)
        self._pieces_of: dict[int, list[Piece]] = {}

    def __len__(self) -> int:
        return len(self.docids)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each docid; of one that was replaced, the newest."""
        return {docid: row for row, docid in enumerate(self.docids)}

    def vectors(self, rows: Sequence[int] | Numbers) -> Floats:
        """Rows by number: (n, D)."""
        numbers = np.asarray(rows, np.int64)
        owners = np.searchsorted(self.firsts, numbers, side="right") - 1
        found = np.empty((len(numbers), self.blocks[0].rows.shape[1]), np.float32)
        for owner in np.unique(owners):
            here = owners == owner
            found[here] = self.blocks[owner].rows[numbers[here] - self.firsts[owner]]
        return found

    def scores(self, query: Floats, rows: Sequence[int]) -> Floats:
        """The exact scores of some rows."""
        return exact_scores(self.vectors(rows), np.arange(len(rows)), query)

    def top(self, queries: Floats, k: int) -> Top:
        """The k best living rows of each query, ties by docid."""
        k = min(k, len(self) - len(self.dead))
        parts = [self._top(queries[first : first + TOGETHER], k) for first in range(0, max(len(queries), 1), TOGETHER)]
        return Top(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _top(self, queries: Floats, k: int) -> Top:
        best = [Best(query, k, self.docids) for query in queries]
        if k:
            (self._scan if len(queries) <= FEW else self._multiply)(best, queries)
        found = [one.found() for one in best]
        rows, scores = np.array([own for own, _ in found], np.int64), np.array([own for _, own in found], np.float32)
        return Top(rows.reshape(len(best), k), scores.reshape(len(best), k))

    def ranks(self, query: Floats, targets: Sequence[int]) -> Numbers:
        """The exact ranks one query gives to some rows, from 1: how many living rows score higher, or the same with an earlier docid."""
        ranks = np.ones(len(targets), np.int64)
        own = self.scores(query, targets)
        for piece, near, slack in self._products(query[None]):
            for place, (score, target) in enumerate(zip(own, targets, strict=True)):
                gap = near[0] - score
                unsure = np.flatnonzero(np.abs(gap) <= slack[0])
                exact = exact_scores(piece.block.rows, unsure, query)
                ranks[place] += (gap > slack[0]).sum() + (exact > score).sum()
                equal = unsure[exact == score] + piece.first
                ranks[place] += sum(self.docids[row] < self.docids[target] for row in equal)
        return ranks

    def neighbours(self, rows: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """The k living rows nearest in direction to each of some rows, itself apart, with the cosine; nearest first."""
        own = unit(self.vectors(rows))
        found: list[list[tuple[int, float]]] = [[] for _ in rows]
        for first, block, dead, *_ in self._pieces(PRODUCT_SCORES // TOGETHER):
            close = own @ unit(block.rows).T  # (n, rows of the piece)
            close[:, dead] = -np.inf
            for place, row in enumerate(rows):
                if first <= row < first + len(block.rows):
                    close[place, row - first] = -np.inf
                best = np.argpartition(-close[place], min(k, len(block.rows) - 1))[:k]
                pairs = [(int(first + one), float(close[place, one])) for one in best if close[place, one] > -np.inf]
                found[place] = sorted(found[place] + pairs, key=lambda pair: -pair[1])[:k]
        return found

    def _scan(self, best: list[Best], queries: Floats) -> None:
        """Look at the codes of all rows."""
        scans = [Scan(query) for query in queries]
        for piece in self._pieces(CODED_ROWS):
            for one, scan in zip(best, scans, strict=True):
                near = scan.near(piece.block.codes, self.threads)
                near[piece.dead] = -np.inf
                one.take(piece, near, scan.slack(piece.length, piece.error), scan)

    def _multiply(self, best: list[Best], queries: Floats) -> None:
        """Look at float32 products with all rows."""
        for piece, near, slack in self._products(queries):
            for place, one in enumerate(best):
                one.take(piece, near[place], slack[place])

    def _products(self, queries: Floats) -> Iterator[tuple[Piece, Floats, Floats]]:
        """For each piece the scores of its rows (B, n), and how far off they may be at most (B,)."""
        lengths = np.linalg.norm(queries, axis=1).astype(np.float32)
        for piece in self._pieces(PRODUCT_SCORES >> (len(queries) - 1).bit_length()):
            near = queries @ piece.block.rows.T
            near[:, piece.dead] = -np.inf
            yield piece, near, lengths * np.float32(2 * ROUNDING * queries.shape[1] * (piece.length + piece.error))

    def _pieces(self, count: int) -> list[Piece]:
        """The rows in pieces of so many at most; made once."""
        if count not in self._pieces_of:
            found: list[Piece] = []
            for start, block in zip(self.firsts.tolist(), self.blocks, strict=False):
                for first in range(0, len(block.rows), count):
                    part = block.part(first, count)
                    low, high = np.searchsorted(self._dead, (start + first, start + first + len(part.rows)))
                    dead, worst = self._dead[low:high] - start - first, part.codes
                    found.append(Piece(start + first, part, dead, float(worst.length.max()), float(worst.error.max())))
            self._pieces_of[count] = found
        return self._pieces_of[count]


class Best:
    """The k best rows of one query so far."""

    def __init__(self, query: Floats, k: int, docids: Sequence[str]) -> None:
        self.query, self.k, self.docids = query, k, docids
        self.pairs: list[tuple[float, int]] = []  # best first
        self.bar = -np.inf  # what a row must reach to be among them

    def take(self, piece: Piece, near: Floats, slack: float | np.float32, scan: Scan | None = None) -> None:
        """Look at a piece of rows, whose scores are off by `slack` at most; `scan` knows it for each row. Only those that may be
        among the best are scored exactly."""
        if self.bar == -np.inf:
            self.bar = kth_best(near, self.k) - float(slack)  # k rows reach it for certain
        may = np.flatnonzero(near >= self.bar - slack) if self.bar > -np.inf else np.flatnonzero(near > -np.inf)
        if not len(may):
            return
        rows, codes = piece.block.rows, piece.block.codes
        if len(may) > 2 * self.k:  # the likely ones first: then the bar is exact, and few others reach it
            likely = may[np.argpartition(near[may], len(may) - self.k)[len(may) - self.k :]]
            self.bar = max(self.bar, float(exact_scores(rows, likely, self.query).min()))
        if scan is not None:
            slack = scan.slack(codes.length[may], codes.error[may])
        may = may[near[may] >= self.bar - slack]
        self.keep(zip(exact_scores(rows, may, self.query).tolist(), (may + piece.first).tolist(), strict=True))

    def keep(self, found: Iterable[tuple[float, int]]) -> None:
        """Keep the best of these and those before."""
        self.pairs = sorted([*self.pairs, *found], key=lambda pair: (-pair[0], self.docids[pair[1]]))[: self.k]
        if len(self.pairs) == self.k:
            self.bar = max(self.bar, self.pairs[-1][0])

    def found(self) -> tuple[list[int], list[float]]:
        return [row for _, row in self.pairs], [score for score, _ in self.pairs]


def kth_best(near: Floats, k: int) -> float:
    """A score that k of these reach, and not many more; -inf where there are fewer. Quicker than sorting: parts stand for their best."""
    if len(near) < k:
        return -np.inf
    parts = SAMPLE * k
    if len(near) >= 2 * parts:
        near = near[: len(near) // parts * parts].reshape(-1, parts).max(0)
    return float(np.partition(near, len(near) - k)[len(near) - k])


def exact_scores(rows: Floats, chosen: Numbers, query: Floats) -> Floats:
    """Scores to the last bit of float32, whatever stands beside a row: summed in float64, then rounded."""
    exact = query.astype(np.float64)
    found = np.empty(len(chosen), np.float32)
    for first in range(0, len(chosen), EXACT_ROWS):
        part = rows[chosen[first : first + EXACT_ROWS]].astype(np.float64)
        found[first : first + EXACT_ROWS] = (part * exact).sum(1)  # a product would sum equal rows in different orders
    return found


def joined(blocks: Sequence[Block]) -> list[Block]:
    """The same rows with small neighbours made one, in memory: a thousand small corpora are searched as quickly as a large one, and
    hold no file open."""
    found: list[Block] = []
    small: list[Block] = []
    for block in [*blocks, None]:
        if block is not None and len(block.rows) < SMALL:
            small.append(block)
            continue
        if small:
            codes = Codes(*(np.concatenate(part) for part in zip(*(one.codes for one in small), strict=True)))
            found.append(Block(np.concatenate([one.rows for one in small]), codes))
            small = []
        if block is not None:
            found.append(block)
    return found
