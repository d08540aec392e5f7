"""How IncDSI's settings are chosen: sample some, solve held-out documents with each, take what retrieves both old and new best.

The paper's search is Bayesian with 30 trials; a scrambled Sobol sequence of as many covers four dimensions evenly, needs no
further library and gives the same settings again for the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.training.convex import ConvexSettings

OLD_WEIGHT = 5.0  # β of the harmonic mean: retaining the old counts most
RANGES = {"weight": (0.05, 0.95), "margin_new": (0.0, 8.0), "margin_old": (0.0, 8.0), "ridge": (1e-10, 1e-3)}


class TrialScore(NamedTuple):
    """MRR@10 of dev queries of the held-out and of the old documents, and their weighted harmonic mean."""

    new: float
    old: float
    both: float


def sample_settings(count: int, *, seed: int) -> list[ConvexSettings]:
    """Settings spread over their ranges, the ridge by its logarithm."""
    samples = []
    for point in torch.quasirandom.SobolEngine(len(RANGES), scramble=True, seed=seed).draw(count).double().tolist():
        values = {name: low + share * (high - low) for share, (name, (low, high)) in zip(point, RANGES.items(), strict=True)}
        low, high = (math.log(edge) for edge in RANGES["ridge"])
        samples.append(ConvexSettings(**(values | {"ridge": math.exp(low + point[3] * (high - low))})))
    return samples


def best_settings(tried: Sequence[tuple[ConvexSettings, TrialScore]]) -> ConvexSettings:
    """The settings with the highest score, the first of equals."""
    return max(tried, key=lambda trial: trial[1].both)[0]


class Trial:
    """Dev queries of old and held-out documents. Old rows never change, so their scores are computed once."""

    def __init__(self, method: DSIMethod, old: Corpus, tune: Corpus) -> None:
        rows = method.model_.rows
        self.old, targets = _dev_queries(method, old, rows.row_of)
        self.new, self.positions = _dev_queries(method, tune, {document.docid: row for row, document in enumerate(tune.documents)})
        scores = rows.scores(self.old)  # (n, N)
        self.target_scores = scores.gather(1, targets[:, None])  # (n, 1)
        self.ahead = (scores > self.target_scores).sum(1)
        self.against_old = rows.scores(self.new)  # (m, N)

    def evaluate(self, rows: Tensor) -> TrialScore:
        """How well old and held-out documents are retrieved with these rows (k, D) for the latter."""
        if not torch.isfinite(rows).all():
            return TrialScore(0.0, 0.0, 0.0)
        old = mrr(1 + self.ahead + (self.old @ rows.T > self.target_scores).sum(1))
        scores = self.new @ rows.T  # (m, k)
        targets = scores.gather(1, self.positions[:, None])
        new = mrr(1 + (scores > targets).sum(1) + (self.against_old > targets).sum(1))
        weight = OLD_WEIGHT**2
        return TrialScore(new, old, (1 + weight) * new * old / (weight * new + old) if new and old else 0.0)


def mrr(ranks: Tensor) -> float:
    """MRR@10.

    Examples
    --------
    >>> mrr(torch.tensor([1, 4, 11]))
    0.4166666666666667
    """
    return float(torch.where(ranks <= 10, 1 / ranks.double(), 0.0).mean())


def _dev_queries(method: DSIMethod, corpus: Corpus, row_of: dict[str, int]) -> tuple[Tensor, Tensor]:
    pairs = corpus.pairs("dev", kinds=("annotated",))
    vectors = method.encode([pair.query.text for pair in pairs])
    return vectors, torch.tensor([row_of[pair.docid] for pair in pairs], device=vectors.device)
