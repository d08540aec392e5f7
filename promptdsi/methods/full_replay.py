"""Full replay (`rehearsal`): rows only, with every old query at hand. A reference that uses old data, no method for an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import Pairs
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.progress import Progress, silent
from promptdsi.training.stages import Replay, RowOptions


@dataclass(frozen=True, kw_only=True)
class ReplayRowOptions(RowOptions):
    """Also how many old queries each step draws, and the weight of their loss."""

    replay_size: int = 512
    replay_weight: float = 1.0


@dataclass(kw_only=True)
class FullReplay(PromptDSI):
    """Each step also draws `rows.replay_size` old queries, weighted by `rows.replay_weight`."""

    name: ClassVar[str] = "rehearsal"
    rehearsal_free: ClassVar[bool] = False

    prompts: str = "none"
    rows: ReplayRowOptions = ReplayRowOptions()

    parts_: list[int] = field(init=False, repr=False, compare=False)  # stored queries of each corpus
    # Their vectors, by corpus (n, D): the encoder is frozen, so each is encoded once, when first needed.
    _encoded: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        super().prepare(corpus, pairs)
        self._encoded, self.replay_ = [], tuple(self.training_pairs(corpus) if pairs is None else pairs)
        self.parts_ = [len(self.replay_)]

    def old_queries(self) -> Replay:
        stored = self.replay_ or ()
        for size in self.parts_[len(self._encoded) :]:  # corpus by corpus: a loaded method encodes the same batches as it did before
            first = sum(map(len, self._encoded))
            self._encoded.append(self.encode([pair.text for pair in stored[first : first + size]]))
        vectors, examples = torch.cat(self._encoded), self.examples(stored)
        targets = examples.targets.to(vectors.device)
        if examples.siblings:  # of a document with several passages the one that scores highest; old rows no longer change
            rows = torch.cat([block.detach() for block in self.model_.rows.blocks])
            targets = examples.siblings.assign(torch.arange(len(vectors)), vectors, rows, targets)
        return Replay(vectors, targets, self.rows.replay_size, self.rows.replay_weight)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"replay_parts": self.parts_}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        self._encoded, self.parts_ = [], metadata.get("replay_parts") or [len(self.replay_ or ())]

    def add(
        self,
        corpus: Corpus,
        *,
        pairs: Pairs | None = None,
        train: bool = True,
        checkpoint: Path | None = None,
        progress: Progress = silent,
    ) -> Self:
        pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
        super().add(corpus, pairs=pairs, train=train, checkpoint=checkpoint, progress=progress)
        self.replay_ = (*(self.replay_ or ()), *pairs)
        self.parts_.append(len(pairs))
        return self
