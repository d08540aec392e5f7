"""LoRA: the encoder moves by a low-rank step for each new corpus, and old rows stay: what moving the encoder costs frozen rows.

    method = LoRA().fit(d0).add(d1)

To the attention weights W of every layer a product BA of rank `rank` is added (Hu et al., 2022). A is random and fixed and only B
learns, as in InfLoRA (Liang & Li, 2024), whose protection of old corpora needs statistics of them and is left out. After a corpus BA is
part of W.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.methods.options import LEAST
from promptdsi.model.dsi import seeded
from promptdsi.progress import Progress, silent
from promptdsi.training.stages import learn_everything
from promptdsi.training.training import Training


class LowRank(nn.Module):
    """W + BA; B (out, r) starts at zero, A (r, in) is fixed."""

    down: Tensor

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.register_buffer("down", torch.linalg.qr(torch.randn(columns, rank, generator=generator))[0].T.to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


@dataclass(kw_only=True)
class LoRA(DSIMethod):
    """New rows learn at `add.row_lr`, adapters at `add.lr`; old rows stay."""

    name: ClassVar[str] = "lora"
    rehearsal_free: ClassVar[bool] = True
    least: ClassVar[dict[str, float]] = LEAST | {"rank": 1}

    rank: int = 8
    add_options: Training = Training(epochs=10, lr=1e-4, row_lr=1e-4, schedule="epochs")

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Train an adapter and the new rows on the next corpus. Any failure, Ctrl-C included, leaves the method as it was."""
        options, before = self.add_options, copy.deepcopy(self.model_)
        try:
            pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
            rows = self.initial_rows(corpus, options.row_init, norm=self.row_norm_, pairs=pairs, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], rows)
            generator, adapted = seeded(self.seed, f"adapter {len(self.logs_)}"), self._adapted()
            for layer in adapted:
                parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, self.rank, generator))
            keywords: dict[str, Any] = {"seed": self.seed + len(self.logs_), "checkpoint": checkpoint, "progress": progress}
            log = learn_everything(self.model_, self.examples(pairs), self.tokenizer_, options, what="learning an adapter", **keywords)
            for layer in adapted:
                parametrize.remove_parametrizations(layer, "weight")  # W becomes W + BA
        except BaseException:
            self.model_ = before
            raise
        self.freeze()
        self.logs_.append(log)
        return self

    def _adapted(self) -> list[nn.Linear]:
        layers: Any = self.model_.encoder.layers
        return [layer.query_key_value for layer in layers]

    def trained_parameters(self) -> int:
        adapter = sum(layer.weight.shape[0] * self.rank for layer in self._adapted())
        return super().trained_parameters() + (len(self.logs_) - 1) * adapter
