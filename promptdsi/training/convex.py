"""IncDSI's row problem, solved exactly: where to put a new row so that its queries find it and no old query is lost to it.

    minimise over x   λ Σ_q [a_q + m1 − q·x]₊² + (1−λ) Σ_j [x·z_j − b_j + m2]₊² + μ|x|²

q are the new document's query vectors and a_q = max_j v_j·q the best score they get without it; z_j is the mean query vector of
a present document and b_j = v_j·z_j what that gets from its own row. Between their kinks squared hinges are quadratic, so
Newton's method with the Hessian of the active hinges does not come near the minimum but reaches it.
Everything inside is float64. Letters: D width, N present documents, n queries of the new one, k documents of a corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.progress import Advance

FIRST, GROWTH = 64, 3  # old documents in the first round; how many more, per one there, a round may take in
EASY, EASIER = 1e-3, 100.0  # the ridge of the first stage, beside squared norms; its fall from stage to stage
ROUGH = 1e-2  # how well a stage before the last is solved, beside the ridge's own pull
ROUNDING = 1e-13  # a gradient this small beside the terms it is summed from is rounding
MOST_STEPS = {True: 30, False: 500}  # of a rough stage, of the last: guards, seldom more than ten
SCORES_AT_ONCE = 1 << 24  # 128 MiB


class Settings(NamedTuple):
    """What the row problem weighs; `checked` says what is allowed."""

    weight: float  # λ: the new document's queries against the old documents'
    margin_new: float  # m1
    margin_old: float  # m2
    ridge: float  # μ


class Solved(NamedTuple):
    """The best row (D,), what it costs, how far from flat the problem is there, and the Newton steps taken."""

    row: Tensor
    loss: float
    gradient: float
    steps: int


def checked(settings: Settings) -> Settings:
    """The settings, if they make a convex problem with one solution.

    Examples
    --------
    >>> checked(Settings(weight=6.0, margin_new=1.0, margin_old=1.0, ridge=1e-6))
    Traceback (most recent call last):
    ValueError: weight=6.0, but 0 < weight < 1: outside, one of the two terms rewards mistakes
    """
    if not 0 < settings.weight < 1:
        raise ValueError(f"weight={settings.weight}, but 0 < weight < 1: outside, one of the two terms rewards mistakes")
    if not 0 < settings.ridge < math.inf:
        raise ValueError(f"ridge={settings.ridge}, but ridge > 0: without it the row is not unique")
    if not all(0 <= margin < math.inf for margin in (settings.margin_new, settings.margin_old)):
        raise ValueError(f"margins {settings.margin_new} and {settings.margin_old}, but both must be finite and ≥ 0")
    return settings


class _Point(NamedTuple):
    """A row and all that is known of the problem there."""

    row: Tensor  # (D,)
    slack: Tensor  # (m,); a hinge is active where this is positive
    slope: Tensor  # (D,) half the gradient
    loss: float
    steepness: float  # |slope|
    noise: float  # how much of that may be rounding


class _Hinges:
    """Σ weights · [C·x + offsets]₊² + ridge·|x|²: a convex problem of m hinges, few enough to be copied together."""

    def __init__(self, sides: Tensor, offsets: Tensor, weights: Tensor) -> None:
        self.sides, self.offsets, self.weights = sides, offsets, weights  # C (m, D), (m,), (m,)
        self.widest = float(sides.norm(dim=1).max()) if len(sides) else 0.0
        self.roots = weights.sqrt()[:, None] * sides  # (m, D): their outer products make the Hessian
        self.summed = torch.zeros_like(offsets, dtype=torch.bool)  # (m,) whose outer products `total` holds
        self.total: Tensor | None = None  # (D, D)

    def at(self, row: Tensor, ridge: float) -> _Point:
        slack = torch.addmv(self.offsets, self.sides, row)
        over = slack.clamp(min=0)
        slope = self.sides.T @ (self.weights * over) + ridge * row
        terms = self.weights * (slack > 0) * (over + 2 * self.offsets.abs())  # (m,) ≥ weights · (|c·x| + |offset|)
        noise = ROUNDING * (self.widest * float(terms.norm()) + ridge * float(row.norm()))
        return _Point(row, slack, slope, float(self.weights @ over**2 + ridge * (row @ row)), float(slope.norm()), noise)

    def newton(self, point: _Point, ridge: float) -> Tensor:
        """−H⁻¹·slope (D,) for H = Σ_active w c cᵀ + ridge·I; fewer active hinges than D are inverted on their own side (Woodbury).

        Starting from the slope and not from the offsets, each step mends the rounding of the last, which a ridge of 1e-10 magnifies.
        """
        active, slope = point.slack > 0, point.slope
        few = int(active.sum()) < len(slope)
        roots = self.roots[active] if few else self.roots
        matrix = roots @ roots.T if few else self._outer(active)
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

    def _outer(self, active: Tensor) -> Tensor:
        """Σ_active w c cᵀ (D, D) from the last one: between steps few hinges change sides."""
        if self.total is None or int((active ^ self.summed).sum()) > int(active.sum()):
            self.summed = torch.zeros_like(active)
            self.total = self.sides.new_zeros(self.sides.shape[1], self.sides.shape[1])
        for changed, sign in ((active & ~self.summed, 1), (self.summed & ~active, -1)):
            roots = self.roots[changed]
            self.total.addmm_(roots.T, roots, alpha=sign)
        self.summed = active
        return self.total

    def length(self, point: _Point, move: Tensor, ridge: float) -> float:
        """The exact minimiser along a move: the zero of the slope a + b·length, whose a and b change at each hinge's kink."""
        slack, change = point.slack, self.sides @ move
        weighted, along = self.weights * change, ridge * float(move @ move)
        across = ridge * float(point.row @ move)
        a = float(weighted @ slack.clamp(min=0)) + across
        if abs(float(weighted @ (slack + change).clamp(min=0)) + across + along) <= 1e-9 * abs(a):
            return 1.0  # as Newton thought
        b = float(weighted @ (change * (slack > 0))) + along
        kinks = -slack / change
        ahead = (kinks > 0).nonzero()[:, 0]
        order = ahead[kinks[ahead].argsort()]
        kinks, turned = kinks[order], weighted[order] * change[order].sign()  # a hinge joins if it rises, else it leaves
        a_behind = a + torch.cat([kinks.new_zeros(1), (turned * slack[order]).cumsum(0)])  # (kinks + 1,) behind each kink
        b_behind = b + torch.cat([kinks.new_zeros(1), (turned * change[order]).cumsum(0)])
        piece = int((a_behind[:-1] + b_behind[:-1] * kinks < 0).sum())  # kinks passed while still falling
        low = float(kinks[piece - 1]) if piece else 0.0
        return max(low, float(-a_behind[piece] / b_behind[piece]))

    def solve(self, row: Tensor, ridge: float) -> Solved:
        """Stages of falling ridge, each from the last one's row: a small ridge alone makes Newton's steps short and many."""
        point = self.at(row, ridge)
        stage, steps = max(ridge, EASY * self.widest**2), 0
        if not math.isfinite(point.loss):
            raise ValueError("a query, mean query, row or start holds NaN or infinity; look at what encoded them")
        if point.steepness <= point.noise:
            return Solved(row, point.loss, 2 * point.steepness, 0)
        while True:
            found = self._descend(row, stage, rough=stage > ridge)
            row, steps = found.row, steps + found.steps
            if stage <= ridge:
                return found._replace(steps=steps)
            stage = max(ridge, stage / EASIER)

    def _descend(self, row: Tensor, ridge: float, *, rough: bool) -> Solved:
        """Newton steps of exact length until the gradient is rounding or no step helps any more."""
        point, steps = self.at(row, ridge), 0
        while steps < MOST_STEPS[rough]:
            enough = max(point.noise, rough * ROUGH * ridge * float(point.row.norm()))
            if point.steepness <= enough:
                break
            move = self.newton(point, ridge)
            last, point, steps = point, self.at(point.row + self.length(point, move, ridge) * move, ridge), steps + 1
            if point.loss >= last.loss and 2 * point.steepness > last.steepness:
                break
        return Solved(point.row, point.loss, 2 * point.steepness, steps)


