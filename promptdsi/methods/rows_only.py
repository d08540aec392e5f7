"""Rows: PromptDSI without any prompt, the control every prompt strategy has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.methods.promptdsi import PromptDSI


@dataclass(kw_only=True)
class RowsOnly(PromptDSI):
    """New documents get new rows; queries are encoded as before."""

    name: ClassVar[str] = "rows"

    prompts: str = "none"
