"""Texts to vectors by a frozen encoder, in batches of like length; encoded once where a cache is in use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Tokens
from promptdsi.model.path import Numbers, by_length, unit
from promptdsi.model.tokenizer import Ids, Tokenizer, lengths_of
from promptdsi.progress import Advance, Progress, silent
from promptdsi.training.checkpoint import checksum_of

T = TypeVar("T")


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the accelerator has it; the CPU computes in float32."""
    supported = (device.type == "cuda" and torch.cuda.is_bf16_supported()) or device.type == "mps"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=supported)


def mean_by_position(vectors: Tensor, positions: Tensor, count: int) -> Tensor:
    """Mean of the vectors at each position (count, D), by one segment sum; zero where there is none."""
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, positions, vectors)
    return sums / torch.bincount(positions, minlength=count).clamp(min=1)[:, None]


# On the CPU each batch has a thread to itself: small products gain little from sharing one, and a core that is busy with something else
# delays its own batch only.
TOKENS_PER_BATCH = 1024
TOKENS_PER_ACCELERATOR_BATCH = 4096
LEAST_INT8_TOKENS = 100_000  # fewer are encoded in less time than int8 weights are made


@dataclass
class EncodingCache:
    """What was computed with a frozen encoder, in main memory, by a checksum of the texts, and the seconds that took."""

    results: dict[str, tuple[Any, float]] = field(default_factory=dict)
    seconds_saved: float = 0.0


_cache: ContextVar[EncodingCache | None] = ContextVar("cache", default=None)


@contextlib.contextmanager
def use_cache(cache: EncodingCache | None) -> Iterator[None]:
    """Encode no list of texts twice without prompts within this context. Only for an encoder that does not change."""
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


def compute_once(key: str, compute: Callable[[], T]) -> T:
    """What `compute` gives; where a cache is in use, it is called once for each key."""
    cache = _cache.get()
    if cache is None:
        return compute()
    if key in cache.results:
        cache.seconds_saved += cache.results[key][1]
    else:
        started = time.perf_counter()
        result = compute()
        cache.results[key] = result, time.perf_counter() - started
    return cache.results[key][0]  # type: ignore[no-any-return]


def vectors_once(kind: str, ids: Sequence[Ids], device: torch.device, compute: Callable[[], Tensor]) -> Tensor:
    """The vectors of texts (n, D); a cache tells them apart by kind and texts, and stores a copy in main memory."""
    if _cache.get() is None:
        return compute()
    cached = compute_once(kind + checksum_of(len(ids), (lengths_of(ids), *ids)), lambda: compute().to("cpu", copy=True))
    return cached.to(device, copy=True)


def encode_with(
    function: Callable[[Tokens], Tensor],
    ids: Sequence[Ids],
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    what: str,
    kind: str | None = "",
    progress: Progress = silent,
) -> Tensor:
    """`function` of every text, in the order given: (n, D). A cache tells functions apart by `kind`; without one nothing is cached."""

    def compute() -> Tensor:
        with progress(what, total=len(ids), unit="texts") as advance, torch.no_grad():
            return encode_batches(function, ids, tokenizer, device, advance) if len(ids) else torch.empty(0, 0, device=device)

    return compute() if kind is None else vectors_once(kind, ids, device, compute)


def encode_batches(
    function: Callable[[Tokens], Tensor],
    ids: Sequence[Ids],
    tokenizer: Tokenizer,
    device: torch.device,
    advance: Advance = lambda done: None,
) -> Tensor:
    """`function` of every text, at least one, in batches of like length, so that a long text pads few others: (n, D)."""
    vectors = torch.empty(0)

    def compute(numbers: Numbers) -> Tensor:
        with autocast(device):
            return function(tokenizer.pad([ids[number] for number in numbers], device)).float()

    for batch, part in each_batch(compute, ids, device):
        if not len(vectors):  # a list of small arrays would take three times the memory on the way, and leave holes
            vectors = part.new_empty(len(ids), *part.shape[1:])
        vectors[torch.from_numpy(batch)] = part
        advance(len(batch))
    return vectors


