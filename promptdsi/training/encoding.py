"""Texts as training input: pairs of query and document, tokenized examples, and vectors by batches of like length."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.corpus.generators import unique_queries
from promptdsi.corpus.generators.spans import Spans
from promptdsi.corpus.passages import Passages, whole_documents
from promptdsi.errors import PromptDSIError
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Tokens
from promptdsi.model.path import Ids, Tokenizer, by_length, unit
from promptdsi.model.rows import Rows
from promptdsi.progress import Advance, Progress, silent

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
        undecided = torch.nonzero(self.any_passage[numbers] & (self.rows[numbers] > 1))[:, 0].tolist()
        with torch.no_grad():
            for position in undecided:
                first, count = int(self.first[numbers[position]]), int(self.rows[numbers[position]])
                targets[position] = first + int((rows[first : first + count] @ vectors[position]).argmax())
        return targets

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

    ids: list[Ids]
    targets: Tensor
    siblings: Siblings | None = None

    def moved(self, first: int) -> Examples:
        """The same with rows counted from `first`."""
        siblings = self.siblings and self.siblings._replace(first=self.siblings.first - first)
        return self._replace(targets=self.targets - first, siblings=siblings)

    @property
    def lengths(self) -> list[int]:
        return [len(query) for query in self.ids]


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


def mean_by_position(vectors: Tensor, positions: Tensor, count: int) -> Tensor:
    """Mean of the vectors at each position (count, D), by one segment sum; zero where there is none."""
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, positions, vectors)
    return sums / torch.bincount(positions, minlength=count).clamp(min=1)[:, None]


TOKENS_PER_BATCH = 4096


@dataclass
class EncodingCache:
    """Vectors that a frozen encoder has computed, in main memory, by a checksum of the texts, and the seconds that took."""

    vectors: dict[str, tuple[Tensor, float]] = field(default_factory=dict)
    seconds_saved: float = 0.0


_cache: ContextVar[EncodingCache | None] = ContextVar("cache", default=None)


@contextlib.contextmanager
def use_cache(cache: EncodingCache | None) -> Iterator[None]:
    """Encode no list of texts twice within this context. Only for an encoder that does not change and takes no prompts."""
    before = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(before)


def encode_once(enabled: bool) -> contextlib.AbstractContextManager[None]:
    """A cache for this context alone, if enabled and no cache is in use already."""
    return use_cache(EncodingCache()) if enabled and _cache.get() is None else contextlib.nullcontext()


def uncached_seconds() -> float:
    """A clock that counts cached encodings as if they were computed anew: the time of a run without a cache."""
    cache = _cache.get()
    return time.perf_counter() + (cache.seconds_saved if cache else 0.0)


def encode_with(
    function: Callable[[Tokens], Tensor],
    ids: Sequence[Ids],
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    what: str,
    progress: Progress = silent,
) -> Tensor:
    """`function` of every text, in the order given: (n, D)."""
    cache = _cache.get()
    key = hashlib.sha256(b"".join(len(text).to_bytes(8) + text.tobytes() for text in ids)).hexdigest() if cache else ""
    if cache and key in cache.vectors:
        cached, seconds = cache.vectors[key]
        cache.seconds_saved += seconds
        return cached.to(device, copy=True)
    started = time.perf_counter()
    with progress(what, total=len(ids), unit="texts") as advance, torch.no_grad():
        vectors = encode_batches(function, ids, tokenizer, device, advance) if ids else torch.empty(0, 0, device=device)
    if cache:
        copied = vectors.to("cpu", copy=True)  # which also waits for an accelerator to finish
        cache.vectors[key] = copied, time.perf_counter() - started
    return vectors


def encode_batches(
    function: Callable[[Tokens], Tensor],
    ids: Sequence[Ids],
    tokenizer: Tokenizer,
    device: torch.device,
    advance: Advance = lambda done: None,
) -> Tensor:
    """`function` of every text, at least one, in batches of like length, so that a long text pads few others: (n, D)."""
    batches, vectors = by_length([len(text) for text in ids], TOKENS_PER_BATCH), []
    for batch in batches:
        vectors.append(function(tokenizer.pad([ids[number] for number in batch], device)))
        advance(len(batch))
    return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(batches)))]


def query_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, prompted: bool = True, progress: Progress = silent) -> Tensor:
    """Vectors ready to be scored: (n, D). The model must be in evaluation mode."""
    function = (lambda tokens: model(tokens).vectors) if prompted else model.unprompted
    return encode_with(function, ids, tokenizer, model.device, what="encoding queries", progress=progress)


def selection_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """The vectors that prompts are selected by: (n, D)."""
    return encode_with(lambda tokens: model.selection_vector(tokens, model.enter(tokens)), ids, tokenizer, model.device, what="selecting")


def document_vectors(model: DSI, windows: Sequence[Sequence[Ids]], tokenizer: Tokenizer, *, progress: Progress = silent) -> Tensor:
    """Each document's vector: the unit mean of its windows' unit vectors (n, D)."""
    flat = [window for document in windows for window in document]
    owner = torch.tensor([number for number, document in enumerate(windows) for _ in document], device=model.device)
    vectors = unit(encode_with(model.unprompted, flat, tokenizer, model.device, what="encoding documents", progress=progress))
    return unit(vectors.new_zeros(len(windows), vectors.shape[1]).index_add_(0, owner, vectors))


class LowerStates(NamedTuple):
    """States entering the first prompted layer, of each query (T, D), and the selection vectors (n, D)."""

    entering: list[Tensor]
    query: Tensor

    def batch(self, numbers: Sequence[int], tokens: Tokens) -> Tensor:
        """The states of a batch, padded as its tokens are: (B, T, D)."""
        padded = self.query.new_zeros(*tokens.ids.shape, self.query.shape[1])
        for row, number in zip(padded, numbers, strict=True):
            row[: len(self.entering[number])] = self.entering[number]
        return padded


@torch.no_grad()
def lower_states(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, progress: Progress = silent) -> LowerStates:
    """Run the frozen lower layers once for every query."""
    entering: list[Tensor] = [torch.empty(0)] * len(ids)
    queries = torch.empty(len(ids), model.encoder.config.width, device=model.device)
    with progress("running frozen layers", total=len(ids), unit="queries") as advance:
        for batch in by_length([len(query) for query in ids], TOKENS_PER_BATCH):
            tokens = tokenizer.pad([ids[number] for number in batch], model.device)
            states = model.enter(tokens)  # (B, T, D)
            queries[torch.from_numpy(batch)] = model.selection_vector(tokens, states)
            for number, state in zip(batch, states, strict=True):
                entering[number] = state[: len(ids[number])].clone()
            advance(len(batch))
    return LowerStates(entering, queries)
