"""IncDSI's row problem, solved exactly: place a new row so that its queries retrieve it and no old query is lost to it.

    minimize over x   λ Σ_q [a_q + m1 − q·x]₊² + (1−λ) Σ_j [x·z_j − b_j + m2]₊² + μ|x|²

q are the new document's query vectors and a_q = max_j v_j·q their best score without it; z_j is the mean query vector of a
present document and b_j = v_j·z_j its score for its own row. Squared hinges are piecewise quadratic, so Newton's method with the
Hessian of the active hinges and an exact line search reaches the minimum in a few steps. Library optimizers do not: with the
ridges the settings allow, L-BFGS stops far from the minimum or needs many times the time.
Everything inside is float64. Letters: D width, N present documents, n queries of the new one, k documents of a corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.progress import Advance

FIRST, GROWTH = 64, 3  # old documents in the first round; factor by which a round may enlarge the set
FIRST_RIDGE, RIDGE_DECAY = 1e-3, 100.0  # the ridge of the first stage, relative to squared norms; its decrease per stage
ROUGH = 1e-2  # gradient tolerance of a stage before the last, relative to the ridge's own pull
ROUNDING = 1e-13  # a gradient this small relative to the terms it is summed from is rounding error
MOST_STEPS = {True: 30, False: 500}  # of a rough stage, of the last: guards, seldom more than ten
SCORES_AT_ONCE = 1 << 24  # 128 MiB


@dataclass(frozen=True, kw_only=True)
class ConvexSettings:
    """The coefficients of the row problem; `check` says what is allowed."""

    weight: float = 0.5  # λ: of the new document's queries; 1 − λ of the old documents'
    margin_new: float = 1.0  # m1
    margin_old: float = 1.0  # m2
    ridge: float = 1e-6  # μ

    def check(self) -> None:
        """Refuse settings that do not make a convex problem with one solution.

        Examples
        --------
        >>> ConvexSettings(weight=6.0).check()
        Traceback (most recent call last):
        ValueError: weight=6.0, but 0 < weight < 1: outside, one of the two terms rewards mistakes
        """
        if not 0 < self.weight < 1:
            raise ValueError(f"weight={self.weight}, but 0 < weight < 1: outside, one of the two terms rewards mistakes")
        if not 0 < self.ridge < math.inf:
            raise ValueError(f"ridge={self.ridge}, but ridge > 0: without it the row is not unique")
        if not all(0 <= margin < math.inf for margin in (self.margin_new, self.margin_old)):
            raise ValueError(f"margins {self.margin_new} and {self.margin_old}, but both must be finite and ≥ 0")


class _Point(NamedTuple):
    """A row and the objective there."""

    row: Tensor  # (D,)
    violation: Tensor  # (m,); a hinge is active where this is positive
    slope: Tensor  # (D,) half the gradient
    loss: float
    steepness: float  # |slope|
    noise: float  # how much of that may be rounding error


class _Hinges:
    """Σ weights · [C·x + offsets]₊² + ridge·|x|²: a convex problem of m hinges."""

    def __init__(self, sides: Tensor, offsets: Tensor, weights: Tensor) -> None:
        self.sides, self.offsets, self.weights = sides, offsets, weights  # C (m, D), (m,), (m,)
        self.widest = float(sides.norm(dim=1).max()) if len(sides) else 0.0
        self.roots = weights.sqrt()[:, None] * sides  # (m, D): their outer products make the Hessian
        self.summed = torch.zeros_like(offsets, dtype=torch.bool)  # (m,) whose outer products `total` contains
        self.total: Tensor | None = None  # (D, D)

    def at(self, row: Tensor, ridge: float) -> _Point:
        violation = torch.addmv(self.offsets, self.sides, row)
        over = violation.clamp(min=0)
        slope = self.sides.T @ (self.weights * over) + ridge * row
        terms = self.weights * (violation > 0) * (over + 2 * self.offsets.abs())  # (m,) ≥ weights · (|c·x| + |offset|)
        noise = ROUNDING * (self.widest * float(terms.norm()) + ridge * float(row.norm()))
        return _Point(row, violation, slope, float(self.weights @ over**2 + ridge * (row @ row)), float(slope.norm()), noise)

    def newton(self, point: _Point, ridge: float) -> Tensor:
        """−H⁻¹·slope (D,) for H = Σ_active w c cᵀ + ridge·I; with fewer active hinges than D by the Woodbury identity.

        Starting from the slope and not from the offsets, each step corrects the rounding of the last, which a ridge of 1e-10 magnifies.
        """
        active, slope = point.violation > 0, point.slope
        few = int(active.sum()) < len(slope)
        roots = self.roots[active] if few else self.roots
        matrix = roots @ roots.T if few else self._hessian(active)
        while True:
            shifted = matrix.clone()
            shifted.diagonal().add_(ridge)
            factor, failed = torch.linalg.cholesky_ex(shifted)
            if not int(failed):
                break
            ridge *= 10  # singular to working precision: a damped step still descends
        if few:
            return (roots.T @ torch.cholesky_solve((roots @ slope)[:, None], factor)[:, 0] - slope) / ridge
        return -torch.cholesky_solve(slope[:, None], factor)[:, 0]

    def _hessian(self, active: Tensor) -> Tensor:
        """Σ_active w c cᵀ (D, D), updated from the last one: between steps few hinges change."""
        if self.total is None or int((active ^ self.summed).sum()) > int(active.sum()):
            self.summed = torch.zeros_like(active)
            self.total = self.sides.new_zeros(self.sides.shape[1], self.sides.shape[1])
        for changed, sign in ((active & ~self.summed, 1), (self.summed & ~active, -1)):
            roots = self.roots[changed]
            self.total.addmm_(roots.T, roots, alpha=sign)
        self.summed = active
        return self.total

    def step_length(self, point: _Point, move: Tensor, ridge: float) -> float:
        """The exact minimizer along a move: the zero of the slope a + b·length, whose a and b change at each hinge's kink."""
        violation, change = point.violation, self.sides @ move
        weighted, along = self.weights * change, ridge * float(move @ move)
        across = ridge * float(point.row @ move)
        a = float(weighted @ violation.clamp(min=0)) + across
        if abs(float(weighted @ (violation + change).clamp(min=0)) + across + along) <= 1e-9 * abs(a):
            return 1.0  # the full Newton step
        b = float(weighted @ (change * (violation > 0))) + along
        kinks = -violation / change
        ahead = (kinks > 0).nonzero()[:, 0]
        order = ahead[kinks[ahead].argsort()]
        kinks, joining = kinks[order], weighted[order] * change[order].sign()  # a rising hinge becomes active, a falling one inactive
        a_after = a + torch.cat([kinks.new_zeros(1), (joining * violation[order]).cumsum(0)])  # (kinks + 1,) after each kink
        b_after = b + torch.cat([kinks.new_zeros(1), (joining * change[order]).cumsum(0)])
        piece = int((a_after[:-1] + b_after[:-1] * kinks < 0).sum())  # kinks passed while still falling
        low = float(kinks[piece - 1]) if piece else 0.0
        return max(low, float(-a_after[piece] / b_after[piece]))

    def solve(self, row: Tensor, ridge: float) -> Tensor:
        """Stages of decreasing ridge, each from the last one's row: with a small ridge alone Newton's steps are short and many."""
        point, stage = self.at(row, ridge), max(ridge, FIRST_RIDGE * self.widest**2)
        if not math.isfinite(point.loss):
            raise ValueError("a query, mean query, row or start holds NaN or infinity; look at what encoded them")
        if point.steepness <= point.noise:
            return row
        while stage > ridge:
            row = self._descend(row, stage, rough=True)
            stage = max(ridge, stage / RIDGE_DECAY)
        return self._descend(row, ridge, rough=False)

    def _descend(self, row: Tensor, ridge: float, *, rough: bool) -> Tensor:
        """Newton steps of exact length until the gradient is rounding error or no step helps any more."""
        point = self.at(row, ridge)
        for _ in range(MOST_STEPS[rough]):
            if point.steepness <= max(point.noise, rough * ROUGH * ridge * float(point.row.norm())):
                break
            move = self.newton(point, ridge)
            last, point = point, self.at(point.row + self.step_length(point, move, ridge) * move, ridge)
            if point.loss >= last.loss and 2 * point.steepness > last.steepness:
                break
        return point.row


