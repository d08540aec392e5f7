"""Stand-ins for old queries, made from old rows alone: points between a new row and its nearest old rows, labelled old.

They tell new rows to keep away from where old queries live, without any old document or query. λ near 1 lies at the old row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.model.prompts.strategy import unit
from promptdsi.model.rows import Rows


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
        points = share.to(new) * unit(old) + (1 - share.to(new)) * unit(new[which])  # (count, D)
        return unit(points), old_numbers


def find_stand_ins(rows: Rows, *, neighbours: int = 16, lowest: float = 0.5, highest: float = 0.9) -> StandIns | None:
    """Nearest living old rows of each new row, by inner product of unit vectors; None when there is nothing old."""
    new = unit(rows.blocks[-1].detach())
    first_new = len(rows) - len(new)
    best_scores = new.new_empty(len(new), 0)
    best_rows = torch.empty(len(new), 0, dtype=torch.long, device=new.device)
    dead = torch.tensor(sorted(rows.dead), dtype=torch.long, device=new.device)
    for first, piece in rows.pieces():
        if first >= first_new:
            continue
        scores = new @ unit(piece).T  # (n, piece)
        here = dead[(dead >= first) & (dead < first + len(piece))]
        scores = scores.index_fill(1, here - first, -torch.inf)
        best_scores = torch.cat([best_scores, scores], 1)
        best_rows = torch.cat([best_rows, torch.arange(first, first + len(piece), device=new.device).expand(len(new), -1)], 1)
        best_scores, places = best_scores.topk(min(neighbours, best_scores.shape[1]), 1)
        best_rows = best_rows.gather(1, places)
    return StandIns(best_rows, lowest, highest) if best_rows.shape[1] else None


def take(rows: Rows, numbers: Tensor) -> Tensor:
    """Rows by number, across blocks: (n, D)."""
    found: Tensor = rows.blocks[-1].new_empty(len(numbers), rows.width)
    first = 0
    for block in rows.blocks:
        here = (numbers >= first) & (numbers < first + len(block))
        found[here] = block.detach()[numbers[here] - first]
        first += len(block)
    return found
