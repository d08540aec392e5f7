"""Full replay (`rehearsal`): rows only, with every old query at hand. A reference that uses old data, no method for an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.options import RowOptions
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import ReplayBuffer, query_vectors
from promptdsi.training.stages import RetentionLoss


@dataclass(frozen=True, kw_only=True)
class ReplayRowOptions(RowOptions):
    """Also how many old queries each step draws, and the weight of their loss."""

    replay_size: int = 512
    replay_weight: float = 1.0


class OldQueries(NamedTuple):
    """Vectors of old queries (n, D), and the row each should retrieve (n,)."""

    vectors: Tensor
    targets: Tensor

    def draw(self, count: int, generator: torch.Generator) -> OldQueries:
        numbers = torch.randint(len(self.vectors), (count,), generator=generator)
        return OldQueries(self.vectors[numbers], self.targets[numbers].to(self.vectors.device))


@dataclass(kw_only=True)
class FullReplay(PromptDSI):
    """Each step also draws `rows.replay_size` old queries, weighted by `rows.replay_weight`."""

    name: ClassVar[str] = "rehearsal"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = PromptDSI.least | {"rows.replay_size": 1, "rows.replay_weight": 0.0}

    prompts: str = "none"
    rows: ReplayRowOptions = ReplayRowOptions()

    # The encoder is frozen, so old queries are encoded once, when first needed.
    _encoded: OldQueries | None = field(default=None, init=False, repr=False, compare=False)

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        super().prepare(corpus, pairs)
        self._encoded, self.replay_ = None, ReplayBuffer(tuple(self.training_pairs(corpus) if pairs is None else pairs))

    def retention(self) -> RetentionLoss:
        assert self.replay_ is not None
        fresh = self.examples(self.replay_.pairs[len(self._encoded.vectors) if self._encoded else 0 :])
        if fresh.ids:
            encoded = OldQueries(query_vectors(self.model_, fresh.ids, self.tokenizer_), fresh.targets)
            earlier = [self._encoded] if self._encoded else []
            self._encoded = OldQueries(*(torch.cat(parts) for parts in zip(*earlier, encoded, strict=True)))
        return super().retention()._replace(replay=self._encoded, replay_size=self.rows.replay_size, weight=self.rows.replay_weight)

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, train: bool = True, progress: Progress = silent) -> Self:
        pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
        super().add(corpus, pairs=pairs, train=train, progress=progress)
        assert self.replay_ is not None
        self.replay_ = self.replay_.with_pairs(pairs)
        return self
