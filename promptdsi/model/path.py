"""The path of a query, stated once: tokens → lower layers → selection → prefix → upper layers → pooling.

Training runs it on torch tensors (`model/dsi.py`, `model/encoder.py`); the query engine runs the same functions on numpy arrays, with the
layers recorded as an ONNX graph (`engine/query_encoder.py`, `engine/graph.py`). Two-pass selection is the same path with another selection
vector, and no prompts is the same path with an empty prefix.

Letters: B batch, T tokens, D width, L prompted layers, P prefix rows per side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from promptdsi.model.arrays import array_namespace, mean_over_tokens, unit
from promptdsi.model.config import NO_PROMPT
from promptdsi.model.prompts.strategy import PromptStrategy, Selection

POOLINGS, SELECTIONS, PREFIX_SPACES = ("first", "mean"), ("single", "two-pass"), ("post", "pre")


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


class Encoded(NamedTuple):
    """Query vectors (B, D), ready to be scored against rows, and what the strategy chose for them."""

    vectors: Any
    selection: Selection


class QueryPath(ABC):
    """From tokens to query vectors. Subclasses run the layers.

    `pooling` is `first` or `mean`; `normalize` makes query vectors unit length; `selection` is `single` (by the mean of the states
    entering the first prompted layer) or `two-pass` (by the unprompted query vector); `prefix_space` says whether prompts enter after
    (`post`) or before (`pre`) the key and value projections.
    """

    strategy: PromptStrategy
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
    def padded(self, states: Any, tokens: Any) -> tuple[Any, Any | None]:
        """States as (B, T, D) and the mask of real tokens (B, T), None where nothing is padded."""

    def encode_tokens(self, tokens: Any, *, prompted: bool = True, entering: Any | None = None, query: Any | None = None) -> Encoded:
        """Query vectors; `entering` and `query` are the results of `enter` and `selection_vector`, where they are known already."""
        if not prompted or not len(self.strategy.prompts):
            return Encoded(self.unprompted(tokens), Selection(None))
        entering = self.enter(tokens) if entering is None else entering
        query = self.selection_vector(tokens, entering) if query is None else query  # (B, D)
        selection = self.select(query)
        return Encoded(self.pool_states(self.run_upper(entering, tokens, selection), tokens), selection)

    def selection_vector(self, tokens: Any, entering: Any) -> Any:
        """What prompts are chosen by: (B, D). Over real tokens only, so a query's choice does not depend on its batch."""
        if self.selection == "single":
            return mean_over_tokens(*self.padded(entering, tokens))
        return self.pool_states(self.run_upper(entering, tokens, None), tokens)

    def select(self, query: Any) -> Selection:
        """The strategy's choice for each selection vector (B, D), and which queries go without a prompt."""
        selection = self.strategy.select(query)
        hidden = self.strategy.hidden(query, selection)  # (B,) or None
        if hidden is None:
            return selection
        ids = array_namespace(hidden).where(hidden, NO_PROMPT, selection.ids)
        return selection._replace(ids=ids, hidden=hidden)

    def pool_states(self, states: Any, tokens: Any) -> Any:
        """Query vectors (B, D) from the last layer's states."""
        states, mask = self.padded(states, tokens)
        pooled = states[:, 0] if self.pooling == "first" else mean_over_tokens(states, mask)
        return unit(pooled) if self.normalize else pooled
