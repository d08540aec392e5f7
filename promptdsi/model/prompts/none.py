"""none: no prompt at all, only rows learn. The control that shows what prompts add. Try: --prompts none"""

from __future__ import annotations

from torch import Tensor

from promptdsi.model.prompts.strategy import PromptStrategy, Selection


class NoPrompts(PromptStrategy):
    """The same path with an empty prefix."""

    name = "none"

    def begin_corpus(self, queries: Tensor) -> None:
        pass

    def select(self, query: Tensor) -> Selection:
        return Selection(prefix=None, loss=query.new_zeros(()))
