"""All rows of a generation, those of large corpora mapped from their files, and exact search in them.

Every search has two steps. A quick look gives each row a score and how far off it may be: from whole-number codes for a few
queries, where reading the rows takes the time; from a float32 product for many. Then the few rows that may be among the best
are scored in float64. So what is found does not depend on how many ask at once, and equal rows tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.codes import Codes, Scan
from promptdsi.engine.selection import Floats, unit
from promptdsi.engine.threads import one_thread_each, share

Numbers = NDArray[np.int64]
SMALL = 2_048  # rows: such blocks are joined
FEW = 8  # queries for which codes are quicker: they are a quarter of the bytes, but read once for each query
CODED_ROWS = 1 << 18  # looked at together at most: enough that Python's part is small, few enough that scores stay in the cache
CODED_BYTES = 8 << 20  # for fewer a second thread takes longer to wake than it saves
PRODUCT_SCORES = 1 << 22  # rows times queries looked at together, for many queries: at least a panel for `TOGETHER`
MANY = 64  # rows that may be among the best and are scored at once: quicker than to look twice
WORTH_A_THREAD = 1 << 25  # multiplications: for fewer a second thread takes longer to wake than it saves
SAMPLE = 16  # parts for each row wanted, whose best say roughly where the bar is
TOGETHER = 256  # queries looked for at once
EXACT_ROWS = 8_192  # scored exactly at a time: where many tie, memory stays small
ROUNDING = 2.0**-23  # of a float32 product, for each number summed


class Block(NamedTuple):
    """Rows that lie together."""

    rows: Floats  # (n, D)
    codes: Codes

    def panels(self) -> Iterator[Block]:
        first = 0
        for codes in self.codes.split():
            yield Block(self.rows[first : first + len(codes.shift)], codes)
            first += len(codes.shift)


class Piece(NamedTuple):
    """Panels that follow each other, and are looked at together."""

    first: int  # number of the first row
    panels: Sequence[Block]
    starts: Sequence[int]  # each panel's first place in the piece
    deleted: Numbers  # places in the piece
    length: Floats  # of each row's codes (n,)
    error: Floats
    longest: float  # the largest of them
    worst: float

    @classmethod
    def of(cls, first: int, panels: Sequence[Block], deleted: Numbers) -> Piece:
        length, error = (_one([getattr(panel.codes, name) for panel in panels]) for name in ("length", "error"))
        starts = [0, *accumulate(len(panel.rows) for panel in panels[:-1])]
        low, high = np.searchsorted(deleted, (first, first + len(length)))
        return cls(first, panels, starts, deleted[low:high] - first, length, error, float(length.max()), float(error.max()))

    def near(self, scan: Scan, threads: int) -> Floats:
        """The score of each row (n,) by its codes."""
        scores = np.empty(len(self.length), np.float32)
        threads = min(threads, len(self.panels), 1 + sum(panel.codes.panels.nbytes for panel in self.panels) // CODED_BYTES)

        def look(here: slice) -> None:
            for panel, start in zip(self.panels[here], self.starts[here], strict=True):
                scan.near(panel.codes, scores[start : start + len(panel.rows)])

        share(len(self.panels), 1, look, threads=threads)
        return self._living(scores)

    def products(self, queries: Floats, threads: int, of: Callable[[Floats], Floats] = np.asarray) -> Floats:
        """The product of each query (B, D) with each row, or with what `of` makes of rows: (B, n)."""
        count = len(self.length)
        scores = np.empty((len(queries), count), np.float32)
        threads = min(threads, 1 + queries.size * count // WORTH_A_THREAD)

        def multiply(here: slice) -> None:
            for panel, start in zip(self.panels, self.starts, strict=True):
                low, high = max(here.start, start), min(here.stop, start + len(panel.rows))
                if low < high:
                    np.matmul(queries, of(panel.rows[low - start : high - start]).T, out=scores[:, low:high])

        with one_thread_each():
            share(count, -(-count // threads), multiply, threads=threads)
        return self._living(scores)

    def _living(self, scores: Floats) -> Floats:
        """Dead rows get a score that is never the best."""
        scores[..., self.deleted] = -np.inf
        return scores


class Top(NamedTuple):
    """The best rows of each query, best first, and their scores: (B, k) each."""

    rows: Numbers
    scores: Floats


class Table:
    """Rows by number, in the order of `docids`; `dead` ones are never found. Threads may share it; it never changes."""

    def __init__(self, blocks: Sequence[Block], docids: Sequence[str], deleted: set[int], *, threads: int = 1) -> None:
        self.blocks, self.docids, self.deleted, self.threads = blocks, docids, deleted, threads
        self.firsts = np.cumsum([0, *(len(block.rows) for block in blocks)])
        self._dead = np.array(sorted(deleted), np.int64)
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
        if len(self.blocks) == 1:
            return self.blocks[0].rows[numbers]
        owners = np.searchsorted(self.firsts, numbers, side="right") - 1
        found = np.empty((len(numbers), self.blocks[0].rows.shape[1]), np.float32)
        for owner in np.flatnonzero(np.bincount(owners)).tolist():
            here = owners == owner
            found[here] = self.blocks[owner].rows[numbers[here] - self.firsts[owner]]
        return found

    def scores(self, query: Floats, rows: Sequence[int] | Numbers) -> Floats:
        """Scores of some rows to the last bit of float32, whatever stands beside a row: summed in float64, then rounded."""
        numbers, exact = np.asarray(rows, np.int64), query.astype(np.float64)
        found = np.empty(len(numbers), np.float32)
        for first in range(0, len(numbers), EXACT_ROWS):
            part = self.vectors(numbers[first : first + EXACT_ROWS]).astype(np.float64)
            found[first : first + EXACT_ROWS] = (part * exact).sum(1)  # a product would sum equal rows in different orders
        return found

    def top(self, queries: Floats, k: int) -> Top:
        """The k best living rows of each query, ties by docid."""
        k = min(k, len(self) - len(self.deleted))
        parts = [self._top(queries[first : first + TOGETHER], k) for first in range(0, max(len(queries), 1), TOGETHER)]
        return Top(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _top(self, queries: Floats, k: int) -> Top:
        best = [Best(self, query, k) for query in queries]
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
                unsure = np.flatnonzero(np.abs(gap) <= slack[0]) + piece.first
                exact = self.scores(query, unsure)
                ranks[place] += (gap > slack[0]).sum() + (exact > score).sum()
                ranks[place] += sum(self.docids[row] < self.docids[target] for row in unsure[exact == score])
        return ranks

    def neighbours(self, rows: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """The k living rows nearest in direction to each of some rows, itself apart, with the cosine; nearest first."""
        own = unit(self.vectors(rows))
        found: list[list[tuple[int, float]]] = [[] for _ in rows]
        for piece in self._pieces(PRODUCT_SCORES // TOGETHER):
            close = piece.products(own, self.threads, of=unit)
            for place, row in enumerate(rows):
                if piece.first <= row < piece.first + len(piece.length):
                    close[place, row - piece.first] = -np.inf
                best = np.argpartition(-close[place], min(k, len(piece.length) - 1))[:k]
                pairs = [(int(piece.first + one), float(close[place, one])) for one in best if close[place, one] > -np.inf]
                found[place] = sorted(found[place] + pairs, key=lambda pair: -pair[1])[:k]
        return found

    def _scan(self, best: list[Best], queries: Floats) -> None:
        """Look at the codes of all rows."""
        scans = [Scan(query) for query in queries]
        for piece in self._pieces(CODED_ROWS):
            for one, scan in zip(best, scans, strict=True):
                one.take(piece, piece.near(scan, self.threads), scan.slack(piece.longest, piece.worst), scan)

    def _multiply(self, best: list[Best], queries: Floats) -> None:
        """Look at float32 products with all rows."""
        for piece, near, slack in self._products(queries):
            for place, one in enumerate(best):
                one.take(piece, near[place], slack[place])

    def _products(self, queries: Floats) -> Iterator[tuple[Piece, Floats, Floats]]:
        """For each piece the scores of its rows (B, n), and how far off they may be at most (B,)."""
        lengths = np.linalg.norm(queries, axis=1).astype(np.float32)
        for piece in self._pieces(PRODUCT_SCORES >> (len(queries) - 1).bit_length()):
            yield (
                piece,
                piece.products(queries, self.threads),
                lengths * np.float32(2 * ROUNDING * queries.shape[1] * (piece.longest + piece.worst)),
            )

    def _pieces(self, count: int) -> list[Piece]:
        """The rows in pieces of so many at most, but whole panels. Made once."""
        if count not in self._pieces_of:
            groups: list[list[Block]] = []
            size = count
            for panel in (panel for block in self.blocks for panel in block.panels()):
                if size + len(panel.rows) > count:
                    groups.append([])
                    size = 0
                groups[-1].append(panel)
                size += len(panel.rows)
            starts = accumulate((sum(len(panel.rows) for panel in group) for group in groups), initial=0)
            self._pieces_of[count] = [Piece.of(start, group, self._dead) for start, group in zip(starts, groups, strict=False)]
        return self._pieces_of[count]


class Best:
    """The k best rows of one query so far."""

    def __init__(self, table: Table, query: Floats, k: int) -> None:
        self.table, self.query, self.k = table, query, k
        self.pairs: list[tuple[float, int]] = []  # best first
        self.bar = -np.inf  # what a row must reach to be among them

    def take(self, piece: Piece, near: Floats, slack: float | np.float32, scan: Scan | None = None) -> None:
        """Look at a piece of rows, whose scores are off by `slack` at most; `scan` knows it for each row. Only those that may be
        among the best are scored exactly."""
        if self.bar == -np.inf:
            self.bar = kth_best(near, self.k) - float(slack)  # k rows reach it for certain
        may = np.flatnonzero(near >= self.bar - slack) if self.bar > -np.inf else np.flatnonzero(near > -np.inf)
        likely, others = may, may[:0]
        if (many := max(2 * self.k, MANY)) < len(may):  # the likely ones first: then the bar is exact, and few others reach it
            order = np.argpartition(near[may], len(may) - many)
            likely, others = may[order[-many:]], may[order[:-many]]
        self._score(likely + piece.first)
        others = others[near[others] >= self.bar - slack]
        if len(others):
            length, error = piece.length[others], piece.error[others]
            own = slack * ((length + error) / (piece.longest + piece.worst)) if scan is None else scan.slack(length, error)
            self._score(others[near[others] >= self.bar - own] + piece.first)

    def _score(self, rows: Numbers) -> None:
        """Score rows exactly, and keep the best."""
        if not len(rows):
            return
        scores = self.table.scores(self.query, rows)
        least = np.partition(scores, len(scores) - self.k)[len(scores) - self.k] if len(scores) > self.k else -np.inf
        good = scores >= max(least, self.bar)
        found = zip(scores[good].tolist(), rows[good].tolist(), strict=True)
        self.pairs = sorted([*self.pairs, *found], key=lambda pair: (-pair[0], self.table.docids[pair[1]]))[: self.k]
        if len(self.pairs) == self.k:
            self.bar = max(self.bar, self.pairs[-1][0])

    def found(self) -> tuple[list[int], list[float]]:
        return [row for _, row in self.pairs], [score for score, _ in self.pairs]


def _one(parts: Sequence[Floats]) -> Floats:
    """Parts as one array; a single one stays where it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def kth_best(near: Floats, k: int) -> float:
    """A score that k of these reach, and not many more; -inf where there are fewer. Quicker than sorting: parts stand for their best."""
    if len(near) < k:
        return -np.inf
    parts = SAMPLE * k
    if len(near) >= 2 * parts:
        near = near[: len(near) // parts * parts].reshape(-1, parts).max(0)
    return float(np.partition(near, len(near) - k)[len(near) - k])


def joined(blocks: Sequence[Block]) -> list[Block]:
    """The same rows with small neighbours made one, in memory: a thousand small corpora are searched as quickly as a large one, and
    hold no file open."""
    found: list[Block] = []
    small: list[Block] = []
    for block in [*(block for block in blocks if len(block.rows)), None]:
        if block is not None and len(block.rows) < SMALL:
            small.append(block)
            continue
        if small:
            found.append(Block(np.concatenate([one.rows for one in small]), Codes.joined([one.codes for one in small])))
            small = []
        if block is not None:
            found.append(block)
    return found or list(blocks[:1])
