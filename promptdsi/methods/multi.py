"""Multi: one training run of the whole model on all new corpora together, from D0's weights. The paper's bound for the new.

It is no continual method: `add` is meant to be given D1 … DT as one corpus. Given them one by one it trains on all the new
ones again each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.memory import Remembering
from promptdsi.methods.sequential import Sequential
from promptdsi.training.examples import TrainingPair


@dataclass(kw_only=True)
class Multi(Remembering, Sequential):
    """Remembers the queries of the new corpora, and nothing of D0."""

    name: ClassVar[str] = "multi"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus) -> None:
        self.memory_ = []

    def rehearsed(self) -> Sequence[TrainingPair]:
        return self.memory_

    def remember(self, corpus: Corpus, asked: Sequence[TrainingPair]) -> None:
        self.keep(asked)
