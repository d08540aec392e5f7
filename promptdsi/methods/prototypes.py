"""Prototypes: D0 adapts the encoder; after it every new row is the document's vector, untrained (SimpleCIL and APER, Zhou et al., 2024).

method = Prototypes().fit(d0).add(d1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.training.stages import RowOptions


@dataclass(kw_only=True)
class Prototypes(PromptDSI):
    """New rows have the mean norm of D0's times `rows.row_norm_scale`."""

    name: ClassVar[str] = "prototypes"

    prompts: str = "none"
    rows: RowOptions = RowOptions()

    def add(self, corpus: Corpus, **options: Any) -> Self:
        return super().add(corpus, **(options | {"train": False}))
