"""Metrics by name, one value per query: Hits@k, MRR@k, nDCG@k, from the exact ranks of a query's relevant documents.

Ties are broken by docid, as in search. A query with several relevant documents is a hit if any of them is retrieved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.errors import UsageError

DEFAULT = ("Hits@1", "Hits@5", "Hits@10", "MRR@10", "nDCG@10")
RESAMPLES = 2000


class QueryRanks(NamedTuple):
    """The exact ranks of a query's relevant documents, and the gain of each."""

    ranks: Sequence[int]
    gains: Sequence[float]


Metric = Callable[[QueryRanks, int], float]
METRICS: dict[str, Metric] = {}


def metric(name: str) -> Callable[[Metric], Metric]:
    """Register a function of ranks and cutoff k as the metric `name@k`."""
    return lambda function: METRICS.setdefault(name, function)


@metric("Hits")
def hits(query: QueryRanks, k: int) -> float:
    """1 if any relevant document is among the first k.

    Examples
    --------
    >>> hits(QueryRanks([3, 12], [1, 1]), 10), hits(QueryRanks([3, 12], [1, 1]), 2)
    (1.0, 0.0)
    """
    return float(min(query.ranks) <= k)


@metric("MRR")
def mrr(query: QueryRanks, k: int) -> float:
    """The reciprocal rank of the first relevant document, 0 if it is below k.

    Examples
    --------
    >>> mrr(QueryRanks([4], [1]), 10), mrr(QueryRanks([11], [1]), 10)
    (0.25, 0.0)
    """
    best = min(query.ranks)
    return 1.0 / best if best <= k else 0.0


@metric("nDCG")
def ndcg(query: QueryRanks, k: int) -> float:
    """Gains discounted by log2(1 + rank), divided by those of the best order.

    Examples
    --------
    >>> ndcg(QueryRanks([1], [1]), 10), round(ndcg(QueryRanks([3], [1]), 10), 6)
    (1.0, 0.5)
    """
    gained = sum(gain / np.log2(1 + rank) for rank, gain in zip(query.ranks, query.gains, strict=True) if rank <= k)
    ideal = sum(gain / np.log2(1 + rank) for rank, gain in enumerate(sorted(query.gains, reverse=True)[:k], 1))
    return float(gained / ideal)


class MetricValue(NamedTuple):
    """A metric's mean over queries, its 95 % interval, and the number of queries."""

    value: float
    low: float
    high: float
    n: int


def values(name: str, queries: Sequence[QueryRanks]) -> NDArray[np.float64]:
    """The metric of each query."""
    match = re.fullmatch(r"(\w+)@([1-9]\d*)", name)
    if not match or match[1] not in METRICS:
        raise UsageError(f"no metric {name!r}; there are {', '.join(f'{metric}@k' for metric in METRICS)}")
    return np.array([METRICS[match[1]](query, int(match[2])) for query in queries], dtype=np.float64)


def measure(name: str, queries: Sequence[QueryRanks], *, seed: int = 0) -> MetricValue:
    """The mean of a metric over queries, with a bootstrap interval.

    Examples
    --------
    >>> measure("Hits@10", [QueryRanks([1], [1]), QueryRanks([20], [1])]).value
    0.5
    """
    each = values(name, queries)
    low, high = interval(each, seed=seed)
    return MetricValue(float(each.mean()), low, high, len(each))


def interval(each: NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean."""
    rng = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(each))  # resamples at once: a few megabytes
    shapes = [(min(rows, RESAMPLES - start), len(each)) for start in range(0, RESAMPLES, rows)]
    means = np.concatenate([each[rng.integers(0, len(each), shape)].mean(axis=1) for shape in shapes])
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
