"""Rehearsal: rows only, with every old query at hand. Forbidden, and a reference: what old queries are worth to the training of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.memory import Remembering
from promptdsi.methods.rows import RowsOnly
from promptdsi.model.rows import Rows
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import query_vectors
from promptdsi.training.stages import RetentionLoss


class OldQueries(NamedTuple):
    """Vectors of real old queries (n, D), and the rows they should find (n,)."""

    vectors: Tensor
    targets: Tensor

    def behind(self, earlier: OldQueries | None) -> OldQueries:
        if earlier is None:
            return self
        return OldQueries(torch.cat([earlier.vectors, self.vectors]), torch.cat([earlier.targets, self.targets]))

    def draw(self, rows: Rows, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        which = torch.randint(len(self.vectors), (count,), generator=generator)
        return self.vectors[which], self.targets[which].to(self.vectors.device)


@dataclass(kw_only=True)
class Rehearsal(Remembering, RowsOnly):
    """Each step also draws `rehearsed` old queries, at `rehearsal_weight`: real ones, where others may only have stand-ins."""

    name: ClassVar[str] = "rehearsal"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = RowsOnly.least | {"rehearsed": 1, "rehearsal_weight": 0.0}

    rehearsed: int = 512
    rehearsal_weight: float = 1.0

    # The encoder is frozen, so old queries are encoded once: vectors (n, D) and rows of `memory_`, made when first needed.
    _encoded: OldQueries | None = field(default=None, init=False, repr=False, compare=False)

    def prepare(self, corpus: Corpus) -> None:
        super().prepare(corpus)
        self.memory_, self._encoded = self.training_pairs(corpus), None

    def retention(self) -> RetentionLoss:
        known = 0 if self._encoded is None else len(self._encoded.vectors)
        fresh = self.examples(self.memory_[known:])
        if fresh.ids:
            self._encoded = OldQueries(query_vectors(self.model_, fresh.ids, self.tokenizer_), fresh.targets).behind(self._encoded)
        return super().retention()._replace(replay=self._encoded, drawn=self.rehearsed, weight=self.rehearsal_weight)

    def add(self, corpus: Corpus, *, train: bool = True, progress: Progress = silent) -> Self:
        super().add(corpus, train=train, progress=progress)
        self.keep(self.training_pairs(corpus, new=True))
        return self
