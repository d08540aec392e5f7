"""The encoder: our own loop over the library's weights, with optional key/value prefixes at chosen layers.

One class serves the BERT, RoBERTa and MPNet families: post-norm layers, learned positions, and for MPNet one relative
position bias that all layers share. Letters: B batch, T tokens, D width, H heads, P prefix rows per side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptdsi.model.config import EncoderConfig


class Tokens(NamedTuple):
    """A padded batch. `mask` is None when nothing is padded, so that attention can take its fast path."""

    ids: Tensor  # (B, T)
    mask: Tensor | None = None  # (B, T), True for real tokens


class Layer(nn.Module):
    """Attention and feed-forward of one layer; query, key and value projections are one matrix."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner = config.width, config.feed_forward
        self.heads = config.heads
        self.activation = ACTIVATIONS[config.activation]
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, states: Tensor, bias: Tensor | None, prefix: Tensor | None, dropout: Dropout, first_only: bool) -> Tensor:
        asking = states[:, :1] if first_only else states  # the last layer asks only for what the pooling reads
        attended = self._attention(asking, states, bias, prefix, dropout.attention)
        middle = self.attention_norm(asking + F.dropout(self.attention_out(attended), dropout.hidden, dropout.hidden > 0))
        fed = self.down(self.activation(self.up(middle)))
        return self.output_norm(middle + F.dropout(fed, dropout.hidden, dropout.hidden > 0))  # type: ignore[no-any-return]

    def _attention(self, asking: Tensor, states: Tensor, bias: Tensor | None, prefix: Tensor | None, dropout: float) -> Tensor:
        width = states.shape[-1]
        if asking is states:
            query, key, value = self.query_key_value(states).split(width, -1)  # (B, T, D) each
        else:
            weight, offset = self.query_key_value.weight, self.query_key_value.bias
            query = F.linear(asking, weight[:width], offset[:width])  # (B, 1, D)
            key, value = F.linear(states, weight[width:], offset[width:]).split(width, -1)  # (B, T, D) each
        if prefix is not None:
            key = torch.cat([prefix[:, 0], key], 1)  # (B, P + T, D)
            value = torch.cat([prefix[:, 1], value], 1)  # (B, P + T, D)
        mixed = F.scaled_dot_product_attention(self._split(query), self._split(key), self._split(value), bias, dropout)
        return mixed.transpose(1, 2).flatten(2)  # (B, T or 1, D)

    def _split(self, tensor: Tensor) -> Tensor:
        return tensor.view(*tensor.shape[:-1], self.heads, -1).transpose(1, 2)  # (B, H, T, D / H)

    def project_prefix(self, prefix: Tensor) -> Tensor:
        """A prefix given before the projection, as the paper's formula has it: through W_k and W_v, biases included."""
        width = prefix.shape[-1]
        weight, offset = self.query_key_value.weight, self.query_key_value.bias
        key = F.linear(prefix[:, 0], weight[width : 2 * width], offset[width : 2 * width])  # (B, P, D)
        value = F.linear(prefix[:, 1], weight[2 * width :], offset[2 * width :])  # (B, P, D)
        return torch.stack([key, value], 1)  # (B, 2, P, D)


ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"gelu": F.gelu, "relu": F.relu, "gelu_new": partial(F.gelu, approximate="tanh")}


class Dropout(NamedTuple):
    hidden: float
    attention: float


NO_DROPOUT = Dropout(0.0, 0.0)


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
        """What training mode drops; nothing otherwise."""
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
                biases[rows] = self._bias(states, tokens.mask, rows, hidden)
            only_first = first_token_only and number == self.config.layers
            bias = biases[rows]
            if only_first and bias is not None:
                bias = bias[:, :, :1]
            states = self.layers[number - 1](states, bias, prefix, dropout, only_first)
        return states

    def _bias(self, states: Tensor, mask: Tensor | None, prefix_rows: int, hidden: Tensor | None) -> Tensor | None:
        """What is added to attention scores: padding and relative positions; 0 for prefix columns, which have no position."""
        bias: Tensor | None = None
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=states.dtype, device=states.device).masked_fill_(~mask, -torch.inf)
            bias = bias[:, None, None, :]  # (B, 1, 1, T)
        if self.relative is not None:
            buckets = relative_buckets(states.shape[1], self.config.relative_buckets, states.device)  # (T, T)
            relative = self.relative(buckets).permute(2, 0, 1)[None].to(states.dtype)  # (1, H, T, T)
            bias = relative if bias is None else relative + bias
        if hidden is not None and bias is None:
            bias = states.new_zeros(1, 1, 1, states.shape[1])
        if bias is not None and prefix_rows:
            bias = F.pad(bias, (prefix_rows, 0))
            if hidden is not None:
                bias = bias.expand(len(hidden), -1, -1, -1).clone()
                bias[hidden, :, :, :prefix_rows] = -torch.inf
        return bias


def relative_buckets(count: int, buckets: int, device: torch.device, max_distance: int = 128) -> Tensor:
    """T5's buckets, as MPNet uses them: half for each direction, half of those exact, the rest logarithmic."""
    place = torch.arange(count, device=device)
    distance = place[:, None] - place[None, :]  # (T, T), query minus key
    half = buckets // 2
    exact = half // 2
    away = distance.abs()
    far = exact + (torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (half - exact)).long()
    return (distance < 0).long() * half + torch.where(away < exact, away, far.clamp(max=half - 1))


def mean_over_tokens(states: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over real tokens, special ones included: (B, T, D) → (B, D)."""
    if mask is None:
        return states.mean(1)
    weight = mask.to(states.dtype)[:, :, None]  # (B, T, 1)
    return (states * weight).sum(1) / weight.sum(1)
