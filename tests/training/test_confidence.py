"""Confidence of an index that was given documents alone: right hits of people's queries reach the bound, other queries do not."""

from __future__ import annotations

from pathlib import Path

from promptdsi import Corpus, Index
from promptdsi.corpus.sources import Request, demo_corpus
from promptdsi.training.fusion import PSEUDO_BOUND

FOREIGN = [
    "which form do I need to renew a passport",
    "how is the offside rule applied in rugby league",
    "who chairs the works council",
    "what does the warranty say about water damage",
    "how do I reset the router to factory settings",
]


def test_right_hits_are_certain_and_others_are_not_without_annotated_queries(tmp_path: Path) -> None:
    demo = demo_corpus.build(Request()).corpus
    documents = demo.documents[::9]
    index = Index.create(tmp_path / "index", Corpus(documents, name="notes"), effort="quick", device="cpu")
    docids = {document.docid for document in documents}
    pairs = [pair for pair in demo.pairs("dev", kinds=("annotated",)) if pair.docid in docids]
    first = [hits[0] for hits in index.search([pair.query.text for pair in pairs], k=2)]
    right = [hit.confidence or 0.0 for hit, pair in zip(first, pairs, strict=True) if hit.docid == pair.docid]
    assert len(right) > 0.9 * len(pairs)
    assert sum(value >= PSEUDO_BOUND for value in right) > 0.9 * len(right)
    foreign = [hits[0].confidence or 0.0 for hits in index.search(FOREIGN, k=2)]
    assert sum(value < PSEUDO_BOUND for value in foreign) >= 4
