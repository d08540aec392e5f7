"""Training examples of a corpus: which query should retrieve which row, tokenized once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.corpus.generators import unique_queries
from promptdsi.corpus.generators.spans import Spans
from promptdsi.errors import PromptDSIError
from promptdsi.model.path import Ids, Tokenizer
from promptdsi.model.rows import Rows

FIRST_WORDS = 24  # of a document no span can be taken from


class Examples(NamedTuple):
    """Token ids of each query and the number of the row it should retrieve (n,)."""

    ids: list[Ids]
    targets: Tensor

    @property
    def lengths(self) -> list[int]:
        return [len(query) for query in self.ids]


class TrainingPair(NamedTuple):
    """A query text and the document it should retrieve."""

    text: str
    docid: str


def training_pairs_of(corpus: Corpus, *, pseudo: int, seed: int, annotated: bool = True) -> list[TrainingPair]:
    """The queries a corpus is learned from: annotated train queries and up to `pseudo` pseudo-queries per document.

    Pseudo-queries that came with the corpus are used; documents without any get spans of their own text, and those from which
    no span can be taken their first words.
    """
    pairs = [TrainingPair(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))] if annotated else []
    given: dict[str, list[str]] = {}
    for pair in corpus.pairs("train", kinds=("pseudo",)):
        given.setdefault(pair.docid, []).append(pair.query.text)
    generator = Spans(per_document=max(1, pseudo), seed=seed)
    if pseudo:
        for document in corpus.documents:
            spans = given.get(document.docid) or unique_queries(next(generator.generate([document])), pseudo)
            queries = spans or [" ".join(whole_text(document).split()[:FIRST_WORDS])]
            pairs += [TrainingPair(text, document.docid) for text in queries[:pseudo]]
    if missing := {document.docid for document in corpus.documents} - {pair.docid for pair in pairs}:
        raise PromptDSIError(
            f"{len(missing)} documents of {corpus.name} have no query to learn from, {min(missing)!r} first; `promptdsi queries` makes some"
        )
    return pairs


def tokenize_pairs(pairs: Sequence[TrainingPair], rows: Rows, tokenizer: Tokenizer, *, max_tokens: int) -> Examples:
    """Training pairs as token ids and row numbers; the rows of all their documents must be there."""
    ids = tokenizer.encode([pair.text for pair in pairs], max_tokens=max_tokens).ids
    return Examples(ids, rows.numbers([pair.docid for pair in pairs]))


def mean_by_row(vectors: Tensor, targets: Tensor, first: int, count: int) -> Tensor:
    """Mean vector of each row's queries (count, D), by one segment sum; targets count from row `first`."""
    position = (targets - first).to(vectors.device)
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, position, vectors)
    return sums / torch.bincount(position, minlength=count).clamp(min=1)[:, None]
