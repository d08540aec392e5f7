"""Measure what corrections teach: the queries themselves, other queries of the same documents, and what everything else loses.

    python -m tools.bench.teaching          # writes docs/results/bench-teaching.{json,md}

The index holds paragraphs of squadx and was created from them alone, with no query to learn from: what people have. A correction is a train
query whose document is not first. Other queries of a taught document are its remaining train and dev queries; the rest are the dev queries
of documents that were not taught. Test queries are not used.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi import Corpus, Index
from promptdsi.corpus.corpus import merge_corpora
from promptdsi.corpus.sources import Request, build_stream
from tools import evidence

DOCUMENTS, CORRECTIONS, SEED = 3000, 100, 0
Pairs = list[tuple[str, str]]


def ranks(index: Index, pairs: Iterable[tuple[str, str]]) -> np.ndarray[Any, Any]:
    """The rank of each query's document, 11 where it is not among the first ten."""
    pairs = list(pairs)
    results = index.search([query for query, _ in pairs], k=10)
    return np.array([next((hit.rank for hit in hits if hit.docid == docid), 11) for hits, (_, docid) in zip(results, pairs, strict=True)])


def row(what: str, before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> dict[str, Any]:
    values = {f"Hits@{k} {when}": 100 * float((each <= k).mean()) for k in (1, 10) for when, each in (("before", before), ("after", after))}
    return {"queries": what, "n": len(before), **values}


def measure(place: Path) -> None:
    corpus = merge_corpora(build_stream("squadx", Request(), limit=DOCUMENTS).corpora, "squadx")
    index = Index.create(place / "index", Corpus(corpus.documents, name="squadx"), device="cpu", offline=True)
    train, dev = ([(pair.query.text, pair.docid) for pair in corpus.pairs(split, kinds=("annotated",))] for split in ("train", "dev"))
    failed = [pair for pair, rank in zip(train, ranks(index, train), strict=True) if rank > 1]
    draw = random.Random(SEED)
    draw.shuffle(failed)
    corrections: Pairs = list({docid: (query, docid) for query, docid in failed}.values())[:CORRECTIONS]  # one for each document
    taught = {docid for _, docid in corrections}
    others = [pair for pair in (*train, *dev) if pair[1] in taught and pair not in corrections]
    rest = [pair for pair in dev if pair[1] not in taught]
    groups = {"the corrections": corrections, "other queries of the taught documents": others, "queries of all other documents": rest}
    before = {name: ranks(index, pairs) for name, pairs in groups.items()}
    started = time.monotonic()
    index.teach(corrections)
    seconds = time.monotonic() - started
    rows = [row(name, before[name], ranks(index, pairs)) for name, pairs in groups.items()]
    facts = {"documents": DOCUMENTS, "corrections": len(corrections), "seconds of teaching": round(seconds, 1)}
    evidence.write("bench-teaching", "What corrections teach", "python -m tools.bench.teaching", rows, **facts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))
