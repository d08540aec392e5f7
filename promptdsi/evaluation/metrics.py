"""Metrics by name, one value per query: Hits@k, MRR@k, nDCG@k, from the exact ranks of a query's relevant documents.

Ranks come from counting, so ties are broken as in search. A query with several relevant documents is a hit if any is found.
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
    """The exact ranks of one query's relevant documents, and how relevant each is."""

    ranks: Sequence[int]
    gains: Sequence[float]


def hits(query: QueryRanks, k: int) -> float:
    """1 if any relevant document is among the first k.

    Examples
    --------
    >>> hits(Judged([3, 12], [1, 1]), 10), hits(Judged([3, 12], [1, 1]), 2)
    (1.0, 0.0)
    """
    return float(min(query.ranks) <= k)


def mrr(query: QueryRanks, k: int) -> float:
    """One over the rank of the first relevant document, 0 below k.

    Examples
    --------
    >>> mrr(Judged([4], [1]), 10), mrr(Judged([11], [1]), 10)
    (0.25, 0.0)
    """
    best = min(query.ranks)
    return 1.0 / best if best <= k else 0.0


def ndcg(query: QueryRanks, k: int) -> float:
    """Gains discounted by log2(1 + rank), over what the best order would give.

    Examples
    --------
    >>> ndcg(Judged([1], [1]), 10), round(ndcg(Judged([3], [1]), 10), 6)
    (1.0, 0.5)
    """
    gained = sum(gain / np.log2(1 + rank) for rank, gain in zip(query.ranks, query.gains, strict=True) if rank <= k)
    ideal = sum(gain / np.log2(2 + place) for place, gain in enumerate(sorted(query.gains, reverse=True)[:k]))
    return float(gained / ideal)


METRICS: dict[str, Callable[[QueryRanks, int], float]] = {"Hits": hits, "MRR": mrr, "nDCG": ndcg}


class Measured(NamedTuple):
    """A metric's mean over queries, its 95 % interval, and the number of queries."""

    value: float
    low: float
    high: float
    n: int


def values(name: str, queries: Sequence[QueryRanks]) -> NDArray[np.float64]:
    """The value of each query."""
    found = re.fullmatch(r"(\w+)@([1-9]\d*)", name)
    if not found or found[1] not in METRICS:
        raise UsageError(f"no metric {name!r}; there are {', '.join(f'{known}@k' for known in METRICS)}")
    return np.array([METRICS[found[1]](query, int(found[2])) for query in queries], dtype=np.float64)


def measure(name: str, queries: Sequence[QueryRanks], *, seed: int = 0) -> Measured:
    """A metric over queries, with a bootstrap interval over them.

    Examples
    --------
    >>> measure("Hits@10", [Judged([1], [1]), Judged([20], [1])]).value
    0.5
    """
    each = values(name, queries)
    low, high = interval(each, seed=seed)
    return Measured(float(each.mean()), low, high, len(each))


def interval(each: NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean."""
    rng = np.random.default_rng(seed)
    means = np.array([each[rng.integers(0, len(each), len(each))].mean() for _ in range(RESAMPLES)])
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
