"""Rows: the learned vector of each document, or of each passage of a long one. Frozen blocks, and at most one block that learns.

Ties are broken by docid, ascending. Exact ranks are counted here, on any device and for thousands of queries at once; top-k search is
`engine/row_table.py`. Letters: B batch, D width, N rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from promptdsi.model.path import unit

CHUNK = 65_536  # rows scored at a time
QUERIES_AT_ONCE = 512  # queries scored at a time: memory is bounded at the product of the two
# Scores of a loss on a CPU at a time: 4 MiB stay in its cache; writing 100 MiB to new memory takes longer than the products.
CACHED_SCORES = 1 << 20


class OldRows(Protocol):
    """Rows that lie in other processes, before all that are here, and what learning new rows asks of them."""

    count: int

    def delete(self, docids: Sequence[str]) -> None: ...
    def log_sum_exp(self, vectors: Tensor, scale: float) -> Tensor: ...
    def norms(self, count: int) -> Tensor: ...
    def vectors(self, numbers: Tensor) -> Tensor: ...
    def closest(self, directions: Tensor, k: int, count: int, without: Tensor | None = None) -> Tensor: ...


class Rows(nn.Module):
    """All rows of an index in order of arrival; the rows of a document's passages are neighbours and have its docid.

    A document that was deleted and added again has rows in two places; the live ones count. With rows `elsewhere` only new ones are here,
    and they are counted from 0.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.ParameterList()  # (n, D) each; only the last may learn
        self.docids: list[str] = []
        self.starts: list[int] = []  # the first row of each document
        self.row_of: dict[str, int] = {}  # docid → first row
        self.deleted: set[int] = set()  # rows of deleted documents: masked wherever rows are scored
        self.elsewhere: OldRows | None = None
        self._order: Tensor | None = None
        self._merged: tuple[int, list[Tensor]] = (0, [])  # number of frozen blocks, and the pieces made of them

    def __len__(self) -> int:
        return len(self.docids)

    def grow(self, docids: Sequence[str], start: Tensor) -> None:
        """Freeze what is there and append a block that learns, from its starting vectors (n, D)."""
        if len(docids) != len(start) or start.shape[1:] != (self.width,):
            raise ValueError(f"{len(docids)} docids need ({len(docids)}, {self.width}) rows, got {tuple(start.shape)}")
        starts = [number for number, docid in enumerate(docids) if not number or docids[number - 1] != docid]
        arriving = {docids[number]: len(self.docids) + number for number in starts}
        live = {docid for docid in arriving.keys() & self.row_of.keys() if self.row_of[docid] not in self.deleted}
        present = [docid for docid in live if arriving[docid] not in self.deleted]
        twice = [docid for docid, count in Counter(docids[number] for number in starts).items() if count > 1]
        if present or twice:
            raise ValueError(f"docid {min(present + twice)!r} is there already")
        self.freeze()
        for docid in live:
            del arriving[docid]
        self.row_of.update(arriving)
        self.starts += [len(self.docids) + number for number in starts]
        self.docids.extend(docids)
        self.blocks.append(nn.Parameter(start))
        self._order = None

    def join(self) -> None:
        """All rows as one block that learns, for methods that train the whole model again."""
        rows = torch.cat([block.detach() for block in self.blocks])
        self.blocks = nn.ParameterList([nn.Parameter(rows)])
        self._merged = (0, [])

    def replace_last(self, rows: Tensor) -> None:
        """Put trained rows into the place of the newest block, which stood for them."""
        self.blocks[-1] = nn.Parameter(rows)
        self._merged = (0, [])

    def learn_last(self) -> None:
        """Let the newest block learn: it was added untrained."""
        self._merged = (0, [])
        self.blocks[-1].requires_grad_(True)

    def freeze(self) -> None:
        """No row learns: the optimizer does not see them, so it cannot decay them either."""
        self.blocks.requires_grad_(False)

    @property
    def learning(self) -> nn.Parameter | None:
        """The block that learns, if one does."""
        return self.blocks[-1] if len(self.blocks) and self.blocks[-1].requires_grad else None

    def numbers(self, docids: Sequence[str]) -> Tensor:
        """The first row of each docid: (n,)."""
        return torch.tensor([self.row_of[docid] for docid in docids], dtype=torch.long)

    @property
    def several(self) -> bool:
        """Whether some document has several rows."""
        return len(self.starts) < len(self.docids)

    def rows_of(self, docid: str) -> range:
        """All rows of a document."""
        first = self.row_of[docid]
        following = bisect_right(self.starts, first)
        return range(first, self.starts[following] if following < len(self.starts) else len(self.docids))

    def delete(self, docids: Sequence[str]) -> None:
        if self.elsewhere is not None:
            self.elsewhere.delete([docid for docid in docids if docid not in self.row_of])
            docids = [docid for docid in docids if docid in self.row_of]
        self.deleted |= {row for docid in docids for row in self.rows_of(docid)}

    @property
    def total(self) -> int:
        """How many rows there are, here and elsewhere."""
        return len(self) + (self.elsewhere.count if self.elsewhere is not None else 0)

    def _first(self, count: int) -> Iterator[tuple[int, Tensor]]:
        """The first rows in pieces of bounded size, with the number of each piece's first row."""
        first = 0
        for piece in (piece for block in self.blocks for piece in block.detach().split(CHUNK)):
            if first < count:
                yield first, piece[: count - first]
            first += len(piece)

    def norms(self, count: int) -> Tensor:
        """The norms of the first rows: (count,) in float64."""
        pieces = (part for _, piece in self._first(count) for part in piece.split(CHUNK // 8))
        return torch.cat([self.blocks[0].new_empty(0).double(), *(part.double().norm(dim=1) for part in pieces)])

    def vectors(self, numbers: Tensor) -> Tensor:
        """Rows by number, ascending: (n, D)."""
        ends = torch.tensor([len(block) for block in self.blocks]).cumsum(0)
        parts = torch.bucketize(numbers.cpu(), ends, right=True)
        return torch.cat([block.detach()[numbers[parts == part] - ends[part] + len(block)] for part, block in enumerate(self.blocks)])

    def closest(self, directions: Tensor, k: int, count: int, without: Tensor | None = None) -> Tensor:
        """The k highest cosines of each unit vector (n, D) with the first rows that are not zero, descending: (n, k) in float64.

        `without` is a row for each vector that is left out. Float64, because a rule that is fitted to them magnifies rounding: rows are
        chosen by float32 products, and the few chosen ones are multiplied again.
        """
        parts = []
        for number, part in enumerate(directions.split(QUERIES_AT_ONCE)):
            best = part.new_full((len(part), k), -torch.inf).double()
            for first, piece in self._first(count):
                cosines = part @ unit(piece).T  # (B, n)
                cosines[:, piece.norm(dim=1) == 0] = -torch.inf
                if without is not None:
                    excluded = without.split(QUERIES_AT_ONCE)[number] - first
                    inside = (excluded >= 0) & (excluded < len(piece))
                    cosines[inside, excluded[inside]] = -torch.inf
                chosen = cosines.topk(min(k, len(piece)), 1)
                exact = (unit(piece[chosen.indices].double()) * part.double()[:, None]).sum(2)  # (B, k)
                best = torch.cat([best, exact.where(chosen.values > -torch.inf, -torch.inf)], 1).topk(k, 1).values
            parts.append(best)
        return torch.cat(parts)

    def drop_last(self) -> None:
        """Take the newest block away again, as if it had never been added."""
        count = len(self.blocks[-1])
        removed, self.docids = self.docids[-count:], self.docids[:-count]
        missing = set(removed)
        for docid in missing:
            del self.row_of[docid]
        self.starts = [start for start in self.starts if start < len(self.docids)]
        self.row_of |= {self.docids[start]: start for start in self.starts if self.docids[start] in missing}  # earlier, deleted ones
        self.blocks = self.blocks[:-1]
        self._order = None

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """All rows in pieces of bounded size, with the number of each piece's first row. The learning block stands alone."""
        first = 0
        for piece in self._frozen_pieces():
            yield first, piece
            first += len(piece)
        if self.learning is not None:
            for start in range(0, len(self.learning), CHUNK):
                yield first + start, self.learning[start : start + CHUNK]

    def _frozen_pieces(self) -> list[Tensor]:
        """Frozen blocks split, and small consecutive ones merged once: a thousand small corpora are scored as fast as a large one."""
        frozen = [block for block in self.blocks if not block.requires_grad]
        if self._merged[0] != len(frozen) or any(
            piece.device != block.device for piece, block in zip(self._merged[1], frozen, strict=False)
        ):
            pieces: list[Tensor] = []
            for part in (part for block in frozen for part in block.detach().split(CHUNK)):
                if pieces and len(pieces[-1]) + len(part) <= CHUNK // 8:
                    pieces[-1] = torch.cat([pieces[-1], part])
                else:
                    pieces.append(part)
            self._merged = (len(frozen), pieces)
        return self._merged[1]

    def scores(self, vectors: Tensor) -> Tensor:
        """Inner products with every row, −inf for deleted ones: (B, D) → (B, N)."""
        return torch.cat([scored for _, scored in self._scored(vectors)], 1)

    @torch.no_grad()
    def ranks(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """Exact rank of each query's target row by counting, no sorting: (B,), from 1."""
        parts = zip(vectors.split(QUERIES_AT_ONCE), targets.split(QUERIES_AT_ONCE), strict=True)
        return torch.cat([self._ranks(queries, rows) for queries, rows in parts])

    def _ranks(self, vectors: Tensor, targets: Tensor) -> Tensor:
        order = self._docid_order().to(vectors.device)
        target_scores = self.target_scores(vectors, targets)
        ranks = torch.ones_like(targets)
        for first, scored in self._scored(vectors):
            ahead = order[first : first + scored.shape[1]] < order[targets][:, None]  # (B, n)
            ranks += ((scored > target_scores) | ((scored == target_scores) & ahead)).sum(1)
        return ranks

    @torch.no_grad()
    def target_scores(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """The score of each query's target row, (B, 1), to the last bit as in the product with all rows."""
        scores = vectors.new_full((len(vectors), 1), -torch.inf)
        for number in range(0, len(vectors), QUERIES_AT_ONCE):
            part, rows = vectors[number : number + QUERIES_AT_ONCE], targets[number : number + QUERIES_AT_ONCE]
            for first, scored in self._scored(part):
                inside = (rows >= first) & (rows < first + scored.shape[1])
                scores[number : number + len(part)][inside, 0] = scored[inside, rows[inside] - first]
        return scores

    @torch.no_grad()
    def count_above(self, vectors: Tensor, thresholds: Tensor) -> Tensor:
        """How many rows score above each query's threshold (B, 1), in bounded memory: (B,)."""
        counts = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
        parts = zip(vectors.split(QUERIES_AT_ONCE), thresholds.split(QUERIES_AT_ONCE), counts.split(QUERIES_AT_ONCE), strict=True)
        for queries, bounds, count in parts:
            for _, scored in self._scored(queries):
                count += (scored > bounds).sum(1)
        return counts

    def _scored(self, vectors: Tensor) -> Iterator[tuple[int, Tensor]]:
        deleted = self.deleted_rows(vectors.device)
        for first, piece in self.pieces():  # no smaller ones: a product of other sizes may round otherwise, and equal rows would not tie
            yield first, mask_deleted(vectors @ piece.T, first, deleted)  # (B, n)

    def deleted_rows(self, device: torch.device) -> Tensor:
        """The numbers of deleted rows, ascending."""
        return torch.tensor(sorted(self.deleted), dtype=torch.long, device=device)

    def _docid_order(self) -> Tensor:
        """Position of each row in the order of docids: (N,)."""
        if self._order is None:
            by_docid = sorted(range(len(self.docids)), key=self.docids.__getitem__)
            self._order = torch.empty(len(by_docid), dtype=torch.long)
            self._order[torch.tensor(by_docid, dtype=torch.long)] = torch.arange(len(by_docid))
        return self._order


def small_pieces(pieces: Iterable[tuple[int, Tensor]], queries: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces split further, so that a loss computes their scores for so many queries in a CPU's cache."""
    for first, piece in pieces:
        size = max(1, CACHED_SCORES // max(1, queries)) if piece.device.type == "cpu" else CHUNK
        yield from ((first + start, piece[start : start + size]) for start in range(0, len(piece), size))


def mask_deleted(scores: Tensor, first: int, deleted: Tensor) -> Tensor:
    """Scores (B, n) of the rows from number `first` on, with −inf for deleted ones; changed in place."""
    inside = deleted[(deleted >= first) & (deleted < first + scores.shape[1])]
    return scores.index_fill_(1, inside - first, -torch.inf) if len(inside) else scores
