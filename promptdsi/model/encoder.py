"""The encoder in torch: our own loop over the library's weights, with optional key/value prefixes at chosen layers.

One class serves the BERT, RoBERTa and MPNet families: post-norm layers, learned positions, and for MPNet one relative
position bias that all layers share. Letters: B batch, T tokens, D width, H heads, P prefix rows per side.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptdsi.model.config import ACTIVATIONS, EncoderConfig, relative_buckets
from promptdsi.model.path import attention_bias, check_weights, run_layer


class Tokens(NamedTuple):
    """A padded batch. `mask` is None when nothing is padded, so that attention can take its fast path."""

    ids: Tensor  # (B, T)
    mask: Tensor | None = None  # (B, T), True for real tokens


class Dropout(NamedTuple):
    hidden: float
    attention: float


NO_DROPOUT = Dropout(0.0, 0.0)


class Layer(nn.Module):
    """The weights of one layer; query, key and value projections are one matrix."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner = config.width, config.feed_forward
        self.heads = config.heads
        kind = ACTIVATIONS[config.activation]
        self.activation = partial(getattr(F, kind.torch), **kind.options)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)


class TorchOps(NamedTuple):
    """The operations of `run_layer` on padded tensors (B, T, D)."""

    layer: Layer
    bias: Tensor | None
    dropout: Dropout

    def linear(self, name: str, states: Tensor) -> Tensor:
        return getattr(self.layer, name)(states)  # type: ignore[no-any-return]

    def first_tokens(self, states: Tensor) -> Tensor:
        return states[:, :1]

    def query_key_value(self, queries: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width, projection = states.shape[-1], self.layer.query_key_value
        if queries is states:
            query, key, value = projection(states).split(width, -1)  # (B, T, D) each
            return query, key, value
        query = F.linear(queries, projection.weight[:width], projection.bias[:width])  # (B, 1, D)
        key, value = F.linear(states, projection.weight[width:], projection.bias[width:]).split(width, -1)  # (B, T, D) each
        return query, key, value

    def project(self, side: str, prefix: Tensor) -> Tensor:
        width, projection = prefix.shape[-1], self.layer.query_key_value
        part = slice(width, 2 * width) if side == "key" else slice(2 * width, 3 * width)
        return F.linear(prefix, projection.weight[part], projection.bias[part])  # (B, P, D)

    def split_prefix(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        return prefix[:, 0], prefix[:, 1]  # (B, P, D) each

    def prepend(self, prefix: Tensor, states: Tensor) -> Tensor:
        return torch.cat([prefix, states], 1)  # (B, P + T, D)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, first_only: bool) -> Tensor:
        query, key, value = (self._split_heads(states) for states in (query, key, value))  # (B, H, T, D / H) each
        bias = self.bias[:, :, :1] if first_only and self.bias is not None else self.bias
        mixed = F.scaled_dot_product_attention(query, key, value, bias, self.dropout.attention)
        return mixed.transpose(1, 2).flatten(2)  # (B, T or 1, D)

    def _split_heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], self.layer.heads, -1).transpose(1, 2)

    def activation(self, states: Tensor) -> Tensor:
        return self.layer.activation(states)  # type: ignore[no-any-return]

    def add_norm(self, name: str, states: Tensor, residual: Tensor) -> Tensor:
        dropped = F.dropout(states, self.dropout.hidden, self.dropout.hidden > 0)
        return getattr(self.layer, name)(residual + dropped)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Embeddings and layers. Layers are numbered from 1; "the states entering layer 1" are the embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.positions, config.width)  # token type 0 is added into it: we use no other type
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.relative = nn.Embedding(config.relative_buckets, config.heads) if config.relative_buckets else None

    @property
    def dropout(self) -> Dropout:
        """The dropout of training mode; none otherwise."""
        return Dropout(self.config.dropout, self.config.attention_dropout) if self.training else NO_DROPOUT

    def freeze(self) -> None:
        """From now on no weight of the encoder learns."""
        self.requires_grad_(False)

    def embed(self, tokens: Tokens, dropout: Dropout = NO_DROPOUT) -> Tensor:
        count = tokens.ids.shape[1]
        start = self.config.position_offset
        states = self.norm(self.word(tokens.ids) + self.position.weight[start : start + count])  # (B, T, D)
        return F.dropout(states, dropout.hidden, dropout.hidden > 0)

    def run(
        self,
        states: Tensor,
        tokens: Tokens,
        *,
        first: int = 1,
        last: int | None = None,
        prefixes: Mapping[int, Tensor] | None = None,
        project: bool = False,
        hidden: Tensor | None = None,
        dropout: Dropout = NO_DROPOUT,
        first_token_only: bool = False,
    ) -> Tensor:
        """Run layers `first` to `last`; `prefixes[layer]` is (B, 2, P, D). `first_token_only` returns (B, 1, D).

        Queries that `hidden` (B,) marks do not see their prefix: they pass as if there were none.
        """
        last = self.config.layers if last is None else last
        prefixes = prefixes or {}
        biases: dict[int, Tensor | None] = {}  # by number of prefix rows
        for number in range(first, last + 1):
            prefix = prefixes.get(number)
            rows = 0 if prefix is None else prefix.shape[2]
            if rows not in biases:
                biases[rows] = attention_bias(states, states.shape[1], tokens.mask, self._relative_bias(states), rows, hidden)
            ops = TorchOps(self.layers[number - 1], biases[rows], dropout)  # type: ignore[arg-type]
            first_only = first_token_only and number == self.config.layers
            states = run_layer(ops, states, prefix=prefix, project=project, first_only=first_only)
        return states

    def _relative_bias(self, states: Tensor) -> Tensor | None:
        """MPNet's relative position bias: (1, H, T, T)."""
        if self.relative is None:
            return None
        buckets = torch.from_numpy(relative_buckets(states.shape[1], self.config.relative_buckets)).to(states.device)  # (T, T)
        return self.relative(buckets).permute(2, 0, 1)[None].to(states.dtype)  # type: ignore[no-any-return]


def encoder_from(config: EncoderConfig, weights: dict[str, Tensor]) -> Encoder:
    """An encoder from stored weights. Sizes are compared first: no memory is asked for that the weights do not fill."""
    check_weights(config, weights)
    # Random weights are drawn and dropped: on the meta device nothing would be, but torch then imports sympy for a second.
    with torch.random.fork_rng(devices=[]):
        encoder = Encoder(config)
    encoder.load_state_dict(weights, assign=True)
    return encoder.eval()
