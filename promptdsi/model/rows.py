"""Rows: the learned vector of each document. Frozen blocks, and at most one block that learns, in its own tensor.

Ties are broken by docid, ascending, in every place that ranks. Letters: B batch, D width, N rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

CHUNK = 65_536  # rows scored at a time
QUERIES_AT_ONCE = 512  # queries scored at a time: memory is bounded at the product of the two


class Top(NamedTuple):
    """The best rows of each query, best first: row numbers and scores, both (B, k)."""

    rows: Tensor
    scores: Tensor


class Rows(nn.Module):
    """All rows of an index in order of arrival. A docid that was deleted and added again has two; the living one counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.ParameterList()  # (n, D) each; only the last may learn
        self.docids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.deleted: set[int] = set()  # rows of deleted documents: masked wherever rows are scored
        self._order: Tensor | None = None
        self._joined: tuple[int, list[Tensor]] = (0, [])  # number of blocks, and their pieces

    def __len__(self) -> int:
        return len(self.docids)

    def grow(self, docids: Sequence[str], start: Tensor) -> None:
        """Freeze what is there and append a block that learns, from its starting vectors (n, D)."""
        if len(docids) != len(start) or start.shape[1:] != (self.width,):
            raise ValueError(f"{len(docids)} docids need ({len(docids)}, {self.width}) rows, got {tuple(start.shape)}")
        arriving = dict(zip(docids, range(len(self.docids), len(self.docids) + len(docids)), strict=True))
        live = {docid for docid in arriving.keys() & self.row_of.keys() if self.row_of[docid] not in self.deleted}
        present = [docid for docid in live if arriving[docid] not in self.deleted]
        twice = [docid for docid, count in Counter(docids).items() if count > 1] if len(arriving) < len(docids) else []
        if present or twice:
            raise ValueError(f"docid {min(present + twice)!r} is there already")
        self.freeze()
        for docid in live:
            del arriving[docid]
        self.row_of.update(arriving)
        self.docids.extend(docids)
        self.blocks.append(nn.Parameter(start))
        self._order = None

    def join(self) -> None:
        """All rows as one block that learns, for methods that train the whole model again."""
        whole = torch.cat([block.detach() for block in self.blocks])
        self.blocks = nn.ParameterList([nn.Parameter(whole)])
        self._joined = (0, [])

    def learn_last(self) -> None:
        """Let the newest block learn again: it was added untrained."""
        self._joined = (0, [])
        self.blocks[-1].requires_grad_(True)

    def freeze(self) -> None:
        """No row learns: the optimiser does not see them, so it cannot decay them either."""
        self.blocks.requires_grad_(False)

    @property
    def learning(self) -> nn.Parameter | None:
        """The block that learns, if one does."""
        return self.blocks[-1] if len(self.blocks) and self.blocks[-1].requires_grad else None

    @property
    def frozen(self) -> list[Tensor]:
        return [block for block in self.blocks if not block.requires_grad]

    def numbers(self, docids: Sequence[str]) -> Tensor:
        """Row numbers of docids: (n,)."""
        return torch.tensor([self.row_of[docid] for docid in docids], dtype=torch.long)

    def delete(self, docids: Sequence[str]) -> None:
        self.deleted |= {self.row_of[docid] for docid in docids}

    def drop_last(self) -> None:
        """Take the newest block away again, as if it had never been added."""
        count = len(self.blocks[-1])
        removed, self.docids = self.docids[-count:], self.docids[:-count]
        for docid in removed:
            del self.row_of[docid]
        gone = set(removed)
        self.row_of |= {docid: number for number, docid in enumerate(self.docids) if docid in gone}
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
        """Frozen blocks cut, and small neighbours joined once: a thousand small corpora are scored as fast as a large one."""
        frozen = self.frozen
        if self._joined[0] != len(frozen) or any(
            piece.device != block.device for piece, block in zip(self._joined[1], frozen, strict=False)
        ):
            pieces: list[Tensor] = []
            for block in (part for whole in frozen for part in whole.detach().split(CHUNK)):
                if pieces and len(pieces[-1]) + len(block) <= CHUNK // 8:
                    pieces[-1] = torch.cat([pieces[-1], block])
                else:
                    pieces.append(block)
            self._joined = (len(frozen), pieces)
        return self._joined[1]

    def scores(self, vectors: Tensor) -> Tensor:
        """Inner products with every row, −inf for deleted ones: (B, D) → (B, N)."""
        return torch.cat([scored for _, scored in self._scored(vectors)], 1)

    @torch.no_grad()
    def top(self, vectors: Tensor, k: int) -> Top:
        """The k best living rows of each query, ties by docid."""
        k = min(k, len(self) - len(self.deleted))
        found = [self._top(part, k) for part in vectors.split(QUERIES_AT_ONCE)]
        return Top(torch.cat([one.rows for one in found]), torch.cat([one.scores for one in found]))

    def _top(self, vectors: Tensor, k: int) -> Top:
        rows = torch.empty(len(vectors), 0, dtype=torch.long, device=vectors.device)
        scores = vectors.new_empty(len(vectors), 0)
        for first, scored in self._scored(vectors):
            numbers = torch.arange(first, first + scored.shape[1], device=vectors.device)
            found = best(scored, numbers, k, self._docid_order)  # (B, ≤ k) places in the piece
            rows = torch.cat([rows, found + first], 1)
            scores = torch.cat([scores, scored.gather(1, found)], 1)
            keep = best(scores, rows, k, self._docid_order)
            rows, scores = rows.gather(1, keep), scores.gather(1, keep)
        return Top(rows, scores)

    @torch.no_grad()
    def ranks(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """Exact rank of each query's target row by counting, no sorting: (B,), from 1."""
        parts = zip(vectors.split(QUERIES_AT_ONCE), targets.split(QUERIES_AT_ONCE), strict=True)
        return torch.cat([self._ranks(part, own) for part, own in parts])

    def _ranks(self, vectors: Tensor, targets: Tensor) -> Tensor:
        order = self._docid_order().to(vectors.device)
        own = vectors.new_full((len(vectors),), -torch.inf)
        # Two sweeps over equal pieces: the target's score comes from the very product it is compared in, to the last bit.
        for first, scored in self._scored(vectors):
            here = (targets >= first) & (targets < first + scored.shape[1])
            own[here] = scored[here, targets[here] - first]
        ranks = torch.ones_like(targets)
        for first, scored in self._scored(vectors):
            ahead = order[first : first + scored.shape[1]] < order[targets][:, None]  # (B, n)
            ranks += ((scored > own[:, None]) | ((scored == own[:, None]) & ahead)).sum(1)
        return ranks

    def _scored(self, vectors: Tensor) -> Iterator[tuple[int, Tensor]]:
        deleted = torch.tensor(sorted(self.deleted), dtype=torch.long, device=vectors.device)
        for first, piece in self.pieces():
            scored = vectors @ piece.T  # (B, n)
            here = deleted[(deleted >= first) & (deleted < first + len(piece))]
            yield first, scored.index_fill(1, here - first, -torch.inf) if len(here) else scored

    def _docid_order(self) -> Tensor:
        """Place of each row in the order of docids: (N,)."""
        if self._order is None:
            by_docid = sorted(range(len(self.docids)), key=self.docids.__getitem__)
            self._order = torch.empty(len(by_docid), dtype=torch.long)
            self._order[torch.tensor(by_docid, dtype=torch.long)] = torch.arange(len(by_docid))
        return self._order


def best(scores: Tensor, rows: Tensor, k: int, docid_order: Callable[[], Tensor]) -> Tensor:
    """Columns of the k highest scores, best first, equal scores by docid: (B, N) → (B, ≤ k).

    `rows` ((N,) or (B, N)) says which row each column is. The order of docids is asked for only where scores are equal: for
    a large index it takes longer to make than the search itself.
    """
    k = min(k, scores.shape[1])
    if k == 0:
        return scores.new_empty(len(scores), 0, dtype=torch.long)
    top = scores.topk(min(k + 1, scores.shape[1]))
    equal = (top.values[:, 1:] == top.values[:, :-1]) & top.values[:, 1:].isfinite()  # deleted rows need no order
    if not bool(equal.any()):
        return top.indices[:, :k]
    wanted = int((scores >= top.values[:, k - 1 : k]).sum(1).max())  # more than k where a tie crosses the border
    places = scores.topk(wanted).indices  # (B, wanted)
    order = docid_order().to(scores.device)[rows].expand_as(scores).gather(1, places)
    places = places.gather(1, order.argsort(1))
    by_score = torch.argsort(scores.gather(1, places), dim=1, descending=True, stable=True)
    return places.gather(1, by_score)[:, :k]
