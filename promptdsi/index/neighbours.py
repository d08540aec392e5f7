"""The documents whose rows point most nearly in the same direction: what an index takes for alike."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.index.snapshot import Snapshot
from promptdsi.model.prompts.strategy import unit

NEIGHBOURS = 5


class Neighbour(NamedTuple):
    """A document near another, by the cosine of their rows."""

    docid: str
    title: str
    similarity: float
    corpus: str


@torch.no_grad()
def neighbours(snapshot: Snapshot, rows: list[int], k: int = NEIGHBOURS) -> list[list[Neighbour]]:
    """The k nearest living documents of each row, itself apart; nearest first."""
    table = snapshot.method.model_.rows
    own = unit(torch.stack([vector_of(snapshot, row) for row in rows]))  # (n, D)
    itself = torch.tensor(rows, device=own.device)
    dead = torch.tensor(sorted(table.dead), dtype=torch.long, device=own.device)
    best = own.new_full((len(rows), 0), -torch.inf)
    numbers = torch.empty(len(rows), 0, dtype=torch.long, device=own.device)
    for first, piece in table.pieces():
        close = own @ unit(piece).T  # (n, rows of the piece)
        close.index_fill_(1, dead[(dead >= first) & (dead < first + len(piece))] - first, -torch.inf)
        here = (itself >= first) & (itself < first + len(piece))
        close[here, itself[here] - first] = -torch.inf
        found = close.topk(min(k, len(piece)))
        best, numbers = torch.cat([best, found.values], 1), torch.cat([numbers, found.indices + first], 1)
        kept = best.topk(min(k, best.shape[1]))
        best, numbers = kept.values, numbers.gather(1, kept.indices)
    pairs = zip(numbers.tolist(), best.tolist(), strict=True)
    return [[_neighbour(snapshot, row, value) for row, value in zip(*one, strict=True) if value > -2] for one in pairs]


def _neighbour(snapshot: Snapshot, row: int, similarity: float) -> Neighbour:
    document = snapshot.document(row)
    docid = snapshot.method.model_.rows.docids[row]
    return Neighbour(docid, document.title if document else "", similarity, snapshot.place(row).entry.name)


def vector_of(snapshot: Snapshot, row: int) -> Tensor:
    """A row's vector (D,)."""
    place = snapshot.place(row)
    block: Tensor = snapshot.method.model_.rows.blocks[place.number]
    return block[place.place]
