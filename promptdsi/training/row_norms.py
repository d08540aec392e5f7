"""The norm a new row should have, predicted from the rows of D0.

A row of large norm scores high with everything. Training gives rows that lie close to others a smaller norm, because they would
otherwise take their neighbors' queries; a new row of mean norm takes more than its share where it lies close. So norms are
predicted from how close the neighbors are, by least squares over the rows of D0. No query is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from promptdsi.model.path import unit

NEIGHBORS = 5
MOST_ROWS = 2048  # rows of D0 the rule is fitted on: three coefficients need no more
SMALLEST, LARGEST = 0.5, 2.0  # times the mean: bounds a rule that was fitted on few rows


@torch.no_grad()
def fitted_norms(rows: Tensor, new: Tensor, *, default: float) -> Tensor:
    """The norm that rows (N, D) placed like each new one (n, D) have: (n, 1); `default` where too few rows are left to tell."""
    rows = rows[rows.norm(dim=1) > 0]  # purged rows are zero
    if len(rows) <= 2 * NEIGHBORS:
        return new.new_full((len(new), 1), default)
    directions, norms = unit(rows), rows.norm(dim=1)
    mean = norms.mean()
    sample = torch.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows)), device=rows.device).long()
    similarity = directions[sample] @ directions.T  # (s, N)
    similarity[torch.arange(len(sample)), sample] = -torch.inf  # a row is not its own neighbor
    rule = torch.linalg.lstsq(_closeness(similarity).double(), norms[sample].double()[:, None]).solution  # (3, 1)
    predicted: Tensor = (_closeness(unit(new) @ directions.T).double() @ rule).to(rows)  # (n, 1)
    return predicted.clamp(SMALLEST * mean, LARGEST * mean)


def _closeness(similarity: Tensor) -> Tensor:
    """The predictors of each row's norm from its cosines (n, N): a constant, the mean of the nearest and the nearest: (n, 3)."""
    nearest = similarity.topk(NEIGHBORS, 1).values
    return torch.stack([torch.ones_like(nearest[:, 0]), nearest.mean(1), nearest[:, 0]], 1)
