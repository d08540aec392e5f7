"""none: no prompt at all, only rows learn. The control that shows what prompts add. Try: --prompts none"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.model.path import Selection
from promptdsi.model.prompts.strategy import PromptStrategy

if TYPE_CHECKING:
    from torch import Tensor


class NoPrompts(PromptStrategy):
    """The same path with an empty prefix."""

    name = "none"

    def begin_corpus(self, queries: Tensor) -> None:
        pass

    def select(self, query: Any) -> Selection:
        return Selection(prefix=None)
