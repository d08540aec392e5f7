"""Stand-ins for old queries, made from old rows alone: points between a new row and its nearest old rows, labelled old.

They tell new rows to keep away from where old queries live, without any old document or query. λ near 1 lies at the old row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.model.arrays import unit
from promptdsi.model.rows import QUERIES_AT_ONCE, Rows


class StandIns(NamedTuple):
    """Where stand-ins are drawn from: for each new row its nearest old rows (n, neighbours), by number."""

    neighbours: Tensor
    lowest: float
    highest: float

    def draw(self, rows: Rows, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` unit vectors (count, D) and the old rows they stand for (count,)."""
        new = rows.blocks[-1].detach()
        which = torch.randint(len(self.neighbours), (count,), generator=generator)
        rank = torch.randint(self.neighbours.shape[1], (count,), generator=generator)
        share = self.lowest + (self.highest - self.lowest) * torch.rand(count, 1, generator=generator)
        old_numbers = self.neighbours[which, rank]  # (count,)
        old = take(rows, old_numbers)
        points = share.to(new) * old + (1 - share.to(new)) * new[which]  # (count, D)
        return unit(points), old_numbers


def find_stand_ins(rows: Rows, *, neighbours: int = 16, lowest: float = 0.5, highest: float = 0.9) -> StandIns | None:
    """Nearest living old rows of each new row, by inner product of unit vectors; None when there is nothing old."""
    new = unit(rows.blocks[-1].detach())
    first_new = len(rows) - len(new)
    live = first_new - sum(number < first_new for number in rows.deleted)
    wanted = min(neighbours, live)  # never a deleted one: its score is −inf and so would be the loss
    if not wanted:
        return None
    deleted = torch.tensor(sorted(rows.deleted), dtype=torch.long, device=new.device)
    found = []
    for part in new.split(QUERIES_AT_ONCE):
        scores = part.new_empty(len(part), 0)
        numbers = torch.empty(len(part), 0, dtype=torch.long, device=new.device)
        for first, piece in rows.pieces():
            if first < first_new:
                here = deleted[(deleted >= first) & (deleted < first + len(piece))] - first
                best = (part @ unit(piece).T).index_fill(1, here, -torch.inf).topk(min(wanted, len(piece)), 1)
                scores, numbers = torch.cat([scores, best.values], 1), torch.cat([numbers, first + best.indices], 1)
        found.append(numbers.gather(1, scores.topk(wanted, 1).indices))
    return StandIns(torch.cat(found), lowest, highest)


def take(rows: Rows, numbers: Tensor) -> Tensor:
    """Rows by number, across blocks: (n, D)."""
    found: Tensor = rows.blocks[-1].new_empty(len(numbers), rows.width)
    first = 0
    for block in rows.blocks:
        here = (numbers >= first) & (numbers < first + len(block))
        found[here] = block.detach()[numbers[here] - first]
        first += len(block)
    return found
