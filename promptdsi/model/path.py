"""The path of a query, stated once, with what it needs besides torch.

Tokens → lower layers → selection → prefix → upper layers → pooling. Training runs it on torch tensors (`model/dsi.py`,
`model/encoder.py`); the query engine runs the same functions on numpy arrays, with the layers recorded as an ONNX graph
(`engine/query_encoder.py`, `engine/graph.py`). Two-pass selection is the same path with another selection vector;
without prompts all layers run at once. Array functions are written against the array API, which numpy and torch share.

Letters: B batch, T tokens, D width, L prompted layers, P prefix rows per side.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptdsi.model.config import NO_PROMPT, EncoderConfig
from promptdsi.model.tokenizer_checks import library_errors, load_tokenizer

if TYPE_CHECKING:
    import torch

    from promptdsi.model.encoder import Tokens
    from promptdsi.model.prompts.strategy import PromptStrategy

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
ArrayT = TypeVar("ArrayT")  # numpy array or torch tensor
POOLINGS, SELECTIONS, PREFIX_SPACES = ("first", "mean"), ("single", "two-pass"), ("post", "pre")
EPS = 1e-6  # least length that vectors are divided by


# Texts to batches of token ids -------------------------------------------------------------------------------------------


class Tokenized(NamedTuple):
    """Ids of each text, special tokens included, and whether it was truncated."""

    ids: list[Ids]
    truncated: list[bool]


class Tokenizer:
    """A tokenizer from its `tokenizer.json`, which is also how an index stores it; ValueError unless it is of a kind we know.

    No token may have an id of `vocabulary` or more.
    """

    def __init__(self, json: str, pad_id: int, vocabulary: int | None = None) -> None:
        self.json, self.pad_id, self._fast = json, pad_id, load_tokenizer(json, vocabulary)
        self._fast.no_padding()

    def encode(self, texts: Sequence[str], *, max_tokens: int) -> Tokenized:
        """Ids of each text, truncated on the right to `max_tokens` including special tokens."""
        self._fast.enable_truncation(max_tokens)
        with library_errors():
            encodings = self._fast.encode_batch(list(texts))
        ids = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return Tokenized(ids, [bool(encoding.overflowing) for encoding in encodings])

    def windows(self, texts: Sequence[str], *, size: int, most: int) -> tuple[list[list[Ids]], int]:
        """Each text as consecutive windows of `size` tokens, at most `most`; and how many texts were longer than that."""
        self._fast.enable_truncation(size)
        with library_errors():
            windows = [[encoding, *encoding.overflowing] for encoding in self._fast.encode_batch(list(texts))]
        ids = [[np.array(window.ids, dtype=np.int32) for window in text[:most]] for text in windows]
        return ids, sum(len(text) > most for text in windows)

    def token_starts(self, texts: Sequence[str]) -> list[Numbers]:
        """Where each token of each text begins, in characters; nothing is truncated, and special tokens do not count."""
        self._fast.no_truncation()
        with library_errors():
            encodings = self._fast.encode_batch(list(texts), add_special_tokens=False)
        return [np.array([start for start, _ in encoding.offsets], dtype=np.int64) for encoding in encodings]

    def pad(self, ids: Sequence[Ids], device: torch.device | str = "cpu") -> Tokens:
        """One batch, padded on the right to its longest text."""
        import torch  # only here: the query engine tokenizes without it

        from promptdsi.model.encoder import Tokens

        lengths = np.array([len(text) for text in ids])
        longest = int(lengths.max())
        batch = np.full((len(ids), longest), self.pad_id, dtype=np.int64)  # (B, T)
        for row, text in zip(batch, ids, strict=True):
            row[: len(text)] = text
        mask = None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None]).to(device)  # (B, T)
        return Tokens(torch.from_numpy(batch).to(device), mask)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def by_length(lengths: Sequence[int], tokens: int) -> list[Numbers]:
    """All examples once, longest first, about `tokens` tokens a batch: for encoding, where order does not matter."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


# Functions of numpy arrays and torch tensors -----------------------------------------------------------------------------


def array_namespace(array: Any) -> Any:
    """The array API functions for an array's library."""
    if isinstance(array, np.ndarray):  # numpy has them itself; the compatible namespace would import 200 modules before the first answer
        return np
    from array_api_compat import torch as namespace

    return namespace


