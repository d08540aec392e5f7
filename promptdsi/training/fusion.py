"""What is learned about scores on D0: the weight of words beside rows, and the probability that a first hit is right.

Both are fitted on queries whose document is known. For the second each query is seen twice: with its document in the index, where the
first hit may be right, and with its document masked, where nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import Calibration, WordTable
from promptdsi.model.path import Floats

Matrix = NDArray[np.float32]  # (Q, N)
# The weight of words is one of these. Annotated queries alone would take it to zero where all are paraphrases, and part numbers and names
# could no longer be found: the least weight is one at which an exact identifier comes first.
WEIGHTS = np.geomspace(0.8, 3.2, 13)
DEFAULT_WEIGHT = 1.0
MOST_SCORES = 1 << 24  # queries times documents: bounds memory and time; more queries change little
RIDGE = 1e-3  # keeps a calibration finite where the two kinds of hits do not overlap at all
# Of the right first hits this share reaches the bound below which nothing certain was found. 95 % are promised: a few hundred queries tell
# the bound only roughly.
RETAINED_SHARE = 0.97
# Pseudo-queries share more words with their document than people's queries do: fitted on them alone, confidences are too low and the bound
# hides up to half of the right first hits. Both numbers were chosen on dev queries of the demo corpus and squadx (docs/LOG.md).
PSEUDO_SHIFT, PSEUDO_BOUND = 1.25, 0.25
STEPS = 50  # of Newton's method


class ScoreParts(NamedTuple):
    """The parts of each document's score for each query (Q, N), the document it should retrieve (Q,), and its information (Q,)."""

    products: Matrix
    coverage: Matrix
    targets: NDArray[np.int64]
    information: NDArray[np.float64]


def collect(table: RowTable, vectors: Floats, texts: Sequence[str], rows: Sequence[int], words: WordTable | None) -> ScoreParts:
    """The parts of every document's score for some queries, each by its best passage; `rows` are those of the relevant documents."""
    products = np.concatenate([scores for _, scores, _ in table.products(vectors)], 1)  # (Q, N)
    coverage, information = np.zeros_like(products), np.zeros(len(texts))
    if words:
        plain = words.weighted(1.0)
        for number, text in enumerate(texts):
            query = plain.query(text)
            query.add_to(coverage[number], 0)
            information[number] = query.information
    starts = table.document_starts
    if starts is None:
        return ScoreParts(products, coverage, np.asarray(rows, np.int64), information)
    best = best_of_each(products + np.float32(DEFAULT_WEIGHT) * coverage, starts)  # (Q, documents)
    by_document = (np.take_along_axis(products, best, 1), np.take_along_axis(coverage, best, 1))
    return ScoreParts(*by_document, np.searchsorted(starts, rows), information)


def best_of_each(scores: Matrix, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column with the highest score among each document's columns, which begin at `starts`: (Q, documents)."""
    best = np.repeat(np.maximum.reduceat(scores, starts, 1), np.diff(np.append(starts, scores.shape[1])), 1)
    columns = np.where(scores == best, np.arange(scores.shape[1]), scores.shape[1])
    return np.minimum.reduceat(columns, starts, 1)


def fit_weight(scored: ScoreParts) -> float:
    """The weight of coverage at which the relevant documents rank highest, by mean reciprocal rank.

    Not by cross-entropy: how sharp the scores are then decides, more than how the documents rank (docs/LOG.md).
    """
    weights = WEIGHTS.tolist()
    means = np.array([_reciprocal_ranks(scored, weight).mean() for weight in weights])
    smooth = np.convolve(np.pad(means, 1, mode="edge"), [1 / 3] * 3, "valid")  # a neighbor's value tells as much as the weight's own
    return float(weights[int(smooth.argmax())])


def _reciprocal_ranks(scored: ScoreParts, weight: float) -> NDArray[np.float64]:
    scores = scored.products + np.float32(weight) * scored.coverage
    target = scores[np.arange(len(scores)), scored.targets][:, None]
    return np.asarray(1.0 / (1 + (scores > target).sum(1)))


def fit_calibration(scored: ScoreParts, weight: float, *, pseudo: bool = False) -> Calibration:
    """Fit on each query with its document present and masked; corrected where the queries are `pseudo` ones."""
    scores = scored.products + np.float32(weight) * scored.coverage
    features, right = [], []
    everyone = np.arange(len(scores))
    for masked in (False, True):
        seen = scores.copy()
        if masked:
            seen[everyone, scored.targets] = -np.inf
        best = seen.argmax(1)
        top = seen[everyone, best]
        seen[everyone, best] = -np.inf
        second = np.where(np.isfinite(seen.max(1)), seen.max(1), top - 1)
        features.append(np.stack([np.ones_like(top), top, top - second, scored.coverage[everyone, best], scored.information], 1))
        right.append((best == scored.targets) & np.isfinite(top))
    inputs, labels = np.concatenate(features).astype(np.float64), np.concatenate(right).astype(np.float64)
    weights = _logistic(inputs, labels)
    likely = 1 / (1 + np.exp(-(inputs @ weights).clip(-30, 30)))
    bound = np.quantile(likely[labels > 0], 1 - RETAINED_SHARE) if labels.any() else 0.0
    intercept, score, margin, coverage, information = weights.tolist()
    if pseudo:
        intercept, bound = intercept + PSEUDO_SHIFT, PSEUDO_BOUND
    return Calibration(intercept, score, margin, coverage, float(bound), information)


def _logistic(features: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logistic regression by Newton's method, with a small ridge on all but the intercept."""
    ridge = np.diag([0.0, *[RIDGE * len(right)] * (features.shape[1] - 1)])
    weights = np.zeros(features.shape[1])
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-(features @ weights).clip(-30, 30)))
        gradient = features.T @ (likely - right) + ridge @ weights
        curvature = (features * (likely * (1 - likely))[:, None]).T @ features + ridge
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(weights)), gradient)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return weights
