"""How to create an index or add to it, apart from what the method itself is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptdsi.progress import Progress, silent

if TYPE_CHECKING:
    from promptdsi.index.results import WorkEstimate


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to create or add. `on_start` is called with an estimate before anything is learned."""

    name: str | None = None
    store: str = "text"
    keep_probes: int = 0
    keep_queries: bool = False
    seed: int | None = None  # of this learning; the method's own by default
    fast: bool = False
    update: bool = False
    max_drift: float | None = None
    device: str = "auto"
    progress: Progress = silent
    on_start: Callable[[WorkEstimate], None] | None = None