@torch.no_grad()
def solve_row(queries: Tensor, best: Tensor, means: Tensor, targets: Tensor, settings: ConvexSettings, start: Tensor) -> Tensor:
    """The row (D,) of one new document, in the precision of `start` (D,), which affects the number of steps only.

    The solution touches few old documents: solve with the most violated ones, then add those that the solution violates.

    Parameters
    ----------
    queries, best : (n, D), (n,)
        The new document's query vectors, and the best score each gets from a present row; −∞ where there is none.
    means, targets : (N, D), (N,)
        The mean query vector of each present document, and its score for its own row; +∞ leaves a document out.
    """
    settings.check()
    queries, best, means, targets, row = (tensor.double() for tensor in (queries, best, means, targets, start))
    constrained = best != -torch.inf  # where nothing is present there is nothing to beat
    within = torch.zeros_like(targets, dtype=torch.bool)
    _add_violated(within, means @ row - targets + settings.margin_old)
    while True:
        sides = torch.cat([-queries[constrained], means[within]])
        offsets = torch.cat([best[constrained] + settings.margin_new, settings.margin_old - targets[within]])
        weights = torch.full_like(offsets, 1 - settings.weight)
        weights[: int(constrained.sum())] = settings.weight
        row = _Hinges(sides, offsets, weights).solve(row, settings.ridge)
        if not _add_violated(within, means @ row - targets + settings.margin_old):
            return row.to(start.dtype)


