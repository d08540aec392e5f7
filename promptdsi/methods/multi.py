"""Multi: one training run of the whole model on all new corpora together, from D0's weights. A bound of the paper, no continual method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.sequential import Sequential


@dataclass(kw_only=True)
class Multi(Sequential):
    """`add` is meant to be given D1 … DT as one corpus.

    Given them one by one, it trains on all the new ones again each time. Stores their queries, and nothing of D0.
    """

    name: ClassVar[str] = "multi"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = ()
