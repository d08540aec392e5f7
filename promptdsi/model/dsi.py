"""The one path a query takes: tokens → lower layers → selection → prefix → upper layers → query vector → rows.

Two-pass ("naive") selection is the same path with another selection vector, and no prompts is the same path with an empty
prefix. Letters: B batch, T tokens, D width, L prompted layers, P prefix rows per side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from promptdsi.errors import UsageError
from promptdsi.model.config import NO_PROMPT
from promptdsi.model.encoder import Encoder, Tokens, mean_over_tokens
from promptdsi.model.prompts.strategy import PromptStrategy, Selection, unit
from promptdsi.model.rows import Rows

SELECTIONS, PREFIX_SPACES = ("single", "two-pass"), ("post", "pre")


class Encoded(NamedTuple):
    """Query vectors (B, D), ready to be scored against rows, and what the strategy chose for them."""

    vectors: Tensor
    selection: Selection


class DSI(nn.Module):
    """A differentiable search index: encoder, prompts and rows.

    `pooling` is `first` or `mean`; `normalise` makes query vectors unit length; `scale` multiplies scores in training;
    `selection` is `single` (mean of the states entering the first prompted layer) or `two-pass` (the unprompted query
    vector); `prefix_space` says whether prompts enter after (`post`) or before (`pre`) the key and value projections.
    """

    def __init__(
        self,
        encoder: Encoder,
        strategy: PromptStrategy,
        *,
        pooling: str = "first",
        normalise: bool = False,
        scale: float = 1.0,
        selection: str = "single",
        prefix_space: str = "post",
    ) -> None:
        super().__init__()
        for value, known in ((pooling, ("first", "mean")), (selection, SELECTIONS), (prefix_space, PREFIX_SPACES)):
            if value not in known:
                raise UsageError(f"{value!r} is none of {', '.join(known)}")
        if not all(1 <= layer <= encoder.config.layers for layer in strategy.prompt_layers):
            raise UsageError(f"prompt layers {strategy.prompt_layers} but the backbone has layers 1 to {encoder.config.layers}")
        self.encoder, self.strategy, self.rows = encoder, strategy, Rows(encoder.config.width)
        self.pooling, self.normalise, self.scale = pooling, normalise, scale
        self.selection, self.prefix_space = selection, prefix_space

    def forward(self, tokens: Tokens, *, entering: Tensor | None = None, query: Tensor | None = None) -> Encoded:
        """Encode queries; `entering` and `query` take the place of what was computed before for the same tokens."""
        if not len(self.strategy.prompts):
            return Encoded(self.unprompted(tokens), Selection(None, tokens.ids.new_zeros((), dtype=torch.float)))
        entering = self.enter(tokens) if entering is None else entering  # (B, T, D)
        query = self.selection_vector(tokens, entering) if query is None else query  # (B, D)
        with torch.autocast(query.device.type, enabled=False):  # in full precision: training and search must choose alike
            chosen_by = query.float() if query.dtype in (torch.bfloat16, torch.float16) else query
            selection = self.strategy.select(chosen_by)
            hidden = self.strategy.hidden(chosen_by, selection)  # (B,) or None
            if hidden is not None and selection.ids is not None:
                selection = selection._replace(ids=selection.ids.masked_fill(hidden, NO_PROMPT))
        states = self.encoder.run(
            entering,
            tokens,
            first=self.first_prompted,
            prefixes=self._prefixes(selection.prefix),
            hidden=hidden,
            dropout=self.encoder.dropout,
            first_token_only=self.pooling == "first",
        )  # (B, T or 1, D)
        return Encoded(self._pool(states, tokens), selection)

    @property
    def first_prompted(self) -> int:
        return min(self.strategy.prompt_layers)

    @torch.no_grad()
    def enter(self, tokens: Tokens) -> Tensor:
        """The states entering the first prompted layer (B, T, D): no dropout, no gradient, so they can be kept."""
        return self.encoder.run(self.encoder.embed(tokens), tokens, last=self.first_prompted - 1)

    @torch.no_grad()
    def selection_vector(self, tokens: Tokens, entering: Tensor) -> Tensor:
        """What prompts are chosen by: (B, D). Over real tokens only, so a query's choice does not depend on its batch."""
        if self.selection == "single":
            return mean_over_tokens(entering, tokens.mask)
        states = self.encoder.run(entering, tokens, first=self.first_prompted, first_token_only=self.pooling == "first")
        return self._pool(states, tokens)

    def unprompted(self, tokens: Tokens) -> Tensor:
        """Query vectors without any prompt: D0 training, documents, and prompt strategy `none`."""
        dropout = self.encoder.dropout
        states = self.encoder.embed(tokens, dropout)
        states = self.encoder.run(states, tokens, dropout=dropout, first_token_only=self.pooling == "first")
        return self._pool(states, tokens)

    def _prefixes(self, prefix: Tensor | None) -> dict[int, Tensor]:
        """The prefix of each prompted layer, (B, 2, P, D), as attention takes it."""
        if prefix is None:
            return {}
        layers = dict(zip(self.strategy.prompt_layers, prefix.unbind(1), strict=True))
        if self.prefix_space == "pre":
            return {number: self.encoder.layers[number - 1].project_prefix(part) for number, part in layers.items()}  # type: ignore[operator]
        return layers

    def _pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        pooled = states[:, 0] if self.pooling == "first" else mean_over_tokens(states, tokens.mask)  # (B, D)
        return unit(pooled) if self.normalise else pooled
