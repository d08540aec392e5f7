"""The matrix P[t][i] of a continual run, and the figures computed from it: A_t, LA_t, F_t, forgetting of D0.

P[t][i] is a metric over the queries of corpus i after step t. Each entry is an array: the mean first, then its bootstrap
resamples over queries. Arithmetic on entries therefore gives a bootstrap distribution too, and the difference of two runs
over the same queries is a paired one. Where a system has several seeds, the resamples draw seeds as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.evaluate import QueryRanks, values

RESAMPLES = 1000
ROUNDING = 1e-9  # rounding error of sums that are exactly zero
Figures = NDArray[np.float64]  # (1 + RESAMPLES,): the figure, then its resamples
Statistic = Callable[["Matrix", str], Figures]


class Estimate(NamedTuple):
    """A figure with its 95 % bootstrap interval, over queries and over seeds where there are several."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > ROUNDING or self.high < -ROUNDING


def estimate(figures: Figures) -> Estimate:
    low, high = np.percentile(figures[1:], [2.5, 97.5])
    return Estimate(float(figures[0]), float(low), float(high))


class Matrix:
    """One run: `query_ranks[t][i]` holds the ranks of the queries of corpus i after step t ≥ i.

    A run that learned all new corpora at once has only a first and a last step.
    """

    def __init__(self, query_ranks: Mapping[int, Sequence[Sequence[QueryRanks]]]) -> None:
        for step, corpora in query_ranks.items():
            if len(corpora) != step + 1:
                raise ValueError(f"step {step} has {len(corpora)} corpora, expected D0 to D{step}")
        self.query_ranks = {step: list(query_ranks[step]) for step in sorted(query_ranks)}
        self.last = max(self.query_ranks)
        self.sizes = [len(queries) for queries in self.query_ranks[self.last]]
        self._entries: dict[tuple[str, int, int], Figures] = {}

    def each(self, metric: str, t: int, i: int) -> NDArray[np.float64]:
        """The metric of every query of corpus i after step t."""
        return values(metric, self.query_ranks[t][i])

    def entry(self, metric: str, t: int, i: int) -> Figures:
        """P[t][i] and its resamples; NaN for a corpus that no query looks for."""
        if not self.sizes[i]:
            return np.full(1 + RESAMPLES, np.nan)
        if (metric, t, i) not in self._entries:
            each = self.each(metric, t, i)
            self._entries[metric, t, i] = np.concatenate([[each.mean()], _resample_counts(self.sizes[i], i) @ each / len(each)])
        return self._entries[metric, t, i]

    def on_d0(self, metric: str) -> Figures:
        """P[T][0]: the metric on D0 at the end."""
        return self.entry(metric, self.last, 0)

    def average(self, metric: str, t: int | None = None) -> Figures:
        """A_t: the unweighted mean over the new corpora that have queries, without D0."""
        t = self.last if t is None else t
        return mean([self.entry(metric, t, i) for i in range(1, t + 1) if self.sizes[i]])

    def learning(self, metric: str, t: int | None = None) -> Figures:
        """LA_t: the mean over the new corpora, each just after it was learned."""
        t = self.last if t is None else t
        return mean([self.entry(metric, i, i) for i in range(1, t + 1) if self.sizes[i]])

    def forgetting(self, metric: str, t: int | None = None) -> Figures:
        """F_t: the mean fall of the earlier corpora, D0 included, from their best earlier step. Negative where they rose."""
        t = self.last if t is None else t
        falls = []
        for i in filter(self.sizes.__getitem__, range(t)):
            best = np.max([self.entry(metric, step, i) for step in range(i, t)], axis=0)
            falls.append(best - self.entry(metric, t, i))
        return mean(falls)

    def d0_forgetting(self, metric: str) -> Figures:
        """P[0][0] − P[T][0]. The paper prints max(P[T][0] − P[0][0], 0), which is zero whenever something was forgotten."""
        return self.entry(metric, 0, 0) - self.entry(metric, self.last, 0)


class Compared(NamedTuple):
    """The difference of two methods over the same queries, and the p-value of a sign-flip test."""

    difference: Estimate
    p: float

    @property
    def verdict(self) -> str:
        """`better` and `worse` only where the interval excludes zero."""
        if not self.difference.excludes_zero:
            return "no difference shown"
        return "better" if self.difference.value > 0 else "worse"


def compare(ours: Sequence[Matrix], others: Sequence[Matrix], statistic: Statistic, metric: str, corpora: Sequence[int]) -> Compared:
    """Compare two methods, each the mean of its seeds, in pairs over the same queries.

    `corpora` are those that the statistic covers. The p-value compares queries after the last step, so the statistic must be
    one of the last step: `on_d0` or `average`. The interval resamples the seeds, the p-value does not.
    """
    difference = over_seeds([statistic(run, metric) for run in ours]) - over_seeds([statistic(run, metric) for run in others])
    by_query = [_seed_mean(ours, metric, i) - _seed_mean(others, metric, i) for i in corpora if ours[0].sizes[i]]
    return Compared(estimate(difference), sign_flip(by_query))


def sign_flip(differences: Sequence[NDArray[np.float64]], *, draws: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference over corpora, by random flips of the signs of the queries' differences.

    Examples
    --------
    >>> sign_flip([np.zeros(20)]), sign_flip([np.ones(50)]) < 0.01
    (1.0, True)
    """
    rng = np.random.default_rng(seed)
    observed = abs(np.mean([each.mean() for each in differences]))
    flipped = np.zeros(draws)
    for each in differences:
        nonzero = each[each != 0]
        flipped += (rng.integers(0, 2, (draws, len(nonzero))) * 2 - 1) @ nonzero / len(each) / len(differences)
    return float((1 + (np.abs(flipped) >= observed - 1e-12).sum()) / (1 + draws))


def mean(figures: Sequence[Figures]) -> Figures:
    if not figures:
        raise PromptDSIError("no new corpus has a query of this split, so there is no figure over new corpora")
    return np.asarray(np.mean(figures, axis=0))


def over_seeds(figures: Sequence[Figures]) -> Figures:
    """The mean over seeds; each resample of queries draws seeds too, the same ones for systems with the same number of seeds.

    Examples
    --------
    >>> constant = np.full(1 + RESAMPLES, 0.5)
    >>> estimate(over_seeds([constant, constant])), estimate(over_seeds([constant, constant - 0.1])).low
    (Estimate(value=0.5, low=0.5, high=0.5), 0.4)
    """
    seeds = len(figures)
    if seeds == 1:
        return figures[0]
    stacked = np.stack(figures)  # (seeds, 1 + RESAMPLES)
    counts = np.random.default_rng(seeds).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)  # (RESAMPLES, seeds)
    return np.concatenate([[stacked[:, 0].mean()], (counts * stacked[:, 1:].T).sum(axis=1) / seeds])


def _seed_mean(runs: Sequence[Matrix], metric: str, i: int) -> NDArray[np.float64]:
    return mean([run.each(metric, run.last, i) for run in runs])


@functools.cache
def _resample_counts(size: int, corpus: int) -> NDArray[np.float64]:
    """How often each resample drew each query: (RESAMPLES, size). Whole numbers, so that sums of hits are exact.

    The draws depend on the corpus and its size only, so that all runs over the same queries are resampled in the same way.
    """
    counts = np.random.default_rng([corpus, size]).multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return counts.astype(np.float64)
