"""Evaluate a method on the queries of a split: exact ranks, metrics by name with bootstrap intervals, and TREC run files.

Ties are broken by docid, as in search. A query with several relevant documents is a hit if any of them is retrieved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import SPLITS, Corpus
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write
from promptdsi.methods.base import Result

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


def measure(name: str, queries: Sequence[QueryRanks]) -> MetricValue:
    """The mean of a metric over queries, with a bootstrap interval.

    Examples
    --------
    >>> measure("Hits@10", [QueryRanks([1], [1]), QueryRanks([20], [1])]).value
    0.5
    """
    each = values(name, queries)
    return MetricValue(float(each.mean()), *interval(each), len(each))


def interval(each: NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean."""
    rng = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(each))  # resamples at once: a few megabytes
    shapes = [(min(rows, RESAMPLES - start), len(each)) for start in range(0, RESAMPLES, rows)]
    means = np.concatenate([each[rng.integers(0, len(each), shape)].mean(axis=1) for shape in shapes])
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


class EvalQuery(NamedTuple):
    """A query and its relevant documents, with the gain of each."""

    queryid: str
    text: str
    relevant: dict[str, float]


class EvalResult(NamedTuple):
    """The evaluated queries, the ranks of their relevant documents, and how many queries had none in the index."""

    queries: list[EvalQuery]
    query_ranks: list[QueryRanks]
    left_out: int


class Ranker(Protocol):
    """What can be evaluated: a method, or an opened index."""

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]: ...

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]: ...


def load_queries(corpus: Corpus, split: str) -> list[EvalQuery]:
    """The annotated queries of a split in order, with their relevant documents."""
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    queries: dict[str, EvalQuery] = {}
    by_id = {query.queryid: query for query in corpus.queries if query.kind == "annotated"}
    for judgement in corpus.qrels.get(split, ()):
        if judgement.score > 0 and judgement.queryid in by_id:
            query = queries.setdefault(judgement.queryid, EvalQuery(judgement.queryid, by_id[judgement.queryid].text, {}))
            query.relevant[judgement.docid] = float(judgement.score)
    return list(queries.values())


def rank_queries(method: Ranker, queries: Sequence[EvalQuery], *, in_index: Callable[[str], bool] = lambda docid: True) -> EvalResult:
    """Exact ranks of relevant documents. Queries with no relevant document in the index are left out and counted."""
    live = [query._replace(relevant={docid: gain for docid, gain in query.relevant.items() if in_index(docid)}) for query in queries]
    live = [query for query in live if query.relevant]
    pairs = [(query.text, docid) for query in live for docid in query.relevant]
    ranks = iter(method.ranks([text for text, _ in pairs], [docid for _, docid in pairs]).tolist())
    query_ranks = [QueryRanks([next(ranks) for _ in query.relevant], list(query.relevant.values())) for query in live]
    return EvalResult(live, query_ranks, len(queries) - len(live))


def write_run(path: Path, queries: Sequence[EvalQuery], results: Sequence[Result], *, tag: str) -> None:
    """Write a TREC run file. Scores decrease strictly, in single precision too, so that other tools keep our order of ties."""
    lines = []
    for query, result in zip(queries, results, strict=True):
        for rank, (docid, score) in enumerate(zip(result.docids, strictly_decreasing(result.scores), strict=True), 1):
            for identifier in (query.queryid, docid):
                if any(character.isspace() for character in identifier):
                    raise DataError(f"cannot hold the id {identifier!r}: columns of a run file are separated by white space", path=path)
            lines.append(f"{query.queryid} Q0 {docid} {rank} {score:.9g} {tag}\n")
    with atomic_write(path) as file:
        file.write("".join(lines).encode("utf-8"))


def strictly_decreasing(scores: Sequence[float]) -> NDArray[np.float32]:
    """Make scores strictly decreasing by the smallest steps of single precision.

    Examples
    --------
    >>> bool((np.diff(strictly_decreasing([0.5, 0.5, 0.25])) < 0).all())
    True
    """
    decreasing = np.array(scores, dtype=np.float32)
    for position in range(1, len(decreasing)):
        if decreasing[position] >= decreasing[position - 1]:
            decreasing[position] = np.nextafter(decreasing[position - 1], np.float32(-np.inf))
    return decreasing