def _add_violated(within: Tensor, violation: Tensor) -> int:
    """Mark the most violated of those not yet `within`; how many there were."""
    outside = violation.masked_fill(within, -torch.inf)
    violated = int((~(outside <= 0)).sum())  # NaN included, to be refused by the solver
    within[outside.topk(min(violated, max(FIRST, GROWTH * int(within.sum())))).indices] = True
    return violated


@torch.no_grad()
def solve_rows(
    rows: Tensor,
    means: Tensor,
    queries: Sequence[Tensor],
    settings: ConvexSettings,
    *,
    start: Tensor | None = None,
    deleted: Tensor | None = None,
    passes: int = 1,
    advance: Advance = lambda done: None,
) -> Tensor:
    """The rows (k, D) of a corpus by the query vectors (n, D) of each document, solved strictly one after the other.

    `rows` and `means` (N, D) are those of the present documents, of which those marked in `deleted` (N,) take no part; `start` (k, D)
    affects the time only. In each further pass (IncDSI*) each row is solved anew against all others, old and new. Each solution is the
    best for its document while the others are fixed, but no joint objective falls: a row that moves changes its neighbors' problems. Two
    new documents with nearly the same queries outbid each other by the margin in every pass, and their rows grow without bound; so the
    caller sets the number of passes.
    """
    settings.check()
    if rows.shape != means.shape:
        raise ValueError(f"each row needs its mean query: {tuple(rows.shape)} rows, {tuple(means.shape)} means")
    if empty := [number for number, vectors in enumerate(queries) if not len(vectors)]:
        raise ValueError(f"document {empty[0]} of {len(queries)} has no query; each needs one to be found by")
    if not queries:
        return rows[:0].clone()
    precision, live = rows.dtype, slice(None) if deleted is None else ~deleted
    rows, means = rows[live].double(), means[live].double()
    first, total, queries = len(rows), len(rows) + len(queries), [vectors.to(rows) for vectors in queries]
    parts = torch.cat(queries).split(max(1, SCORES_AT_ONCE // max(1, first)))
    best_old = torch.cat([_highest(part @ rows.T) for part in parts]).split([len(vectors) for vectors in queries])
    targets = torch.cat([(rows * means).sum(1), rows.new_empty(len(queries))])  # score of each mean query for its own row
    means = torch.cat([means, torch.stack([vectors.mean(0) for vectors in queries])])
    rows = torch.cat([rows, means[first:] if start is None else start.to(rows)])
    for present in (None, *[total] * (passes - 1)):  # in the first pass only the documents before are there
        for row, vectors in enumerate(queries, first):
            count = row if present is None else present
            scores = vectors @ rows[first:count].T  # (n, the corpus so far)
            if row < count:  # already there, it does not compete with itself
                scores[:, row - first], targets[row] = -torch.inf, torch.inf
            best = torch.maximum(best_old[row - first], _highest(scores))
            rows[row] = solve_row(vectors, best, means[:count], targets[:count], settings, rows[row])
            targets[row] = rows[row] @ means[row]
            advance(1)
    return rows[first:].to(precision, copy=True)


def _highest(scores: Tensor) -> Tensor:
    """The maximum of each row, −∞ where there is none: (n, N) → (n,)."""
    return scores.amax(1) if scores.shape[1] else scores.new_full((len(scores),), -torch.inf)
