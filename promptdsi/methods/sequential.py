"""Sequential: the whole model goes on training on each new corpus, and nothing protects the old ones. The paper's lower bound.

method = Sequential().fit(d0).add(d1)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Self

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.methods.options import ROW_INITS, SCHEDULES, ScaledTraining
from promptdsi.progress import Progress, silent
from promptdsi.training.stages import Rates, learn_everything
from promptdsi.training.training import Plan


@dataclass(kw_only=True)
class Sequential(DSIMethod):
    """Encoder and all rows train at `add.lr_scale` times D0's rates on the new corpus, and nothing protects the old ones: a lower bound.

    Subclasses make a replay buffer.
    """

    name: ClassVar[str] = "sequential"
    rehearsal_free: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = DSIMethod.choices | {"add.row_init": ROW_INITS, "add.schedule": SCHEDULES}
    least: ClassVar[dict[str, float]] = DSIMethod.least | {"add.epochs": 0, "add.lr_scale": 0.0}

    add_options: ScaledTraining = ScaledTraining(epochs=5, schedule="constant")

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, progress: Progress = silent) -> Self:
        """Train every weight on the next corpus. Any failure, Ctrl-C included, leaves the method as it was."""
        options, before = self.add_options, copy.deepcopy(self.model_)
        try:
            pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
            rows = self.initial_rows(corpus, options.row_init, norm=self.row_norm_, pairs=pairs, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], rows)
            self.model_.rows.join()
            self.model_.encoder.requires_grad_(True)
            examples = self.examples([*pairs, *self.replayed()])
            lr, row_lr = options.lr_scale * self.fit_options.lr, options.lr_scale * self.fit_options.row_lr
            rates = Rates(lr, row_lr, 0.0, options.encoder_decay, options.row_decay)
            plan = Plan(options.epochs, options.batch_size, options.schedule, self.seed + len(self.logs_))
            log = learn_everything(self.model_, examples, self.tokenizer_, rates, plan, what="learning everything", progress=progress)
        except BaseException:
            self.model_ = before
            raise
        self.freeze()
        self.logs_.append(log)
        self.store(corpus, pairs)
        return self

    def replayed(self) -> Pairs:
        """Queries of earlier corpora to train on again: those in the replay buffer, where a subclass has made one."""
        return self.replay_.pairs if self.replay_ else ()

    def store(self, corpus: Corpus, pairs: Pairs) -> None:
        """Put the queries of a corpus that was trained on into the replay buffer, if there is one."""
        self.replay_ = self.replay_.with_pairs(pairs) if self.replay_ else None

    def trained_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model_.encoder.parameters()) + len(self.model_.rows) * self.model_.rows.width
