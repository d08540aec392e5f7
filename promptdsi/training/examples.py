"""Training examples of a corpus: which query should find which row, tokenised once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.generators import unique_queries
from promptdsi.corpus.generators.spans import Spans
from promptdsi.corpus.records import whole_text
from promptdsi.errors import PromptDSIError
from promptdsi.model.rows import Rows
from promptdsi.model.tokenizer import Ids, Tokenizer

FIRST_WORDS = 24  # of a document no span can be taken from


class Examples(NamedTuple):
    """Token ids of each query and the number of the row it should find (n,)."""

    ids: list[Ids]
    targets: Tensor

    @property
    def lengths(self) -> list[int]:
        return [len(one) for one in self.ids]


class TrainingPair(NamedTuple):
    """A query text and the document it should find."""

    text: str
    docid: str


def training_pairs_of(corpus: Corpus, *, pseudo: int, seed: int, annotated: bool = True) -> list[TrainingPair]:
    """The queries a corpus is learned from: annotated train queries and up to `pseudo` pseudo-queries per document.

    Pseudo-queries that came with the corpus are used; documents without any get spans of their own text, and those too short or
    strange for a span their own first words.
    """
    asked = [TrainingPair(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))] if annotated else []
    given: dict[str, list[str]] = {}
    for pair in corpus.pairs("train", kinds=("pseudo",)):
        given.setdefault(pair.docid, []).append(pair.query.text)
    generator = Spans(per_document=max(1, pseudo), seed=seed)
    if pseudo:
        for document in corpus.documents:
            spans = given.get(document.docid) or unique_queries(next(generator.generate([document])), pseudo)
            queries = spans or [" ".join(whole_text(document).split()[:FIRST_WORDS])]
            asked += [TrainingPair(text, document.docid) for text in queries[:pseudo]]
    if silent := {document.docid for document in corpus.documents} - {one.docid for one in asked}:
        raise PromptDSIError(
            f"{len(silent)} documents of {corpus.name} have no query to learn from, {min(silent)!r} first; `promptdsi queries` makes some"
        )
    return asked


def tokenised(asked: Sequence[TrainingPair], rows: Rows, tokenizer: Tokenizer, *, max_tokens: int) -> Examples:
    """Equal texts are tokenised once each time they come; targets are row numbers."""
    ids = tokenizer.encode([one.text for one in asked], max_tokens=max_tokens).ids
    return Examples(ids, rows.numbers([one.docid for one in asked]))


def mean_by_row(vectors: Tensor, targets: Tensor, first: int, count: int) -> Tensor:
    """Mean vector of each row's queries (count, D), by one segment sum; targets count from row `first`."""
    place = (targets - first).to(vectors.device)
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, place, vectors)
    return sums / torch.bincount(place, minlength=count).clamp(min=1)[:, None]
