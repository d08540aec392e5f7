"""What every differentiable search index shares: how D0 is learned, and how a D0 that was learned before is taken over.

Sequential, DSI++, IncDSI, PromptDSI, … differ in how they learn the corpora after it: in `add`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import UsageError
from promptdsi.methods.neural import NeuralMethod
from promptdsi.methods.options import ROW_INITS, SCHEDULES, Training, flatten_params
from promptdsi.model.arrays import unit
from promptdsi.model.backbone import Backbone, load_backbone
from promptdsi.model.devices import torch_device
from promptdsi.model.dsi import DSI
from promptdsi.model.pool import seeded
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import query_vectors
from promptdsi.training.examples import Examples, TrainingPair, mean_by_row, tokenised, training_pairs_of
from promptdsi.training.stages import Rates, learn_everything
from promptdsi.training.training import Plan, TrainingLog

# How the recommended preset learns D0, for any method; class defaults are the paper's.
BEST_D0: dict[str, Any] = {
    "encoding": {"pooling": "mean", "normalize": True, "scale": 20.0, "max_tokens": 64},
    "pseudo_queries": 5,
    "fit": {"epochs": 3, "lr": 5e-5, "row_lr": 1e-3, "schedule": "constant", "row_decay": 0.0, "row_init": "document"},
    "add": {"row_init": "document"},
}


@dataclass(kw_only=True)
class DSIMethod(NeuralMethod):
    """Learned state: also `row_length_` (mean of D0's rows), `first_rows_` (how many documents D0 had) and `logs_`."""

    # What an option may be, and what it may not be below; a subclass adds its own.
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "new_corpus_queries": ("gen+train", "gen"),
        "fit.row_init": ROW_INITS,
        "fit.schedule": SCHEDULES,
        "add.row_init": ROW_INITS,
    }
    least: ClassVar[dict[str, float]] = {
        "seed": 0,
        "pseudo_queries": 0,
        "encoding.document_windows": 1,
        "encoding.dropout": 0.0,
        "encoding.scale": 1e-6,
        "fit.batch_size": 1,
        "fit.epochs": 0,
        "fit.lr": 0.0,
        "fit.row_lr": 0.0,
        "fit.encoder_decay": 0.0,
        "fit.row_decay": 0.0,
    }

    pseudo_queries: int = 15
    new_corpus_queries: str = "gen+train"  # or gen, the paper's problem statement
    fit_options: Training = Training(epochs=20, lr=1e-4, row_lr=1e-4, schedule="epochs")
    seed: int = 0

    row_length_: float = field(init=False, repr=False, compare=False)
    first_rows_: int = field(init=False, repr=False, compare=False)
    logs_: list[TrainingLog] = field(init=False, repr=False, compare=False)

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Learn D0: the whole encoder and a row per document; then freeze, and take from D0 what later corpora will need."""
        self.start(load_backbone(self.backbone, offline=self.offline))
        start = self.row_start(corpus, self.fit_options.row_init, length=1.0, progress=progress)
        self.model_.rows.grow([document.docid for document in corpus.documents], start)
        plan = Plan(self.fit_options.epochs, self.fit_options.batch_size, self.fit_options.schedule, self.seed)
        examples = self.examples(self.training_pairs(corpus))
        log = learn_everything(self.model_, examples, self.tokenizer_, self.d0_rates, plan, checkpoint=checkpoint, progress=progress)
        return self._d0_is_learned(corpus, [log])

    def begin_from(self, d0: DSIMethod, corpus: Corpus) -> Self:
        """Begin with the D0 another method has learned from `corpus`, instead of learning it again.

        Methods that are to be compared start from the very same weights this way.
        """
        mine, its = flatten_params(self.get_params()), flatten_params(d0.get_params())
        for option in ("backbone", "encoding.max_tokens", "encoding.pooling", "encoding.normalize", "encoding.scale"):
            if mine[option] != its[option]:
                raise UsageError(f"{option}={mine[option]!r}, but D0 was learned with {its[option]!r}")
        self.start(Backbone(d0.backbone, copy.deepcopy(d0.model_.encoder), d0.tokenizer_, d0.encoding.pooling))
        whole = torch.cat([block.detach().clone() for block in d0.model_.rows.blocks])
        self.model_.rows.grow(list(d0.model_.rows.docids), whole)
        return self._d0_is_learned(corpus, list(d0.logs_))

    def _d0_is_learned(self, corpus: Corpus, logs: list[TrainingLog]) -> Self:
        self.logs_ = logs
        self.model_.eval()
        self.model_.encoder.freeze()
        self.model_.rows.freeze()
        self.row_length_ = float(self.model_.rows.blocks[0].detach().norm(dim=1).mean())
        self.first_rows_ = len(self.model_.rows)
        self.prepare(corpus)
        return self

    def prepare(self, corpus: Corpus) -> None:
        """Take what later corpora will need from D0 while it is at hand: topics, mean queries, a memory."""

    @property
    def d0_rates(self) -> Rates:
        options = self.fit_options
        return Rates(options.lr, options.row_lr, 0.0, options.encoder_decay, options.row_decay)

    @abstractmethod
    def add(self, corpus: Corpus, *, progress: Progress = silent) -> Self: ...

    def trained_parameters(self) -> int:
        return (len(self.model_.rows) - self.first_rows_) * self.model_.rows.width

    def metadata(self) -> dict[str, Any]:
        return {"row_length": self.row_length_, "corpora": len(self.logs_), "first_rows": self.first_rows_}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.row_length_ = metadata["row_length"]
        self.first_rows_ = metadata.get("first_rows") or len(self.model_.rows.blocks[0])
        self.logs_ = [TrainingLog() for _ in range(metadata["corpora"])]

    def start(self, backbone: Backbone) -> None:
        """A model around a backbone, not yet trained."""
        self.check()
        encoder = backbone.encoder
        encoding = self.encoding
        encoder.config = dataclasses.replace(encoder.config, dropout=encoding.dropout, attention_dropout=encoding.dropout)
        for option in ("max_tokens", "document_tokens"):
            if not 3 <= getattr(encoding, option) <= encoder.config.max_tokens:
                limit = f"but the backbone {self.backbone} reads 3 to {encoder.config.max_tokens}"
                raise UsageError(f"encoding.{option}={getattr(encoding, option)} {limit}")
        keywords = {"pooling": encoding.pooling, "normalize": encoding.normalize, "scale": encoding.scale, **self.path()}
        model = DSI(encoder, self.strategy(), **keywords)  # type: ignore[arg-type]
        self.model_ = model.to(torch.device(torch_device(self.device))).eval()
        self.tokenizer_ = backbone.tokenizer
        self.logs_, self.cut_documents_ = [], 0

    def check(self) -> None:
        """Refuse keywords that make no sense, as far as can be told without a backbone."""
        params = flatten_params(self.get_params())
        for option, allowed in self.choices.items():
            if params[option] not in allowed:
                raise UsageError(f"{option}={params[option]!r} is none of {', '.join(allowed)}")
        for option, least in self.least.items():
            if params[option] < least:
                raise UsageError(f"{option}={params[option]} is less than {least}")
        self.strategy()

    def strategy(self) -> PromptStrategy:
        """The prompts new corpora are learned with; none unless a method says otherwise."""
        return make_strategy("none")

    def path(self) -> dict[str, str]:
        """Keywords of the model that say how prompts are chosen and where they enter."""
        return {}

    def row_start(self, corpus: Corpus, how: str, *, length: float, progress: Progress = silent) -> Tensor:
        """Where new rows begin: `random` U(±1/√D), or at `length` the `document`'s vector or the mean of its `queries`."""
        width, count = self.model_.rows.width, len(corpus)
        if how == "random":
            generator = seeded(self.seed, f"rows {len(self.model_.rows)}")
            drawn = (2 * torch.rand(count, width, generator=generator) - 1) / math.sqrt(width)
            return drawn.to(self.model_.encoder.word.weight.device)
        if how == "document":
            return length * self.document_vectors(corpus, progress=progress)
        asked = self.training_pairs(corpus, new=len(self.model_.rows) > 0)
        place = {document.docid: number for number, document in enumerate(corpus.documents)}
        ids = self.tokenizer_.encode([one.text for one in asked], max_tokens=self.encoding.max_tokens).ids
        vectors = query_vectors(self.model_, ids, self.tokenizer_, progress=progress)
        return length * unit(mean_by_row(vectors, torch.tensor([place[one.docid] for one in asked]), 0, count))

    def training_pairs(self, corpus: Corpus, *, new: bool = False) -> list[TrainingPair]:
        """The queries a corpus is learned from; of a new one perhaps without the annotated queries."""
        annotated = not new or self.new_corpus_queries == "gen+train"
        return training_pairs_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=annotated)

    def examples(self, asked: Sequence[TrainingPair]) -> Examples:
        return tokenised(asked, self.model_.rows, self.tokenizer_, max_tokens=self.encoding.max_tokens)
