"""DSI++ as the paper runs it: Sequential, with a few stored pseudo-queries of earlier documents mixed in.

At each step 1/32 of all earlier documents are drawn, one pseudo-query each: the share follows from the published results. The
original's sharpness-aware optimizer is not part of the paper's baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.sequential import Sequential
from promptdsi.training.examples import TrainingPair, training_pairs_of


@dataclass(kw_only=True)
class DSIPlusPlus(Sequential):
    """`replay` is the share of earlier documents that are replayed at each step."""

    name: ClassVar[str] = "dsi++"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = Sequential.least | {"pseudo_queries": 1}

    replay: float = 1 / 32

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.store(corpus, ())

    def store(self, corpus: Corpus, pairs: Pairs) -> None:
        pseudo = training_pairs_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=False)
        self.replay_ = (*(self.replay_ or ()), *pseudo)

    def replayed(self) -> Pairs:
        rng = np.random.default_rng([self.seed, len(self.logs_)])
        queries: dict[str, list[str]] = {}
        for pair in self.replay_ or ():
            queries.setdefault(pair.docid, []).append(pair.text)
        docids = rng.choice(sorted(queries), size=round(self.replay * len(queries)), replace=False)
        return [TrainingPair(queries[docid][rng.integers(len(queries[docid]))], str(docid)) for docid in docids]
