"""How IncDSI's settings are chosen: draw some, solve held-out documents with each, keep what finds both old and new.

The paper's search is Bayesian with 30 trials; a scrambled Sobol sequence of as many covers four dimensions evenly, needs no
further library and gives the same settings again for the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.training.convex import Settings

if TYPE_CHECKING:
    from promptdsi.methods.neural import NeuralMethod

OLD_WEIGHT = 5.0  # β of the harmonic mean: keeping the old counts most
RANGES = {"weight": (0.05, 0.95), "margin_new": (0.0, 8.0), "margin_old": (0.0, 8.0), "ridge": (1e-10, 1e-3)}


class Value(NamedTuple):
    """MRR@10 of dev queries of the held-out and of the old documents, and their weighted harmonic mean."""

    new: float
    old: float
    both: float


def drawn(count: int, *, seed: int) -> list[Settings]:
    """Settings spread over their ranges, the ridge by its logarithm."""
    points = torch.quasirandom.SobolEngine(len(RANGES), scramble=True, seed=seed).draw(count).double().tolist()
    found = []
    for point in points:
        placed = {name: low + share * (high - low) for share, (name, (low, high)) in zip(point, RANGES.items(), strict=True)}
        low, high = (math.log(edge) for edge in RANGES["ridge"])
        found.append(Settings(**(placed | {"ridge": math.exp(low + point[3] * (high - low))})))
    return found


def best_of(tried: Sequence[tuple[Settings, Value]]) -> Settings:
    """The settings with the highest value, the first of equals."""
    return max(tried, key=lambda one: one[1].both)[0]


class Trial:
    """Dev queries of old and held-out documents. Old rows never change, so what they score is computed once."""

    def __init__(self, method: NeuralMethod, old: Corpus, tune: Corpus) -> None:
        rows = method.model_.rows
        self.old, numbers = _dev(method, old, rows.row_of)
        self.new, self.places = _dev(method, tune, {document.docid: place for place, document in enumerate(tune.documents)})
        scores = rows.scores(self.old)  # (n, N)
        self.own = scores.gather(1, numbers[:, None])  # (n, 1)
        self.ahead = (scores > self.own).sum(1)
        self.against_old = rows.scores(self.new)  # (m, N)

    def value(self, rows: Tensor) -> Value:
        """How well old and held-out documents are found with these rows (k, D) for the latter."""
        if not torch.isfinite(rows).all():
            return Value(0.0, 0.0, 0.0)
        old = mrr(1 + self.ahead + (self.old @ rows.T > self.own).sum(1))
        scores = self.new @ rows.T  # (m, k)
        own = scores.gather(1, self.places[:, None])
        new = mrr(1 + (scores > own).sum(1) + (self.against_old > own).sum(1))
        weight = OLD_WEIGHT**2
        return Value(new, old, (1 + weight) * new * old / (weight * new + old) if new and old else 0.0)


def mrr(ranks: Tensor) -> float:
    """MRR@10.

    Examples
    --------
    >>> mrr(torch.tensor([1, 4, 11]))
    0.4166666666666667
    """
    return float(torch.where(ranks <= 10, 1 / ranks.double(), 0.0).mean())


def _dev(method: NeuralMethod, corpus: Corpus, places: dict[str, int]) -> tuple[Tensor, Tensor]:
    pairs = corpus.pairs("dev", kinds=("annotated",))
    vectors = method.encode([pair.query.text for pair in pairs])
    return vectors, torch.tensor([places[pair.docid] for pair in pairs], device=vectors.device)
