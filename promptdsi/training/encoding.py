"""Encode many texts, each in a batch of similar length: query vectors, selection vectors, document vectors, lower-layer states."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Tokens
from promptdsi.model.path import Ids, Tokenizer, by_length, unit
from promptdsi.progress import Progress, silent

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
    vectors = _encode(function, ids, tokenizer, device, what, progress)
    if cache:
        copied = vectors.to("cpu", copy=True)  # which also waits for an accelerator to finish
        cache.vectors[key] = copied, time.perf_counter() - started
    return vectors


@torch.no_grad()
def _encode(
    function: Callable[[Tokens], Tensor], ids: Sequence[Ids], tokenizer: Tokenizer, device: torch.device, what: str, progress: Progress
) -> Tensor:
    encoded: list[Tensor | None] = [None] * len(ids)
    with progress(what, total=len(ids), unit="texts") as advance:
        for batch in by_length([len(text) for text in ids], TOKENS_PER_BATCH):
            vectors = function(tokenizer.pad([ids[number] for number in batch], device))
            for number, vector in zip(batch, vectors.unbind(0), strict=True):
                encoded[number] = vector
            advance(len(batch))
    return torch.stack([vector for vector in encoded if vector is not None]) if ids else torch.empty(0, 0, device=device)


def query_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, prompted: bool = True, progress: Progress = silent) -> Tensor:
    """Vectors ready to be scored: (n, D). The model must be in evaluation mode."""
    function = (lambda tokens: model(tokens).vectors) if prompted else model.unprompted
    return encode_with(function, ids, tokenizer, device_of(model), what="encoding queries", progress=progress)


def selection_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """The vectors that prompts are selected by: (n, D)."""
    return encode_with(
        lambda tokens: model.selection_vector(tokens, model.enter(tokens)), ids, tokenizer, device_of(model), what="selecting"
    )


def document_vectors(model: DSI, windows: Sequence[Sequence[Ids]], tokenizer: Tokenizer, *, progress: Progress = silent) -> Tensor:
    """Each document's vector: the unit mean of its windows' unit vectors (n, D)."""
    flat = [window for document in windows for window in document]
    owner = torch.tensor([number for number, document in enumerate(windows) for _ in document], device=device_of(model))
    vectors = unit(encode_with(model.unprompted, flat, tokenizer, device_of(model), what="encoding documents", progress=progress))
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
    queries = torch.empty(len(ids), model.encoder.config.width, device=device_of(model))
    with progress("running frozen layers", total=len(ids), unit="queries") as advance:
        for batch in by_length([len(query) for query in ids], TOKENS_PER_BATCH):
            tokens = tokenizer.pad([ids[number] for number in batch], device_of(model))
            states = model.enter(tokens)  # (B, T, D)
            queries[torch.from_numpy(batch)] = model.selection_vector(tokens, states)
            for number, state in zip(batch, states, strict=True):
                entering[number] = state[: len(ids[number])].clone()
            advance(len(batch))
    return LowerStates(entering, queries)


def device_of(model: DSI) -> torch.device:
    return model.encoder.word.weight.device
