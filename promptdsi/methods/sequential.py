"""Sequential: the whole model goes on training on each new corpus, and nothing protects the old ones. The paper's lower bound.

With stored queries it becomes DSI++ and the paper's upper bounds, Multi and Joint (files of their own).

method = Sequential().fit(d0).add(d1)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.progress import Progress, silent
from promptdsi.training.distributed import team
from promptdsi.training.shared_stages import learn_together
from promptdsi.training.stages import RowOptions, learn_everything
from promptdsi.training.training import Plan, Training


@dataclass(frozen=True, kw_only=True)
class ScaledTraining(Plan):
    """Training that continues at a multiple, `lr_scale`, of the learning rates of `fit`."""

    lr_scale: float = 1.0
    encoder_decay: float = 0.01
    row_decay: float = 0.01
    row_init: str = "random"

    def scaled(self, fit: Training) -> Training:
        options = vars(self) | {"lr": self.lr_scale * fit.lr, "row_lr": self.lr_scale * fit.row_lr}
        return Training(**{name: value for name, value in options.items() if name != "lr_scale"})


@dataclass(kw_only=True)
class Sequential(DSIMethod):
    """Encoder and all rows train at `add.lr_scale` times D0's rates on the new corpus; subclasses make a replay buffer."""

    name: ClassVar[str] = "sequential"
    rehearsal_free: ClassVar[bool] = True

    add_options: ScaledTraining = ScaledTraining(epochs=5)

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Train every weight on the next corpus. Any failure, Ctrl-C included, leaves the method as it was."""
        options, before = self.add_options, copy.deepcopy(self.model_)
        try:
            pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
            rows = self.initial_rows(corpus, options.row_init, norm=self.row_norm_, pairs=pairs, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], rows)
            self.model_.rows.join()
            self.model_.encoder.requires_grad_(True)
            examples = self.examples([*pairs, *self.replayed()])
            keywords: dict[str, Any] = {"seed": self.seed + len(self.logs_), "checkpoint": checkpoint, "progress": progress}
            training = options.scaled(self.fit_options)
            keywords["what"] = "learning everything"
            if 1 < team().size <= len(self.model_.rows):
                log = learn_together("everything", self.model_, examples, self.tokenizer_, training, RowOptions(), **keywords)
            else:
                log = learn_everything(self.model_, examples, self.tokenizer_, training, **keywords)
        except BaseException:
            self.model_ = before
            raise
        self.freeze()
        self.logs_.append(log)
        self.store(corpus, pairs)
        return self

    def replayed(self) -> Pairs:
        """Queries of earlier corpora to train on again: those in the replay buffer, where a subclass has made one."""
        return self.replay_ or ()

    def store(self, corpus: Corpus, pairs: Pairs) -> None:
        """Put the queries of a corpus that was trained on into the replay buffer, if there is one."""
        self.replay_ = None if self.replay_ is None else (*self.replay_, *pairs)

    def trained_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model_.encoder.parameters()) + len(self.model_.rows) * self.model_.rows.width