def _solve(queries: Tensor, best: Tensor, means: Tensor, own: Tensor, settings: Settings, row: Tensor) -> Solved:
    """Rounds over few hinges: the solution touches few old documents, so solve with the worst, then take in those it violates."""
    beaten = best != -torch.inf  # where nothing is present there is nothing to beat
    within, steps = torch.zeros_like(own, dtype=torch.bool), 0
    _take_in(within, means @ row - own + settings.margin_old)
    while True:
        sides = torch.cat([-queries[beaten], means[within]])
        offsets = torch.cat([best[beaten] + settings.margin_new, settings.margin_old - own[within]])
        weights = torch.full_like(offsets, 1 - settings.weight)
        weights[: int(beaten.sum())] = settings.weight
        found = _Hinges(sides, offsets, weights).solve(row, settings.ridge)
        row, steps = found.row, steps + found.steps
        if not _take_in(within, means @ row - own + settings.margin_old):
            return found._replace(steps=steps)


def _take_in(within: Tensor, over: Tensor) -> int:
    """Mark the worst violated of those not yet `within`; how many there were."""
    outside = over.masked_fill(within, -torch.inf)
    violated = int((~(outside <= 0)).sum())  # NaN comes in too, to be complained of
    within[outside.topk(min(violated, max(FIRST, GROWTH * int(within.sum())))).indices] = True
    return violated


