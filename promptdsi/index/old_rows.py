"""Old rows that lie in shards, for learning new ones: what `model/rows.py` calls rows elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from promptdsi.engine.passage_store import PassageStore
from promptdsi.errors import UsageError
from promptdsi.index.generation import Generation
from promptdsi.model.rows import QUERIES_AT_ONCE


class RowsInShards:
    """The rows of a generation, of which training gets numbers only: a sum per query, norms and cosines."""

    def __init__(self, passages: PassageStore, count: int) -> None:
        self.passages, self.count = passages, count
        self.deleted: set[int] = set()  # documents that are replaced or removed in the generation to come

    @classmethod
    def of(cls, generation: Generation, *, trains: bool) -> Self:
        if trains and generation.manifest.params.get("prompts", "none") != "none":
            raise UsageError(
                "prompts change the vectors of queries in every step, and every step would wait for all shards: "
                "add without --on, on a machine that has the rows in memory, or with --fast"
            )
        return cls(generation.passages, sum(entry.row_count for entry in generation.manifest.corpora))

    def delete(self, docids: Sequence[str]) -> None:
        self.deleted |= {place.document for place in self.passages.locate(docids) if place} if docids else set()

    def log_sum_exp(self, vectors: Tensor, scale: float) -> Tensor:
        without = sorted(self.deleted)
        sums = [self.passages.log_sum_exp(part.cpu().numpy(), scale, without) for part in vectors.split(QUERIES_AT_ONCE)]
        return torch.from_numpy(np.concatenate(sums)).to(vectors)

    def norms(self, count: int) -> Tensor:
        return torch.from_numpy(self.passages.norms(count))

    def vectors(self, numbers: Tensor) -> Tensor:
        return torch.from_numpy(self.passages.row_vectors(numbers.tolist()))

    def closest(self, directions: Tensor, k: int, count: int, without: Tensor | None = None) -> Tensor:
        parts = []
        for first in range(0, len(directions), QUERIES_AT_ONCE):
            part = slice(first, first + QUERIES_AT_ONCE)
            excluded = None if without is None else without[part].tolist()
            parts.append(self.passages.closest(directions[part].cpu().numpy(), k, count, excluded))
        return torch.from_numpy(np.concatenate(parts)).to(directions.device)
