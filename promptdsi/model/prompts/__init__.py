"""Prompt strategies by name. A new one is one file here with a subclass of `PromptStrategy`; nothing else lists it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from promptdsi.discovery import import_all
from promptdsi.errors import UsageError
from promptdsi.model.path import Selection
from promptdsi.model.prompts.strategy import PromptStrategy

__all__ = ["PromptStrategy", "Selection", "make_strategy", "strategies"]


def strategies() -> dict[str, type[PromptStrategy]]:
    """Every strategy that is imported, those of this folder always."""
    import_all(sys.modules[__name__])
    return {kind.name: kind for kind in sorted(_subclasses(PromptStrategy), key=lambda kind: kind.name)}  # type: ignore[type-abstract]


def make_strategy(name: str, **keywords: Any) -> PromptStrategy:
    """A strategy by name; keywords it does not have are an error."""
    kinds = strategies()
    if name not in kinds:
        raise UsageError(f"no prompt strategy {name!r}; there are {', '.join(kinds)}")
    try:
        strategy = kinds[name](**keywords)
    except TypeError as error:
        raise UsageError(f"prompt strategy {name}: {error}") from None
    for option, values in strategy.allowed.items():
        if getattr(strategy, option, values[0]) not in values:
            raise UsageError(f"prompt strategy {name}: {option}={getattr(strategy, option)!r} is none of {', '.join(values)}")
    if strategy.prompt_length < 2 or strategy.prompt_length % 2:
        raise UsageError(f"prompt_length={strategy.prompt_length} counts key and value rows together: it must be even and positive")
    return strategy


def _subclasses(kind: type[PromptStrategy]) -> Iterator[type[PromptStrategy]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)
