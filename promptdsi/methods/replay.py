"""Queries of earlier corpora that a method stores to train on again. Rehearsal-free methods have none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from promptdsi.training.examples import TrainingPair


@dataclass(frozen=True)
class ReplayBuffer:
    """Training pairs in the order they came. Immutable: adding makes a new buffer, so a copy of the method keeps its own."""

    pairs: tuple[TrainingPair, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)

    def __bool__(self) -> bool:
        return True  # an empty buffer is still a buffer: the method stores queries

    def with_pairs(self, pairs: Iterable[TrainingPair]) -> ReplayBuffer:
        return ReplayBuffer((*self.pairs, *pairs))

    def sample(self, share: float, rng: np.random.Generator) -> list[TrainingPair]:
        """One query each of a random share of the documents."""
        queries: dict[str, list[str]] = {}
        for pair in self.pairs:
            queries.setdefault(pair.docid, []).append(pair.text)
        docids = rng.choice(sorted(queries), size=round(share * len(queries)), replace=False)
        return [TrainingPair(queries[docid][rng.integers(len(queries[docid]))], str(docid)) for docid in docids]

    @property
    def size_in_bytes(self) -> int:
        return sum(len(text.encode("utf-8")) for pair in self.pairs for text in pair)

    def to_json(self) -> list[list[str]]:
        return [list(pair) for pair in self.pairs]

    @classmethod
    def from_json(cls, pairs: Iterable[Iterable[str]]) -> ReplayBuffer:
        return cls(tuple(TrainingPair(*pair) for pair in pairs))