def each_batch(function: Callable[[Numbers], T], ids: Sequence[Ids], device: torch.device) -> Iterator[tuple[Numbers, T]]:
    """Batches of texts by their numbers, in a fixed order, with `function` of each; on the CPU several at once.

    Not where gradients are needed: dropout must draw in a fixed order too.
    """
    at_once = torch.get_num_threads() if device.type == "cpu" and not torch.is_grad_enabled() else 1
    batches = by_length(lengths_of(ids), TOKENS_PER_BATCH if device.type == "cpu" else TOKENS_PER_ACCELERATOR_BATCH)
    if at_once == 1 or len(batches) == 1:
        yield from ((batch, function(batch)) for batch in batches)
        return

    def compute(batch: Numbers) -> T:
        with torch.no_grad():  # which each thread decides for itself
            return function(batch)

    pool = ThreadPoolExecutor(at_once, thread_name_prefix="encoding", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from zip(batches, pool.map(compute, batches), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def query_vectors(
    model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, prompted: bool = True, int8: bool = False, progress: Progress = silent
) -> Tensor:
    """Vectors ready to be scored: (n, D). The model must be in evaluation mode."""
    keywords: dict[str, Any] = {"what": "encoding queries", "progress": progress}
    if prompted and len(model.strategy.prompts):
        return encode_with(lambda tokens: model(tokens).vectors, ids, tokenizer, model.device, kind=None, **keywords)
    return encode_unprompted(model, ids, tokenizer, int8=int8, **keywords)


def encode_unprompted(
    model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer, *, int8: bool, kind: str | None = "", **keywords: Any
) -> Tensor:
    """Vectors without prompts (n, D): exact, or by int8 products where asked for, on a CPU, for as many texts as make it pay."""
    if int8 and model.device.type == "cpu" and lengths_of(ids).sum() >= LEAST_INT8_TOKENS:
        kind = None if kind is None else f"int8 {kind}"
        return encode_with(int8_encoder(model, tokenizer), ids, tokenizer, model.device, kind=kind, **keywords)
    return encode_with(model.unprompted, ids, tokenizer, model.device, kind=kind, **keywords)


def int8_encoder(model: DSI, tokenizer: Tokenizer) -> Callable[[Tokens], Tensor]:
    """The model's encoder as the query engine runs it, by int8 products, with one thread for each call."""
    from promptdsi.engine.query_encoder import EncoderSessions, OnnxEncoder

    weights = {name: weight.detach().numpy() for name, weight in model.encoder.state_dict().items()}
    sessions = EncoderSessions(model.encoder.config, weights, (), pooling=model.pooling, threads=1, int8=True)
    encoder = OnnxEncoder(sessions, tokenizer, None, max_tokens=0, pooling=model.pooling, normalize=model.normalize)

    def encode(tokens: Tokens) -> Tensor:
        lengths = [tokens.ids.shape[1]] * len(tokens.ids) if tokens.mask is None else tokens.mask.sum(1).tolist()
        ids = [row[:length].numpy() for row, length in zip(tokens.ids, lengths, strict=True)]
        return torch.from_numpy(encoder.encode_ids(ids, prompted=False).vectors)

    return encode


def selection_vectors(model: DSI, ids: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """The vectors that prompts are selected by: (n, D)."""
    keywords: dict[str, Any] = {
        "what": "selecting",
        "kind": None,
    }  # of all queries of D0 they are gigabytes, and few layers compute them
    return encode_with(lambda tokens: model.selection_vector(tokens, model.enter(tokens)), ids, tokenizer, model.device, **keywords)


def document_vectors(model: DSI, windows: Sequence[Sequence[Ids]], tokenizer: Tokenizer, *, progress: Progress = silent) -> Tensor:
    """Each document's vector: the unit mean of its windows' unit vectors (n, D)."""
    flat = [window for document in windows for window in document]
    return window_means(model, flat, torch.tensor([len(document) for document in windows]), tokenizer, progress=progress)


def window_means(model: DSI, flat: Sequence[Ids], counts: Tensor, tokenizer: Tokenizer, *, progress: Progress = silent) -> Tensor:
    """The same from the windows of all documents and how many each has (n,)."""

    def compute() -> Tensor:
        keywords: dict[str, Any] = {"what": "encoding documents", "kind": None, "progress": progress}
        vectors = unit(encode_unprompted(model, flat, tokenizer, int8=model.int8, **keywords))
        owner = torch.arange(len(counts)).repeat_interleave(counts).to(vectors.device)
        return unit(vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, owner, vectors))

    kind = f"documents {'int8' if model.int8 else ''} {checksum_of(len(counts), [counts])} "
    return vectors_once(kind, flat, model.device, compute)  # the documents' alone: their windows' would be many times as many


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

    def compute(batch: Numbers) -> tuple[Tensor, Tensor]:
        tokens = tokenizer.pad([ids[number] for number in batch], model.device)
        states = model.enter(tokens)  # (B, T, D)
        return states, model.selection_vector(tokens, states)

    with progress("running frozen layers", total=len(ids), unit="queries") as advance:
        for batch, (states, selecting) in each_batch(compute, ids, model.device):
            queries[torch.from_numpy(batch)] = selecting
            for number, state in zip(batch, states, strict=True):
                entering[number] = state[: len(ids[number])].clone()
            advance(len(batch))
    return LowerStates(entering, queries)
