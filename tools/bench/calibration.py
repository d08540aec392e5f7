"""Measure how well confidence fits: on the first corpus of a stream, on later ones, and beside queries that have no answer.

    python -m tools.bench.calibration      # writes docs/results/search-calibration.{json,md}

The stream is squadx, 3,000 paragraphs as 70 % + 5 × 6 %, the queries are dev queries. Those of the last corpus, never added, have
no answer. The error is the mean distance of confidence and share of right first hits over ten bins of equal size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi import Corpus, Index
from promptdsi.corpus.sources import Request, build_stream
from tools import evidence
from tools.bench.search_quality import calibration_error, confidences

STREAM = 3000


def measure(folder: Path) -> None:
    """How well confidence fits on the first corpus, on later ones, and beside queries without an answer."""
    *corpora, unseen = build_stream("squadx", Request(), limit=STREAM, new=5, share=0.06).corpora
    index = Index.create(folder / "stream", corpora[0], effort="normal", device="cpu")
    foreign = confidences(index, [pair.query.text for pair in unseen.pairs("dev")])[0]
    rows = [row("the first corpus", "the first corpus", index, corpora[:1], foreign)]
    for corpus in corpora[1:]:
        index.add(corpus)
    foreign = confidences(index, [pair.query.text for pair in unseen.pairs("dev")])[0]
    for what, part in (("the first corpus", corpora[:1]), ("four later corpora", corpora[1:])):
        rows.append(row("five corpora", what, index, part, foreign))
    facts = {"bound": round(bound_of(index), 3), "queries without an answer": len(foreign)}
    evidence.write("search-calibration", "How well confidence fits", "python -m tools.bench.calibration", rows, **facts)


def row(indexed: str, what: str, index: Index, corpora: Sequence[Corpus], foreign: np.ndarray[Any, Any]) -> dict[str, Any]:
    pairs = [(pair.query.text, pair.docid) for corpus in corpora for pair in corpus.pairs("dev")]
    first_hits, docids = confidences(index, [text for text, _ in pairs])
    right = np.array([docid == docid_of_query for docid, (_, docid_of_query) in zip(docids, pairs, strict=True)])
    unanswered = np.resize(foreign, len(first_hits))
    mixed = np.concatenate([first_hits, unanswered]), np.concatenate([right, np.zeros(len(unanswered), bool)])
    bound = bound_of(index)
    return {
        "the index holds": indexed,
        "queries of": what,
        "n": len(pairs),
        "first hit right, %": 100 * float(right.mean()),
        "mean confidence, %": 100 * float(first_hits.mean()),
        "calibration error, %": 100 * calibration_error(first_hits, right),
        "with as many without an answer, %": 100 * calibration_error(*mixed),
        "right first hits above the bound, %": 100 * float((first_hits[right] >= bound).mean()),
        "queries without an answer below it, %": 100 * float((foreign < bound).mean()),
    }


def bound_of(index: Index) -> float:
    calibration = index.opened.method.calibration_
    assert calibration is not None
    return calibration.bound


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))
