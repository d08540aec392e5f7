"""DSI++ as the paper runs it: Sequential, with a few stored pseudo-queries of earlier documents mixed in.

At each step 1/32 of all earlier documents are drawn, one pseudo-query each (METHOD 8 derives the rate from the published
results); the original's sharpness-aware optimiser is not part of the paper's baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.memory import Remembering
from promptdsi.methods.sequential import Sequential
from promptdsi.training.examples import TrainingPair, training_pairs_of


@dataclass(kw_only=True)
class DSIPlusPlus(Remembering, Sequential):
    """`replay` is the share of earlier documents that are rehearsed at each step."""

    name: ClassVar[str] = "dsi++"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = Sequential.least | {"replay": 0.0, "pseudo_queries": 1}

    replay: float = 1 / 32

    def prepare(self, corpus: Corpus) -> None:
        self.memory_ = []
        self.remember(corpus, ())

    def remember(self, corpus: Corpus, asked: Sequence[TrainingPair]) -> None:
        self.keep(training_pairs_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=False))

    def rehearsed(self) -> list[TrainingPair]:
        queries: dict[str, list[str]] = {}
        for one in self.memory_:
            queries.setdefault(one.docid, []).append(one.text)
        rng = np.random.default_rng([self.seed, len(self.logs_)])
        drawn = rng.choice(sorted(queries), size=round(self.replay * len(queries)), replace=False)
        return [TrainingPair(queries[docid][rng.integers(len(queries[docid]))], str(docid)) for docid in drawn]