def unit(vectors: ArrayT) -> ArrayT:
    """Vectors scaled to length 1, along the last axis."""
    xp = array_namespace(vectors)
    return vectors / xp.clip(xp.linalg.vector_norm(vectors, axis=-1, keepdims=True), EPS, None)  # type: ignore[no-any-return]


def attention_bias(
    like: Any, count: int, mask: Any | None, relative: Any | None, prefix_rows: int = 0, hidden: Any | None = None
) -> Any | None:
    """What is added to attention scores: −inf for padding, relative positions, 0 for prefix columns; None where that is nothing.

    `like` gives library, dtype and device, `count` is T; `mask` (B, T) is True for real tokens, `relative` is (1, H, T, T). Queries that
    `hidden` (B,) marks do not see their prefix, so they pass as if there were none.
    """
    xp = array_namespace(like)

    def minus_infinity(where: Any) -> Any:
        bias = xp.zeros(where.shape, dtype=like.dtype, device=like.device)
        bias[where] = -math.inf
        return bias[:, None, None, :]  # (B, 1, 1, columns)

    bias = relative
    if mask is not None:
        padding = minus_infinity(~mask)
        bias = padding if bias is None else bias + padding
    if not prefix_rows or (bias is None and hidden is None):
        return bias
    if bias is None:
        bias = xp.zeros((1, 1, 1, count), dtype=like.dtype, device=like.device)
    if hidden is None:
        prefix = xp.zeros((1, 1, 1, prefix_rows), dtype=like.dtype, device=like.device)
    else:
        prefix = minus_infinity(xp.broadcast_to(hidden[:, None], (len(hidden), prefix_rows)))
    shape = np.broadcast_shapes(tuple(bias.shape[:3]), tuple(prefix.shape[:3]))
    return xp.concat([xp.broadcast_to(part, (*shape, part.shape[3])) for part in (prefix, bias)], axis=3)


# Layers ------------------------------------------------------------------------------------------------------------------


class LayerOps(Protocol):
    """The operations of one layer: computed at once by torch, recorded by the graph builder."""

    def linear(self, name: str, states: Any) -> Any: ...
    def first_tokens(self, states: Any) -> Any: ...
    def query_key_value(self, queries: Any, states: Any) -> tuple[Any, Any, Any]: ...
    def project(self, side: str, prefix: Any) -> Any: ...
    def split_prefix(self, prefix: Any) -> tuple[Any, Any]: ...
    def prepend(self, prefix: Any, states: Any) -> Any: ...
    def attention(self, query: Any, key: Any, value: Any, first_only: bool) -> Any: ...
    def activation(self, states: Any) -> Any: ...
    def add_norm(self, name: str, states: Any, residual: Any) -> Any: ...


def run_layer(ops: LayerOps, states: Any, *, prefix: Any | None = None, project: bool = False, first_only: bool = False) -> Any:
    """One post-norm layer. `prefix` holds P more keys and P more values per query; `project` puts it through W_k and W_v first.

    With `first_only` each query's first token alone is computed: the last layer's other tokens are not read by first-token pooling.
    """
    queries = ops.first_tokens(states) if first_only else states
    query, key, value = ops.query_key_value(queries, states)
    if prefix is not None:
        prefix_key, prefix_value = ops.split_prefix(prefix)
        if project:
            prefix_key, prefix_value = ops.project("key", prefix_key), ops.project("value", prefix_value)
        key, value = ops.prepend(prefix_key, key), ops.prepend(prefix_value, value)
    attended = ops.linear("attention_out", ops.attention(query, key, value, first_only))
    middle = ops.add_norm("attention_norm", attended, queries)
    inner = ops.activation(ops.linear("up", middle))
    return ops.add_norm("output_norm", ops.linear("down", inner), middle)