@torch.no_grad()
def solve_row(queries: Tensor, best: Tensor, means: Tensor, own: Tensor, settings: Settings, start: Tensor) -> Solved:
    """The row (D,) of one new document, in the precision of `start` (D,), which bears on the number of steps only.

    Parameters
    ----------
    queries, best : (n, D), (n,)
        The new document's query vectors, and the best score each gets from a present row; −∞ where there is none.
    means, own : (N, D), (N,)
        The mean query vector of each present document, and its score for its own row; +∞ leaves a document out.
    """
    found = _solve(queries.double(), best.double(), means.double(), own.double(), checked(settings), start.double())
    return found._replace(row=found.row.to(start.dtype))


class RowSolver:
    """The present documents' rows and mean queries; new documents are added strictly one after the other.

    `rows` and `means` are (N, D); those marked in `dead` (N,) take no part. What is added last – by one call of `add` or
    `add_all` – is the newest corpus, which `again` may improve.
    """

    @torch.no_grad()
    def __init__(self, rows: Tensor, means: Tensor, settings: Settings, *, deleted: Tensor | None = None) -> None:
        if rows.shape != means.shape:
            raise ValueError(f"each row needs its mean query: {tuple(rows.shape)} rows, {tuple(means.shape)} means")
        self.settings, self.precision = checked(settings), rows.dtype
        live = slice(None) if deleted is None else ~deleted
        self._rows, self._means = rows[live].double(), means[live].double()  # (capacity, D) each, of which `_count` are filled
        self._own = (self._rows * self._means).sum(1)  # (capacity,)
        self._count = self._first = len(self._rows)  # `_first` is where the newest corpus begins
        self._queries: list[Tensor] = []  # (n, D) each: those of the newest corpus
        self._best: list[Tensor] = []  # (n,) each: the best score from a row before the newest corpus

    def __len__(self) -> int:
        return self._count

    def add(self, queries: Tensor, start: Tensor | None = None) -> Solved:
        """Add one document by its query vectors (n, D), as a corpus of its own. `start` (D,) bears on the time only."""
        self._begin([queries])
        return self._settle(0, start)

    def add_all(self, queries: Sequence[Tensor], start: Tensor | None = None, *, advance: Advance = lambda done: None) -> Tensor:
        """Add a corpus by the query vectors (n, D) of each document; its rows (k, D). `start` (k, D) bears on the time only."""
        self._begin(queries)
        for number in range(len(queries)):
            self._settle(number, None if start is None else start[number])
            advance(1)
        return self._rows[self._first : self._count].to(self.precision, copy=True)

    def again(self, *, advance: Advance = lambda done: None) -> Tensor:
        """One more pass over the newest corpus (IncDSI*): each row solved anew against all others, old and new; (k, D).

        Each solution is the best for its document while the others stand still, but no joint objective falls: a row that moves
        changes what its neighbours are measured against. Two new documents with nearly the same queries outbid each other by
        the margin in every pass, and their rows grow without end; so passes are counted by the caller, not run to rest.
        """
        for number in range(len(self._queries)):
            self._settle(number, self._rows[self._first + number])
            advance(1)
        return self._rows[self._first : self._count].to(self.precision, copy=True)

    @torch.no_grad()
    def _begin(self, queries: Sequence[Tensor]) -> None:
        if empty := [number for number, one in enumerate(queries) if not len(one)]:
            raise ValueError(f"document {empty[0]} of {len(queries)} has no query; each needs one to be found by")
        self._queries, self._first = [one.to(self._rows) for one in queries], self._count
        needed = self._count + len(queries)
        if needed > len(self._rows):
            more = max(needed, len(self._rows) * 5 // 4) - len(self._rows)
            self._rows, self._means = (torch.cat([one, one.new_empty(more, one.shape[1])]) for one in (self._rows, self._means))
            self._own = torch.cat([self._own, self._own.new_empty(more)])
        if queries:
            together = torch.cat(self._queries).split(max(1, SCORES_AT_ONCE // max(1, self._count)))
            best = torch.cat([_highest(part @ self._rows[: self._first].T) for part in together])
            self._best = list(best.split([len(one) for one in queries]))

    @torch.no_grad()
    def _settle(self, number: int, start: Tensor | None) -> Solved:
        """Solve one document of the newest corpus and put it in its place."""
        queries, place = self._queries[number], self._first + number
        scores = queries @ self._rows[self._first : self._count].T  # (n, the corpus so far)
        if place < self._count:  # it is there already, but does not compete with itself
            scores[:, number] = -torch.inf
            self._own[place] = torch.inf
        best, mean = torch.maximum(self._best[number], _highest(scores)), queries.mean(0)
        means, own = self._means[: self._count], self._own[: self._count]
        found = _solve(queries, best, means, own, self.settings, mean if start is None else start.to(mean))
        self._count = max(self._count, place + 1)
        self._rows[place], self._means[place], self._own[place] = found.row, mean, found.row @ mean
        return found._replace(row=found.row.to(self.precision))


def _highest(scores: Tensor) -> Tensor:
    """The maximum of each line, −∞ where there is none: (n, N) → (n,)."""
    return scores.amax(1) if scores.shape[1] else scores.new_full((len(scores),), -torch.inf)
