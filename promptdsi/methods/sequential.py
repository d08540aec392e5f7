"""Methods that train the whole model on each new corpus: Sequential, DSI++ and the paper's bounds Multi and Joint.

method = Sequential().fit(d0).add(d1)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.methods.options import ROW_INITS, SCHEDULES, ScaledTraining
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import ReplayBuffer, training_pairs_of
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


@dataclass(kw_only=True)
class Multi(Sequential):
    """One training run on all new corpora together, from D0's weights: `add` is meant to be given D1 … DT as one corpus.

    Given them one by one, it trains on all the new ones again each time. Stores their queries, and nothing of D0.
    """

    name: ClassVar[str] = "multi"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = ReplayBuffer()


@dataclass(kw_only=True)
class Joint(Sequential):
    """Multi that stores the queries of D0, and trains on them too."""

    name: ClassVar[str] = "joint"
    rehearsal_free: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.replay_ = ReplayBuffer(tuple(self.training_pairs(corpus) if pairs is None else pairs))


@dataclass(kw_only=True)
class DSIPlusPlus(Sequential):
    """DSI++ as the paper runs it: a few stored pseudo-queries of earlier documents are mixed in, without a sharpness-aware optimizer.

    `replay` is the share of earlier documents replayed at each step, one pseudo-query each: 1/32 follows from the published results.
    """

    name: ClassVar[str] = "dsi++"
    rehearsal_free: ClassVar[bool] = False
    least: ClassVar[dict[str, float]] = Sequential.least | {"replay": 0.0, "pseudo_queries": 1}

    replay: float = 1 / 32

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        self.store(corpus, ())

    def store(self, corpus: Corpus, pairs: Pairs) -> None:
        pseudo = training_pairs_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=False)
        self.replay_ = (self.replay_ or ReplayBuffer()).with_pairs(pseudo)

    def replayed(self) -> Pairs:
        rng = np.random.default_rng([self.seed, len(self.logs_)])
        return self.replay_.sample(self.replay, rng) if self.replay_ else ()
