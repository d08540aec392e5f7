"""All rows of a generation, those of large corpora mapped from their files, and exact search in them.

Every search has two steps. A quick look gives each row a score and how far off it may be: from whole-number codes for a few
queries, where reading the rows takes the time; from a float32 product for many. Then the few rows that may be among the best
are scored in float64. So what is found does not depend on how many ask at once, and equal rows tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.codes import Codes, Scan
from promptdsi.engine.selection import Floats, unit

Numbers = NDArray[np.int64]
SMALL = 2_048  # rows: such blocks are joined
FEW = 4  # queries for which codes are quicker: they are a quarter of the bytes, and read once for each query
CODED_ROWS, PRODUCT_ROWS = 65_536, 16_384  # rows looked at together: what is computed of them stays in the cache
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


class Look(NamedTuple):
    """A quick look at a piece of rows. For each query: scores of the rows (n,), and how far off they may be, one by one or at most."""

    first: int
    near: Sequence[Floats] | Floats
    slack: Sequence[Floats] | Floats
    block: Block


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
        for first, near, slack, block in self._looked(queries) if k else ():
            for place, one in enumerate(best):
                one.take(first, near[place], slack[place], block.rows)
        found = [one.found() for one in best]
        rows, scores = np.array([own for own, _ in found], np.int64), np.array([own for _, own in found], np.float32)
        return Top(rows.reshape(len(best), k), scores.reshape(len(best), k))

    def ranks(self, query: Floats, targets: Sequence[int]) -> Numbers:
        """The exact ranks one query gives to some rows, from 1: how many living rows score higher, or the same with an earlier docid."""
        ranks = np.ones(len(targets), np.int64)
        own = self.scores(query, targets)
        for first, near, slack, block in self._products(query[None]):
            for place, (score, target) in enumerate(zip(own, targets, strict=True)):
                gap = near[0] - score
                unsure = np.flatnonzero(np.abs(gap) <= slack[0])
                exact = exact_scores(block.rows, unsure, query)
                ranks[place] += (gap > slack[0]).sum() + (exact > score).sum()
                equal = unsure[exact == score] + first
                ranks[place] += sum(self.docids[row] < self.docids[target] for row in equal)
        return ranks

    def neighbours(self, rows: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """The k living rows nearest in direction to each of some rows, itself apart, with the cosine; nearest first."""
        own = unit(self.vectors(rows))
        found: list[list[tuple[int, float]]] = [[] for _ in rows]
        for first, block, dead in self._pieces(PRODUCT_ROWS):
            close = own @ unit(block.rows).T  # (n, rows of the piece)
            close[:, dead] = -np.inf
            for place, row in enumerate(rows):
                if first <= row < first + len(block.rows):
                    close[place, row - first] = -np.inf
                best = np.argpartition(-close[place], min(k, len(block.rows) - 1))[:k]
                pairs = [(int(first + one), float(close[place, one])) for one in best if close[place, one] > -np.inf]
                found[place] = sorted(found[place] + pairs, key=lambda pair: -pair[1])[:k]
        return found

    def _looked(self, queries: Floats) -> Iterator[Look]:
        """A quick look at all rows, piece by piece."""
        return self._scans(queries) if len(queries) <= FEW else self._products(queries)

    def _scans(self, queries: Floats) -> Iterator[Look]:
        scans = [Scan(query) for query in queries]
        for first, block, dead in self._pieces(CODED_ROWS):
            found = [scan.near(block.codes, self.threads) for scan in scans]
            for near, _ in found:
                near[dead] = -np.inf
            yield Look(first, [near for near, _ in found], [slack for _, slack in found], block)

    def _products(self, queries: Floats) -> Iterator[Look]:
        lengths = np.linalg.norm(queries, axis=1).astype(np.float32)
        for first, block, dead in self._pieces(PRODUCT_ROWS):
            near = queries @ block.rows.T  # (B, n)
            near[:, dead] = -np.inf
            longest = float((block.codes.length + block.codes.error).max())
            yield Look(first, near, lengths * np.float32(2 * ROUNDING * queries.shape[1] * longest), block)

    def _pieces(self, count: int) -> Iterator[tuple[int, Block, Numbers]]:
        """The rows in pieces: the number of the first, the piece, and which of it are dead."""
        for start, block in zip(self.firsts.tolist(), self.blocks, strict=False):
            for first in range(0, len(block.rows), count):
                piece = block.part(first, count)
                low, high = np.searchsorted(self._dead, (start + first, start + first + len(piece.rows)))
                yield start + first, piece, self._dead[low:high] - start - first


class Best:
    """The k best rows of one query so far."""

    def __init__(self, query: Floats, k: int, docids: Sequence[str]) -> None:
        self.query, self.k, self.docids = query, k, docids
        self.pairs: list[tuple[float, int]] = []  # best first
        self.bar = -np.inf  # what a row must reach to be among them

    def take(self, first: int, near: Floats, slack: Floats | np.float32, rows: Floats) -> None:
        """Look at a piece of rows; only those that may be among the best are scored exactly."""
        if self.bar == -np.inf and len(near) > self.k:
            least = near - slack
            self.bar = float(np.partition(least, len(least) - self.k)[len(least) - self.k])  # k rows reach it for certain
        may = np.flatnonzero(near >= self.bar - slack) if self.bar > -np.inf else np.flatnonzero(near > -np.inf)
        if not len(may):
            return
        found = zip(exact_scores(rows, may, self.query).tolist(), (may + first).tolist(), strict=True)
        self.pairs = sorted([*self.pairs, *found], key=lambda pair: (-pair[0], self.docids[pair[1]]))[: self.k]
        if len(self.pairs) == self.k:
            self.bar = max(self.bar, self.pairs[-1][0])

    def found(self) -> tuple[list[int], list[float]]:
        return [row for _, row in self.pairs], [score for score, _ in self.pairs]


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
