"""Multi and Joint: one training run of the whole model on all new corpora together, from D0's weights; Joint on D0 as well.

They are no continual methods but the paper's bounds: `add` is meant to be given D1 … DT as one corpus. Given them one by one,
it trains on all the new ones again each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.replay import ReplayBuffer
from promptdsi.methods.sequential import Sequential


@dataclass(kw_only=True)
class Multi(Sequential):
    """Stores the queries of the new corpora, and nothing of D0."""

    name: ClassVar[str] = "multi"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = ReplayBuffer()


@dataclass(kw_only=True)
class Joint(Sequential):
    """Stores the queries of D0 too."""

    name: ClassVar[str] = "joint"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = ReplayBuffer(tuple(self.training_pairs(corpus) if pairs is None else pairs))
