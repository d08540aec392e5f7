"""Ask a method the queries of a split, and keep what came out: exact ranks, and TREC run files."""

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
from promptdsi.methods.method import Method, Result


class EvalQuery(NamedTuple):
    """A query and the documents that answer it, with how well each does."""

    queryid: str
    text: str
    relevant: dict[str, float]


class EvalResult(NamedTuple):
    """Questions that could be asked, the ranks of their answers, and how many had no answer in the index."""

    load_queries: list[EvalQuery]
    query_ranks: list[QueryRanks]
    left_out: int


def load_queries(corpus: Corpus, split: str) -> list[EvalQuery]:
    """The annotated queries of a split in their order, with their answers."""
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    asked: dict[str, EvalQuery] = {}
    by_id = {query.queryid: query for query in corpus.queries if query.kind == "annotated"}
    for judgement in corpus.qrels.get(split, ()):
        if judgement.score > 0 and judgement.queryid in by_id:
            query = asked.setdefault(judgement.queryid, EvalQuery(judgement.queryid, by_id[judgement.queryid].text, {}))
            query.relevant[judgement.docid] = float(judgement.score)
    return list(asked.values())


def rank_queries(method: Method, asked: Sequence[EvalQuery], *, known: Callable[[str], bool] = lambda docid: True) -> EvalResult:
    """Exact ranks of the answers. Questions none of whose answers is known (deleted, never added) are left out and counted."""
    able = [one._replace(relevant={docid: gain for docid, gain in one.relevant.items() if known(docid)}) for one in asked]
    able = [one for one in able if one.relevant]
    flat = [(one.text, docid) for one in able for docid in one.relevant]
    found = iter(method.ranks([text for text, _ in flat], [docid for _, docid in flat]).tolist())
    query_ranks = [QueryRanks([next(found) for _ in one.relevant], list(one.relevant.values())) for one in able]
    return EvalResult(able, query_ranks, len(asked) - len(able))


def write_run(path: Path, asked: Sequence[EvalQuery], results: Sequence[Result], *, tag: str) -> None:
    """A TREC run file. Scores fall strictly, in single precision too, so that other tools keep our order of ties."""
    lines = []
    for question, result in zip(asked, results, strict=True):
        for rank, (docid, score) in enumerate(zip(result.docids, falling(result.scores), strict=True), 1):
            for what in (question.queryid, docid):
                if any(character.isspace() for character in what):
                    raise DataError(f"cannot hold the id {what!r}: columns of a run file are set apart by white space", path=path)
            lines.append(f"{question.queryid} Q0 {docid} {rank} {score:.9g} {tag}\n")
    with atomic_write(path) as file:
        file.write("".join(lines).encode("utf-8"))


def falling(scores: Sequence[float]) -> NDArray[np.float32]:
    """Scores made strictly decreasing by the smallest steps single precision has.

    Examples
    --------
    >>> bool((np.diff(falling([0.5, 0.5, 0.25])) < 0).all())
    True
    """
    made = np.array(scores, dtype=np.float32)
    for place in range(1, len(made)):
        if made[place] >= made[place - 1]:
            made[place] = np.nextafter(made[place - 1], np.float32(-np.inf))
    return made
