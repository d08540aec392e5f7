"""How long a new row should be, learned from the rows of D0.

A long row scores high with everything. Training gives rows that lie close to others a shorter length, because they would
otherwise take their neighbours' queries; a new row that is set to the mean length takes more than its share where it lies close.
So lengths are predicted from how close the neighbours are, by least squares over the rows of D0. No query is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from promptdsi.model.arrays import unit

NEIGHBOURS = 5
MOST_ROWS = 2048  # rows of D0 the rule is fitted on: three numbers need no more
SHORTEST, LONGEST = 0.5, 2.0  # times the mean: a rule fitted on few rows may not run away


@torch.no_grad()
def fitted_lengths(rows: Tensor, new: Tensor, *, otherwise: float) -> Tensor:
    """The length a row (N, D) that lies like each new one (n, D) has: (n, 1); `otherwise` where too few rows are left to tell."""
    rows = rows[rows.norm(dim=1) > 0]  # purged rows are zero
    if len(rows) <= 2 * NEIGHBOURS:
        return new.new_full((len(new), 1), otherwise)
    directions, lengths = unit(rows), rows.norm(dim=1)
    mean = lengths.mean()
    chosen = torch.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows)), device=rows.device).long()
    others = directions[chosen] @ directions.T  # (s, N)
    others[torch.arange(len(chosen)), chosen] = -torch.inf  # a row is not its own neighbour
    rule = torch.linalg.lstsq(_closeness(others).double(), lengths[chosen].double()[:, None]).solution  # (3, 1)
    found: Tensor = (_closeness(unit(new) @ directions.T).double() @ rule).to(rows)  # (n, 1)
    return found.clamp(SHORTEST * mean, LONGEST * mean)


def _closeness(similarity: Tensor) -> Tensor:
    """What lengths are predicted from, of each line (n, N): one, the mean of the nearest rows' cosines, the nearest's: (n, 3)."""
    nearest = similarity.topk(NEIGHBOURS, 1).values
    return torch.stack([torch.ones_like(nearest[:, 0]), nearest.mean(1), nearest[:, 0]], 1)
