"""Evaluate a method on the queries of a split: exact ranks, and TREC run files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import SPLITS
from promptdsi.errors import DataError, UsageError
from promptdsi.evaluation.metrics import QueryRanks
from promptdsi.files import atomic_write
from promptdsi.methods.base import Method, Result


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


def rank_queries(method: Method, queries: Sequence[EvalQuery], *, in_index: Callable[[str], bool] = lambda docid: True) -> EvalResult:
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