def check_weights(config: EncoderConfig, weights: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are the weights of such an encoder, by names and shapes; no weight is read."""
    width, inner = config.width, config.feed_forward
    sizes = {"query_key_value": (3 * width, width), "attention_out": (width, width), "up": (inner, width), "down": (width, inner)}
    expected: dict[str, tuple[int, ...]] = {"word.weight": (config.vocabulary, width), "position.weight": (config.positions, width)}
    for name in ("norm", *(f"layers.{layer}.{norm}_norm" for layer in range(config.layers) for norm in ("attention", "output"))):
        expected |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for layer in range(config.layers):
        for name, shape in sizes.items():
            expected |= {f"layers.{layer}.{name}.weight": shape, f"layers.{layer}.{name}.bias": shape[:1]}
    if config.relative_buckets:
        expected["relative.weight"] = (config.relative_buckets, config.heads)
    if width % config.heads:
        raise ValueError(f"{config.heads} heads do not share a width of {width}")
    for name, size in expected.items():
        if name not in weights or weights[name].shape != size:
            raise ValueError(f"the weight {name} is not {' × '.join(map(str, size))} numbers")
    if other := weights.keys() - expected.keys():
        raise ValueError(f"the weight {min(other)} belongs to no such encoder")


# The path ----------------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """What a strategy chose for a batch.

    `prefix` is (B, L, 2, P, D), or None for no prompt; `ids` (B,) is the prompt each query chose (NO_PROMPT where it goes without) and
    `similarity` (B,) the cosine of its key; `loss` pulls keys to queries (0 where keys do not learn so); `hidden` (B,) marks queries that
    go without a prompt.
    """

    prefix: Any | None
    ids: Any | None = None
    similarity: Any | None = None
    loss: Any = 0.0
    hidden: Any | None = None


class Encoded(NamedTuple):
    """Query vectors (B, D), ready to be scored against rows, and what the strategy chose for them."""

    vectors: Any
    selection: Selection


class QueryPath(ABC):
    """From tokens to query vectors. Subclasses run the layers; without prompts a subclass may have no strategy.

    `pooling` is `first` or `mean`; `normalize` makes query vectors unit length; `selection` is `single` (by the mean of the states
    entering the first prompted layer) or `two-pass` (by the unprompted query vector); `prefix_space` says whether prompts enter after
    (`post`) or before (`pre`) the key and value projections.
    """

    strategy: PromptStrategy | None
    pooling: str
    normalize: bool
    selection: str
    prefix_space: str

    @abstractmethod
    def enter(self, tokens: Any) -> Any:
        """The states entering the first prompted layer."""

    @abstractmethod
    def run_upper(self, entering: Any, tokens: Any, selection: Selection | None) -> Any:
        """The states after the first prompted layer and those above it; without a selection no query sees a prefix."""

    @abstractmethod
    def unprompted(self, tokens: Any) -> Any:
        """Query vectors without any prompt."""

    @abstractmethod
    def mean_over_tokens(self, states: Any, tokens: Any) -> Any:
        """The mean over each query's real tokens, special ones included: (B, D)."""

    def encode_tokens(self, tokens: Any, *, prompted: bool = True, entering: Any | None = None, query: Any | None = None) -> Encoded:
        """Query vectors; `entering` and `query` are the results of `enter` and `selection_vector`, where they are known already."""
        if not prompted or self.strategy is None or not len(self.strategy.prompts):
            return Encoded(self.unprompted(tokens), Selection(None))
        entering = self.enter(tokens) if entering is None else entering
        query = self.selection_vector(tokens, entering) if query is None else query  # (B, D)
        selection = self.select(query)
        return Encoded(self.pool_states(self.run_upper(entering, tokens, selection), tokens), selection)

    def selection_vector(self, tokens: Any, entering: Any) -> Any:
        """What prompts are chosen by: (B, D). Over real tokens only, so a query's choice does not depend on its batch."""
        if self.selection == "single":
            return self.mean_over_tokens(entering, tokens)
        return self.pool_states(self.run_upper(entering, tokens, None), tokens)

    def select(self, query: Any) -> Selection:
        """The strategy's choice for each selection vector (B, D), and which queries go without a prompt."""
        assert self.strategy is not None, "a path without a strategy selects nothing"
        selection = self.strategy.select(query)
        hidden = self.strategy.hidden(query, selection)  # (B,) or None
        if hidden is None:
            return selection
        return selection._replace(ids=array_namespace(hidden).where(hidden, NO_PROMPT, selection.ids), hidden=hidden)

    def pool_states(self, states: Any, tokens: Any) -> Any:
        """Query vectors (B, D) from the last layer's states: of each query's first token alone, or of all."""
        pooled = states.reshape(-1, states.shape[-1]) if self.pooling == "first" else self.mean_over_tokens(states, tokens)
        return unit(pooled) if self.normalize else pooled
