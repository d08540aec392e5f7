"""Sequential: the whole model goes on training on each new corpus, and nothing holds the old ones. The paper's lower bound.

method = Sequential().fit(d0).add(d1)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.options import SCHEDULES, ScaledTraining
from promptdsi.progress import Progress, silent
from promptdsi.training.examples import TrainingPair
from promptdsi.training.stages import Rates, learn_everything
from promptdsi.training.training import Plan


@dataclass(kw_only=True)
class Sequential(DSIMethod):
    """Encoder and all rows learn, at D0's rates times `add.lr_scale`, on the new corpus alone. Subclasses add what they remember."""

    name: ClassVar[str] = "sequential"
    rehearsal_free: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = DSIMethod.choices | {"add.schedule": SCHEDULES}
    least: ClassVar[dict[str, float]] = DSIMethod.least | {"add.epochs": 0, "add.lr_scale": 0.0}

    add_options: ScaledTraining = ScaledTraining(epochs=5, schedule="constant")

    def add(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Learn the next corpus with every weight. Whatever goes wrong leaves the method as it was."""
        options = self.add_options
        before = copy.deepcopy(self.model_)
        try:
            asked = self.training_pairs(corpus, new=True)
            start = self.row_start(corpus, options.row_init, length=self.row_length_, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], start)
            self.model_.rows.join()
            self.model_.encoder.requires_grad_(True)
            examples = self.examples([*asked, *self.rehearsed()])
            lr, row_lr = options.lr_scale * self.fit_options.lr, options.lr_scale * self.fit_options.row_lr
            rates = Rates(lr, row_lr, 0.0, options.encoder_decay, options.row_decay)
            plan = Plan(options.epochs, options.batch_size, options.schedule, self.seed + len(self.logs_))
            log = learn_everything(self.model_, examples, self.tokenizer_, rates, plan, what="learning everything", progress=progress)
        except BaseException:
            self.model_ = before
            raise
        self.model_.eval()
        self.model_.encoder.freeze()
        self.model_.rows.freeze()
        self.logs_.append(log)
        self.remember(corpus, asked)
        return self

    def rehearsed(self) -> Sequence[TrainingPair]:
        """Queries of earlier corpora to train on again: none."""
        return ()

    def remember(self, corpus: Corpus, asked: Sequence[TrainingPair]) -> None:
        """What to keep of a corpus for later: nothing."""

    def trained_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model_.encoder.parameters()) + len(self.model_.rows) * self.model_.rows.width
