"""Queries to vectors: the path of `model/path.py` on numpy arrays with its layers run by onnxruntime, or by the torch model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.graph import GraphPart, Session, build_graph
from promptdsi.errors import UsageError
from promptdsi.model.config import EncoderConfig, relative_buckets
from promptdsi.model.path import Encoded, Floats, Numbers, QueryPath, Selection, attention_bias, by_length
from promptdsi.model.prompts.strategy import PromptStrategy
from promptdsi.model.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from promptdsi.model.dsi import DSI

ENGINES = ("auto", "onnx", "int8", "torch")
BATCH_TOKENS = 2048  # tokens per batch, padding included: attention needs (B, H, T, T), and larger batches are not faster


class PackedTokens(NamedTuple):
    """The tokens of a batch, packed one after the other (n,), and where they are in the padded layout (B, T)."""

    ids: Ids  # (n,)
    positions: Numbers  # (n,), each token's position in its query, from 0
    lengths: Numbers  # (B,), tokens of each query
    firsts: Numbers  # (B,), each query's first token
    layout: Numbers  # (B, T), the token at each position; padding repeats the query's last token
    packed: Numbers  # (n,), each token's position among the B T
    mask: NDArray[np.bool_] | None  # (B, T), True for real tokens; None where nothing is padded

    @classmethod
    def from_ids(cls, ids: Sequence[Ids]) -> PackedTokens:
        lengths = np.array([len(query) for query in ids], np.int64)
        firsts = np.concatenate([[0], lengths.cumsum()[:-1]])
        positions = np.arange(int(lengths.max()))
        layout = firsts[:, None] + np.minimum(positions, lengths[:, None] - 1)
        mask = positions < lengths[:, None]
        packed = np.flatnonzero(mask)
        return cls(np.concatenate(ids), packed % len(positions), lengths, firsts, layout, packed, None if mask.all() else mask)


class EncodedQueries(NamedTuple):
    """Query vectors (n, D), which queries were truncated to `max_tokens`, and what the strategy chose (None without prompts)."""

    vectors: Floats
    truncated: list[bool]
    selection: Selection | None

    def selection_of(self, query: int) -> Selection | None:
        """What the strategy chose for one query."""
        chosen = self.selection
        return None if chosen is None else Selection(None, chosen.ids[query], chosen.similarity[query])  # type: ignore[index]


class QueryEncoder(ABC):
    """Tokenizer and encoder of one generation. Threads may share it."""

    tokenizer: Tokenizer
    strategy: PromptStrategy | None
    max_tokens: int
    width: int

    @abstractmethod
    def encode_ids(self, ids: Sequence[Ids], *, prompted: bool) -> Encoded:
        """One batch, as numpy arrays."""

    def encode(self, queries: Sequence[str], *, prompted: bool = True) -> EncodedQueries:
        """Query vectors, ready to be scored; without `prompted` as if the strategy had no prompts."""
        ids, truncated = self.tokenizer.encode(queries, max_tokens=self.max_tokens)
        vectors = np.empty((len(ids), self.width), np.float32)
        chosen, similarity = np.empty(len(ids), np.int64), np.empty(len(ids), np.float32)
        prompted = prompted and self.strategy is not None and len(self.strategy.prompts) > 0
        for batch in by_length([len(query) for query in ids], BATCH_TOKENS):  # similar lengths together: little padding in attention
            part = self.encode_ids([ids[query] for query in batch], prompted=prompted)
            vectors[batch] = part.vectors
            if prompted:
                assert part.selection.ids is not None and part.selection.similarity is not None
                chosen[batch], similarity[batch] = part.selection.ids, part.selection.similarity
        return EncodedQueries(vectors, truncated, Selection(None, chosen, similarity) if prompted else None)


class TorchEncoder(QueryEncoder):
    """The model that training uses, on any device. `threads` is how many a product may use."""

    def __init__(self, model: DSI, tokenizer: Tokenizer, *, max_tokens: int, threads: int | None = None) -> None:
        self.model, self.tokenizer, self.strategy, self.max_tokens, self.threads = model, tokenizer, model.strategy, max_tokens, threads
        self.width = model.encoder.config.width

    def encode_ids(self, ids: Sequence[Ids], *, prompted: bool) -> Encoded:
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of products that this thread calls
        with torch.no_grad():
            tokens = self.tokenizer.pad(ids, self.model.encoder.word.weight.device)
            vectors, selection = self.model.encode_tokens(tokens, prompted=prompted)
        chosen, similarity = (None if part is None else part.cpu().numpy() for part in (selection.ids, selection.similarity))
        return Encoded(vectors.cpu().numpy(), Selection(None, chosen, similarity))


class EncoderSessions:
    """The encoder's layers, ready to run: `lower` up to the first prompted one, `upper` from there. Generations may share it.

    `threads` is how many a product may use; `int8` computes products in int8 (faster, approximate).
    """

    def __init__(
        self,
        config: EncoderConfig,
        weights: Mapping[str, Any],
        prompt_layers: tuple[int, ...],
        *,
        pooling: str,
        prefix_space: str = "post",
        threads: int | None = None,
        int8: bool = False,
    ) -> None:
        self.config, self.weights = config, weights
        first, first_only = min(prompt_layers, default=config.layers + 1), pooling == "first"

        def session(part: GraphPart) -> Session:
            return Session(build_graph(config, weights, part, int8=int8), threads)

        self.lower = session(GraphPart(1, first - 1, embeds=True, first_only=first_only and not prompt_layers))
        upper = GraphPart(first, config.layers, prefixed=prompt_layers, project=prefix_space == "pre", first_only=first_only)
        self.upper = session(upper) if prompt_layers else None


class OnnxEncoder(QueryEncoder, QueryPath):
    """The encoder without torch, on the CPU; the keywords are those of `QueryPath`."""

    def __init__(
        self,
        sessions: EncoderSessions,
        tokenizer: Tokenizer,
        strategy: PromptStrategy | None,
        *,
        max_tokens: int,
        pooling: str,
        normalize: bool,
        selection: str = "single",
        prefix_space: str = "post",
    ) -> None:
        self.sessions, self.tokenizer, self.strategy, self.max_tokens = sessions, tokenizer, strategy, max_tokens
        self.pooling, self.normalize, self.selection, self.prefix_space = pooling, normalize, selection, prefix_space
        self.width = sessions.config.width

    def encode_ids(self, ids: Sequence[Ids], *, prompted: bool) -> Encoded:
        return self.encode_tokens(PackedTokens.from_ids(ids), prompted=prompted)

    def enter(self, tokens: PackedTokens) -> Floats:
        weights, offset = self.sessions.weights, self.sessions.config.position_offset
        words, positions = weights["word.weight"][tokens.ids], weights["position.weight"][tokens.positions + offset]
        return self._run(self.sessions.lower, tokens, {"words": words, "positions": positions})  # (n, D)

    def run_upper(self, entering: Floats, tokens: PackedTokens, selection: Selection | None) -> Floats:
        if self.sessions.upper is None or self.strategy is None:
            return entering
        if selection is None:  # the graph takes a prefix in any case: hide it
            count = len(tokens.firsts)
            shape = (count, *self.strategy.prompts[0].shape[1:])
            selection = Selection(np.zeros(shape, np.float32), hidden=np.ones(count, bool))
        prefix = np.asarray(selection.prefix, np.float32)  # (B, L, 2, P, D)
        layers = enumerate(self.strategy.prompt_layers)
        inputs = {f"prefix_{layer}": np.ascontiguousarray(prefix[:, position]) for position, layer in layers}
        return self._run(self.sessions.upper, tokens, inputs | {"states": entering}, prefix.shape[3], selection.hidden)  # (B or n, D)

    def unprompted(self, tokens: PackedTokens) -> Floats:
        vectors: Floats = self.pool_states(self.run_upper(self.enter(tokens), tokens, None), tokens)
        return vectors

    def mean_over_tokens(self, states: Floats, tokens: PackedTokens) -> Floats:
        return np.asarray(np.add.reduceat(states, tokens.firsts) / tokens.lengths[:, None], np.float32)

    def _run(
        self, session: Session, tokens: PackedTokens, inputs: dict[str, Any], prefix_rows: int = 0, hidden: Any | None = None
    ) -> Floats:
        inputs |= {"layout": tokens.layout, "packed": tokens.packed, "first_tokens": tokens.firsts}
        if "bias" in session.inputs:
            inputs["bias"] = self._bias(tokens)
        if "prefix_bias" in session.inputs:
            inputs["prefix_bias"] = self._bias(tokens, prefix_rows, hidden)
        states: Floats = session.run(["out"], {name: inputs[name] for name in session.inputs})[0]
        return states

    def _bias(self, tokens: PackedTokens, prefix_rows: int = 0, hidden: Any | None = None) -> Floats:
        count, buckets, weights = tokens.layout.shape[1], self.sessions.config.relative_buckets, self.sessions.weights
        relative = weights["relative.weight"][relative_buckets(count, buckets)].transpose(2, 0, 1)[None] if buckets else None
        bias: Floats | None = attention_bias(weights["norm.bias"], count, tokens.mask, relative, prefix_rows, hidden)
        return np.zeros((1, 1, 1, prefix_rows + count), np.float32) if bias is None else bias


def resolve_engine(engine: str, device: str) -> str:
    """The engine that `auto` stands for: torch where another device than the CPU is named."""
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    if engine in ("onnx", "int8") and device not in ("auto", "cpu"):
        raise UsageError(f"the engine {engine} runs on the CPU only; use --engine torch with --device {device}")
    return engine if engine != "auto" else "onnx" if device in ("auto", "cpu") else "torch"
