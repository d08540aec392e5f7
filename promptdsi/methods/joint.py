"""Joint: the whole model trained on D0 and all new corpora together, from D0's weights. What continual methods try to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.multi import Multi


@dataclass(kw_only=True)
class Joint(Multi):
    """Multi that remembers the queries of D0 too."""

    name: ClassVar[str] = "joint"

    def prepare(self, corpus: Corpus) -> None:
        self.memory_ = self.training_pairs(corpus)
