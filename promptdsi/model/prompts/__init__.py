"""Prompt strategies by name. A new one is one file here with a subclass of `PromptStrategy`; nothing else lists it."""

from __future__ import annotations

from promptdsi.model.path import Selection
from promptdsi.model.prompts.strategy import PromptStrategy, make_strategy, strategies

__all__ = ["PromptStrategy", "Selection", "make_strategy", "strategies"]
