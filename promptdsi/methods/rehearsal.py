"""Rehearsal: rows only, with every old query at hand. Forbidden, and a reference: what old queries are worth to the training of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.memory import Remembering
from promptdsi.methods.options import RowOptions
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


@dataclass(frozen=True, kw_only=True)
class ReplayRowOptions(RowOptions):
    """Also how many old queries each step draws, and the weight of their loss."""

    replay_size: int = 512
    replay_weight: float = 1.0


@dataclass(kw_only=True)
class Rehearsal(Remembering, RowsOnly):
    """Each step also draws `rows.replay_size` old queries, weighted by `rows.replay_weight`."""

    name: ClassVar[str] = "rehearsal"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = RowsOnly.least | {"rows.replay_size": 1, "rows.replay_weight": 0.0}

    rows: ReplayRowOptions = ReplayRowOptions()

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
        return super().retention()._replace(replay=self._encoded, drawn=self.rows.replay_size, weight=self.rows.replay_weight)

    def add(self, corpus: Corpus, *, train: bool = True, progress: Progress = silent) -> Self:
        super().add(corpus, train=train, progress=progress)
        self.keep(self.training_pairs(corpus, new=True))
        return self
