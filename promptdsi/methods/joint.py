"""Joint: Multi that trains on D0 as well. A bound of the paper, no continual method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.sequential import Sequential


@dataclass(kw_only=True)
class Joint(Sequential):
    """Stores the queries of D0 too."""

    name: ClassVar[str] = "joint"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = tuple(self.training_pairs(corpus) if pairs is None else pairs)
