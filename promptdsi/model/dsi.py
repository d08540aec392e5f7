"""The model in torch: encoder, prompts and rows. The path a query takes through it is `model/path.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from promptdsi.errors import UsageError
from promptdsi.model.encoder import Encoder, Tokens
from promptdsi.model.path import POOLINGS, PREFIX_SPACES, SELECTIONS, Encoded, QueryPath, Selection
from promptdsi.model.prompts.strategy import PromptStrategy
from promptdsi.model.rows import Rows


class DSI(QueryPath, nn.Module):
    """A differentiable search index. `scale` multiplies scores in training, which encodes texts by `int8` products if asked to; the other
    keywords are those of `QueryPath`."""

    strategy: PromptStrategy

    def __init__(
        self,
        encoder: Encoder,
        strategy: PromptStrategy,
        *,
        pooling: str = "first",
        normalize: bool = False,
        scale: float = 1.0,
        int8: bool = False,
        selection: str = "single",
        prefix_space: str = "post",
    ) -> None:
        super().__init__()
        for value, allowed in ((pooling, POOLINGS), (selection, SELECTIONS), (prefix_space, PREFIX_SPACES)):
            if value not in allowed:
                raise UsageError(f"{value!r} is none of {', '.join(allowed)}")
        if not all(1 <= layer <= encoder.config.layers for layer in strategy.prompt_layers):
            raise UsageError(f"prompt layers {strategy.prompt_layers} but the backbone has layers 1 to {encoder.config.layers}")
        self.encoder, self.rows = encoder, Rows(encoder.config.width)
        self.strategy, self.prompt_pool = strategy, strategy.pool  # the pool is a module: it moves and learns with the model
        self.pooling, self.normalize, self.scale, self.int8 = pooling, normalize, scale, int8
        self.selection, self.prefix_space = selection, prefix_space

    @property
    def device(self) -> torch.device:
        return self.encoder.word.weight.device

    def forward(self, tokens: Tokens, *, entering: Tensor | None = None, query: Tensor | None = None) -> Encoded:
        """Encode queries; `entering` and `query` take the place of what was computed before for the same tokens."""
        return self.encode_tokens(tokens, entering=entering, query=query)

    @torch.no_grad()
    def enter(self, tokens: Tokens) -> Tensor:
        """The states entering the first prompted layer (B, T, D): no dropout, no gradient, so they can be cached."""
        with self._full_precision():
            return self.encoder.run(self.encoder.embed(tokens), tokens, last=min(self.strategy.prompt_layers) - 1)

    @torch.no_grad()
    def selection_vector(self, tokens: Tokens, entering: Tensor) -> Tensor:
        with self._full_precision():
            return super().selection_vector(tokens, entering)  # type: ignore[no-any-return]

    def _full_precision(self) -> torch.autocast:
        """Training and search must choose the same prompts, whether or not they compute in bfloat16."""
        return torch.autocast(self.device.type, enabled=False)

    def select(self, query: Tensor) -> Selection:
        with self._full_precision():
            return super().select(query.float() if query.dtype in (torch.bfloat16, torch.float16) else query)

    def run_upper(self, entering: Tensor, tokens: Tokens, selection: Selection | None) -> Tensor:
        layers = sorted(self.strategy.prompt_layers)
        keywords: dict[str, Any] = {"project": self.prefix_space == "pre", "first_token_only": self.pooling == "first"}
        states = entering
        for layer, following in pairwise([*layers, self.encoder.config.layers + 1]):  # from each prompted layer up to the next
            if selection is not None:  # a pass that only selects has no dropout
                if self.strategy.reselect_per_layer and layer != layers[0]:
                    selection = self.select(self.mean_over_tokens(states.detach(), tokens))
                keywords |= {"hidden": selection.hidden, "dropout": self.encoder.dropout}
                if selection.prefix is not None:
                    keywords["prefixes"] = {layer: selection.prefix[:, self.strategy.prompt_layers.index(layer)]}
            states = self.encoder.run(states, tokens, first=layer, last=following - 1, **keywords)
        return states

    def unprompted(self, tokens: Tokens) -> Tensor:
        """Query vectors without any prompt: D0 training, documents, and prompt strategy `none`."""
        dropout = self.encoder.dropout
        states = self.encoder.embed(tokens, dropout)
        return self.pool_states(self.encoder.run(states, tokens, dropout=dropout, first_token_only=self.pooling == "first"), tokens)  # type: ignore[no-any-return]

    def mean_over_tokens(self, states: Tensor, tokens: Tokens) -> Tensor:
        if tokens.mask is None:
            return states.mean(1)
        weight = tokens.mask[:, :, None].to(states.dtype)  # (B, T, 1)
        return (states * weight).sum(1) / weight.sum(1)


class TrainablePool(nn.Module):
    """The pool of a prompt strategy as torch parameters: lists of blocks by kind (`prompts`, `keys`, …), the mean selection vector of D0,
    and the key of no prompt at all."""

    mean: Tensor | None  # (D,)
    null: Tensor | None  # (D,)

    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        self.register_buffer("mean", None)
        self.register_buffer("null", None)
        self.load({})

    def append(self, kind: str, block: Tensor, learns: bool) -> None:
        getattr(self, kind).append(nn.Parameter(block, requires_grad=learns))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by a state dict; blocks are made as its names say, and do not learn."""
        self.mean = self.null = None
        for kind in self.kinds:
            setattr(self, kind, nn.ParameterList())
        for name in sorted(state, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
            kind, _, position = name.partition(".")
            if position:
                self.append(kind, state[name].clone(), learns=False)
            else:
                setattr(self, name, state[name].clone())


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose; different purposes never draw the same numbers."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
