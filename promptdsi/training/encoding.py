"""Encode many texts at once, each in a batch of like length: query vectors, selection vectors, document vectors, states."""

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

from promptdsi.model.arrays import unit
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Tokens
from promptdsi.model.tokenizer import Ids, Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.batches import by_length

TOKENS_PER_BATCH = 4096


@dataclass
class EncodingCache:
    """Vectors one frozen encoder has made before, in main memory, by a checksum of the texts, and what making them took."""

    vectors: dict[str, tuple[Tensor, float]] = field(default_factory=dict)
    spared: float = 0.0  # seconds not spent again


_known: ContextVar[EncodingCache | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def use_cache(known: EncodingCache | None) -> Iterator[None]:
    """Within it nothing is encoded twice. Only for an encoder that is the same throughout and takes no prompts."""
    before = _known.set(known)
    try:
        yield
    finally:
        _known.reset(before)


def uncached_seconds() -> float:
    """Seconds that go on as if everything were encoded anew: what a run would take that nobody ran before."""
    known = _known.get()
    return time.perf_counter() + (known.spared if known else 0.0)


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
    known = _known.get()
    if known is None:
        return _encoded(function, ids, tokenizer, device, what, progress)
    name = hashlib.sha256(b"".join(len(one).to_bytes(8) + one.tobytes() for one in ids)).hexdigest()
    if name in known.vectors:
        vectors, seconds = known.vectors[name]
        known.spared += seconds
        return vectors.to(device, copy=True)
    started = time.perf_counter()
    vectors = _encoded(function, ids, tokenizer, device, what, progress)
    kept = vectors.to("cpu", copy=True)  # which also waits for an accelerator to be done
    known.vectors[name] = kept, time.perf_counter() - started
    return vectors


@torch.no_grad()
def _encoded(
    function: Callable[[Tokens], Tensor],
    ids: Sequence[Ids],
    tokenizer: Tokenizer,
    device: torch.device,
    what: str,
    progress: Progress,
) -> Tensor:
    lengths = [len(one) for one in ids]
    found: list[Tensor | None] = [None] * len(ids)
    with progress(what, total=len(ids), unit="texts") as advance:
        for batch in by_length(lengths, TOKENS_PER_BATCH):
            vectors = function(tokenizer.pad([ids[number] for number in batch], device))
            for number, vector in zip(batch, vectors.unbind(0), strict=True):
                found[number] = vector
            advance(len(batch))
    return torch.stack([vector for vector in found if vector is not None]) if ids else torch.empty(0, 0, device=device)


def query_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, prompted: bool = True, progress: Progress = silent) -> Tensor:
    """Vectors ready to be scored: (n, D). The model must be in evaluation mode."""
    function = (lambda tokens: model(tokens).vectors) if prompted else model.unprompted
    return encode_with(function, ids, tokenizer, device_of(model), what="encoding queries", progress=progress)


def selection_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """What prompts are chosen by: (n, D)."""
    return encode_with(
        lambda tokens: model.selection_vector(tokens, model.enter(tokens)), ids, tokenizer, device_of(model), what="selecting"
    )


def document_vectors(model: DSI, windows: Sequence[Sequence[Ids]], tokenizer: Tokenizer, *, progress: Progress = silent) -> Tensor:
    """Each document's vector: the unit mean of its windows' unit vectors (n, D)."""
    flat = [window for document in windows for window in document]
    owner = torch.tensor([number for number, document in enumerate(windows) for _ in document], device=device_of(model))
    vectors = unit(encode_with(model.unprompted, flat, tokenizer, device_of(model), what="encoding documents", progress=progress))
    return unit(vectors.new_zeros(len(windows), vectors.shape[1]).index_add_(0, owner, vectors))


class KeptStates(NamedTuple):
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
def keep_states(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, progress: Progress = silent) -> KeptStates:
    """Run the frozen lower layers once for every query."""
    entering: list[Tensor] = [torch.empty(0)] * len(ids)
    queries = torch.empty(len(ids), model.encoder.config.width, device=device_of(model))
    with progress("running frozen layers", total=len(ids), unit="queries") as advance:
        for batch in by_length([len(one) for one in ids], TOKENS_PER_BATCH):
            tokens = tokenizer.pad([ids[number] for number in batch], device_of(model))
            states = model.enter(tokens)  # (B, T, D)
            queries[torch.from_numpy(batch)] = model.selection_vector(tokens, states)
            for number, state in zip(batch, states, strict=True):
                entering[number] = state[: len(ids[number])].clone()
            advance(len(batch))
    return KeptStates(entering, queries)


def device_of(model: DSI) -> torch.device:
    return model.encoder.word.weight.device
