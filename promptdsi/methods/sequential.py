"""Sequential: the whole model goes on training on each new corpus, and nothing holds the old ones. The paper's lower bound.

method = Sequential().fit(d0).add(d1)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi import SCHEDULES, DSIMethod
from promptdsi.progress import Progress, silent
from promptdsi.training.examples import TrainingPair
from promptdsi.training.stages import Rates, learn_everything
from promptdsi.training.training import Plan


@dataclass(kw_only=True)
class Sequential(DSIMethod):
    """Encoder and all rows learn, at D0's rates times `add_rate`, on the new corpus alone. Subclasses add what they remember."""

    name: ClassVar[str] = "sequential"
    rehearsal_free: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = DSIMethod.choices | {"add_schedule": SCHEDULES}
    least: ClassVar[dict[str, float]] = DSIMethod.least | {"add_epochs": 0, "add_rate": 0.0}

    add_epochs: int = 5
    add_rate: float = 1.0
    add_schedule: str = "constant"

    def add(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Learn the next corpus with every weight. Whatever goes wrong leaves the method as it was."""
        before = copy.deepcopy(self.model_)
        try:
            asked = self.training_pairs(corpus, new=True)
            start = self.row_start(corpus, self.add_row_start, length=self.row_length_, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], start)
            self.model_.rows.join()
            self.model_.encoder.requires_grad_(True)
            examples = self.examples([*asked, *self.rehearsed()])
            rates = Rates(self.add_rate * self.fit_lr, self.add_rate * self.fit_row_lr, 0.0, self.encoder_decay, self.row_decay)
            plan = Plan(self.add_epochs, self.batch_size, self.add_schedule, self.seed + len(self.logs_))
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
