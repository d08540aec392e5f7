"""Joint: the whole model trained on D0 and all new corpora together, from D0's weights. What continual methods try to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.learning.examples import Asked
from promptdsi.methods.memory import Remembering
from promptdsi.methods.sequential import Sequential


@dataclass(kw_only=True)
class Joint(Remembering, Sequential):
    """Remembers every query. `add` is meant to be given D1 … DT as one corpus."""

    name: ClassVar[str] = "joint"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus) -> None:
        self.memory_ = self.asked(corpus)

    def rehearsed(self) -> Sequence[Asked]:
        return self.memory_

    def remember(self, corpus: Corpus, asked: Sequence[Asked]) -> None:
        self.keep(asked)
