"""What a corpus is learned from: pairs of query and document, and these as token ids and row numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.corpus.generators import unique_queries
from promptdsi.corpus.generators.spans import Spans
from promptdsi.corpus.passages import Passages, whole_documents
from promptdsi.errors import PromptDSIError
from promptdsi.model.path import Numbers
from promptdsi.model.rows import Rows
from promptdsi.model.tokenizer import Ids, Tokenizer, lengths_of

LEAST_QUERIES = 30  # fewer tell too little about the weight of words or confidences
PASSAGE = "promptdsi-passage"  # metadata of a pseudo-query that an index stores: the number of the passage it was made from
FIRST_WORDS = 24  # of a document no span can be taken from


class Siblings(NamedTuple):
    """Of each query the rows of its document: the first (n,), how many (n,), and whether any of them may be the target (n,)."""

    first: Tensor
    rows: Tensor
    any_passage: Tensor

    def assign(self, numbers: Tensor, vectors: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        """The targets of a batch (B,); a query that belongs to a whole document gets the passage that scores highest now."""
        numbers = numbers.to(self.first.device)
        targets = targets.clone()
        with torch.no_grad():
            for position in self.undecided(numbers):
                first, count = int(self.first[numbers[position]]), int(self.rows[numbers[position]])
                targets[position] = first + int((rows[first : first + count] @ vectors[position]).argmax())
        return targets

    def undecided(self, numbers: Tensor) -> list[int]:
        """The positions in a batch of the queries that belong to a whole document of several passages."""
        numbers = numbers.to(self.first.device)
        return torch.nonzero(self.any_passage[numbers] & (self.rows[numbers] > 1))[:, 0].tolist()

    def masked(self, numbers: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The other passages of each query's document, as pairs of query and row: they are no wrong answer."""
        numbers = numbers.to(self.first.device)
        first, count = self.first[numbers], self.rows[numbers]
        queries = torch.repeat_interleave(torch.arange(len(numbers), device=first.device), count)
        within = torch.arange(len(queries), device=first.device) - torch.repeat_interleave(count.cumsum(0) - count, count)
        rows = first[queries] + within
        others = rows != targets.to(rows.device)[queries]
        return queries[others].to(targets.device), rows[others].to(targets.device)


class Examples(NamedTuple):
    """Token ids of each query and the number of the row it should retrieve (n,); `siblings` where some document has several rows."""

    ids: Sequence[Ids]
    targets: Tensor
    siblings: Siblings | None = None

    def moved(self, first: int) -> Examples:
        """The same with rows counted from `first`."""
        siblings = self.siblings and self.siblings._replace(first=self.siblings.first - first)
        return self._replace(targets=self.targets - first, siblings=siblings)

    @property
    def lengths(self) -> Numbers:
        return lengths_of(self.ids)


class TrainingPair(NamedTuple):
    """A query text and the document it should retrieve; of a pseudo-query also the number of the passage it was made from."""

    text: str
    docid: str
    passage: int | None = None


def training_pairs_of(corpus: Corpus | Passages, *, pseudo: int, seed: int, annotated: bool = True) -> list[TrainingPair]:
    """The queries a corpus is learned from: annotated train queries and up to `pseudo` pseudo-queries per passage.

    Pseudo-queries that came with the corpus are used; the passages of documents without any get spans of their own text, and those
    from which no span can be taken their first words.
    """
    passages = corpus if isinstance(corpus, Passages) else whole_documents(corpus)
    corpus = passages.corpus
    pairs = [TrainingPair(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))] if annotated else []
    given: dict[str, list[TrainingPair]] = {}
    for pair in corpus.pairs("train", kinds=("pseudo",)):
        given.setdefault(pair.docid, []).append(TrainingPair(pair.query.text, pair.docid, pair.query.metadata.get(PASSAGE)))
    generator = Spans(per_document=max(1, pseudo), seed=seed)
    if pseudo:
        parts = iter(passages.documents())
        for document, count in zip(corpus.documents, passages.counts, strict=True):
            document_passages = [next(parts) for _ in range(count)]
            if document.docid in given:
                pairs += given[document.docid][: pseudo * count]
                continue
            for number, part in enumerate(document_passages):
                spans = unique_queries(next(generator.generate([part])), pseudo)
                queries = spans or [" ".join(whole_text(part).split()[:FIRST_WORDS])]
                pairs += [TrainingPair(text, document.docid, number if count > 1 else None) for text in queries[:pseudo]]
    if missing := {document.docid for document in corpus.documents} - {pair.docid for pair in pairs}:
        raise PromptDSIError(
            f"{len(missing)} documents of {corpus.name} have no query to learn from, {min(missing)!r} first; `promptdsi queries` makes some"
        )
    return pairs


def calibration_pairs(passages: Passages, *, seed: int, limit: int) -> tuple[list[TrainingPair], str]:
    """Queries to fit the weight of words and confidences on, at most `limit`, and what they are: dev, train or pseudo.

    Dev queries where there are enough, else train queries, else half the words of pseudo-queries: people do not quote documents.
    """
    rng, corpus = random.Random(seed), passages.corpus
    for split in ("dev", "train"):
        pairs = [TrainingPair(pair.query.text, pair.docid) for pair in corpus.pairs(split, kinds=("annotated",))]
        if len(pairs) >= LEAST_QUERIES:
            return rng.sample(pairs, min(limit, len(pairs))), split
    pseudo = training_pairs_of(passages, pseudo=2, seed=seed, annotated=False)
    chosen = [pair._replace(text=_half(pair.text, rng), passage=None) for pair in rng.sample(pseudo, min(limit, len(pseudo)))]
    return [pair for pair in chosen if pair.text], "pseudo"


def _half(text: str, rng: random.Random) -> str:
    words = text.split()
    return " ".join(word for word in words if rng.random() < 0.5) or words[0]


def tokenize_pairs(pairs: Sequence[TrainingPair], rows: Rows, tokenizer: Tokenizer, *, max_tokens: int) -> Examples:
    """Training pairs as token ids and row numbers; the rows of all their documents must be there."""
    ids = tokenizer.encode([pair.text for pair in pairs], max_tokens=max_tokens).ids
    first = rows.numbers([pair.docid for pair in pairs])
    if not rows.several:
        return Examples(ids, first)
    count = torch.tensor([len(rows.rows_of(pair.docid)) for pair in pairs])
    passages = torch.tensor([pair.passage or 0 for pair in pairs])
    return Examples(ids, first + passages, Siblings(first, count, torch.tensor([pair.passage is None for pair in pairs])))
