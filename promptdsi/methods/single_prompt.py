"""Single prompt: one prompt for all corpora, which goes on learning, and rows of a fixed norm (a cosine head). No pool, no selection.

    method = SinglePrompt().fit(d0).add(d1)

The counter-claim to prompt pools: if one prompt does as well, selecting among many adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.training.stages import RowOptions


@dataclass(kw_only=True)
class SinglePrompt(PromptDSI):
    """`l2p` with a pool of one; the head is a cosine where `encoding.normalize` is on."""

    name: ClassVar[str] = "single-prompt"

    prompts: str = "l2p"
    prompt_options: dict[str, Any] = field(default_factory=lambda: {"pool_size": 1})
    rows: RowOptions = RowOptions(fix_row_norm=True)
