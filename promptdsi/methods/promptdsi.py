"""PromptDSI: frozen encoder, frozen old rows, new rows and a few prompts per corpus (the paper's method, any strategy).

    method = PromptDSI(**PRESETS["best"]).fit(d0).add(d1)
    method.search(["who wrote hamlet"], k=10)

Keyword defaults are the paper's; `PRESETS["best"]` is what we recommend.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.generators.sampling import torch_device
from promptdsi.errors import UsageError
from promptdsi.learning.encoding import keep_states, query_vectors, selection_vectors
from promptdsi.learning.examples import Examples, asked_of, mean_by_row, tokenised
from promptdsi.learning.stages import Care, Rates, learn_everything, learn_prompts, learn_rows
from promptdsi.learning.topics import Topics, mine_topics
from promptdsi.learning.training import Plan, TrainingLog
from promptdsi.methods.neural import NeuralMethod, whole_text
from promptdsi.model.backbone import Backbone, load_backbone
from promptdsi.model.dsi import DSI
from promptdsi.model.prompts import make_strategy
from promptdsi.model.prompts.strategy import PromptStrategy, seeded, unit
from promptdsi.progress import Progress, silent

BEST: dict[str, Any] = {
    "prompts": "none",
    "pooling": "mean",
    "normalise": True,
    "scale": 20.0,
    "max_tokens": 64,
    "pseudo_queries": 5,
    "fit_row_start": "document",
    "fit_epochs": 3,
    "fit_lr": 5e-5,
    "fit_row_lr": 1e-3,
    "fit_schedule": "constant",
    "row_decay": 0.0,
    "add_row_start": "document",
    "add_epochs": 30,
    "add_lr": 1e-4,
    "add_row_lr": 1e-3,
    "add_schedule": "constant",
    "hold_row_length": True,
    "stand_ins": 512,
}
STARTS = ("random", "document", "queries")
CHOICES = {
    "softmax_scope": ("all_seen", "new_only"),
    "new_corpus_queries": ("gen+train", "gen"),
    "fit_row_start": STARTS,
    "add_row_start": STARTS,
    "fit_schedule": ("constant", "epochs", "linear"),
    "add_schedule": ("constant", "epochs", "linear"),
}
LEAST = {
    "batch_size": 1,
    "document_windows": 1,
    "pseudo_queries": 0,
    "fit_epochs": 0,
    "add_epochs": 0,
    "stand_ins": 0,
    "fit_lr": 0.0,
    "fit_row_lr": 0.0,
    "add_lr": 0.0,
    "add_row_lr": 0.0,
    "dropout": 0.0,
}
PRESETS: dict[str, dict[str, Any]] = {"paper": {}, "best": BEST}


@dataclass(kw_only=True)
class PromptDSI(NeuralMethod):
    """Learned state: `model_`, `tokenizer_`, `row_length_` (mean of D0's rows), `topics_` (words, for people), `logs_`."""

    name: ClassVar[str] = "promptdsi"
    rehearsal_free: ClassVar[bool] = True

    prompts: str = "s++"
    prompt_options: dict[str, Any] = field(default_factory=dict)
    selection: str = "single"
    prefix_space: str = "post"
    pooling: str = "first"
    normalise: bool = False
    scale: float = 1.0
    pseudo_queries: int = 15
    new_corpus_queries: str = "gen+train"  # or gen, the paper's problem statement
    softmax_scope: str = "all_seen"
    topic_engine: str = "kmeans"
    dropout: float = 0.1
    batch_size: int = 128
    encoder_decay: float = 0.01
    row_decay: float = 0.01
    fit_row_start: str = "random"
    fit_epochs: int = 20
    fit_lr: float = 1e-4
    fit_row_lr: float = 1e-4
    fit_schedule: str = "epochs"
    add_row_start: str = "random"
    add_epochs: int = 10
    add_lr: float = 1e-4
    add_row_lr: float = 1e-4
    add_schedule: str = "epochs"
    hold_row_length: bool = False
    stand_ins: int = 0
    stand_in_range: tuple[float, float] = (0.5, 0.9)
    stand_in_weight: float = 1.0
    seed: int = 0

    row_length_: float = field(init=False, repr=False, compare=False)
    topics_: Topics | None = field(init=False, repr=False, compare=False)
    logs_: list[TrainingLog] = field(init=False, repr=False, compare=False)

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Learn D0: the whole encoder and a row per document; then freeze, and mine what the strategy needs of D0."""
        self.start(load_backbone(self.backbone, offline=self.offline))
        start = self._row_start(corpus, self.fit_row_start, length=1.0, progress=progress)
        self.model_.rows.grow([document.docid for document in corpus.documents], start)
        examples = self._examples(corpus)
        rates = Rates(self.fit_lr, self.fit_row_lr, 0.0, self.encoder_decay, self.row_decay)
        plan = Plan(self.fit_epochs, self.batch_size, self.fit_schedule, self.seed)
        log = learn_everything(self.model_, examples, self.tokenizer_, rates, plan, checkpoint=checkpoint, progress=progress)
        self.logs_ = [log]
        self.model_.encoder.freeze()
        self.model_.rows.freeze()
        self.row_length_ = float(self.model_.rows.blocks[0].detach().norm(dim=1).mean())
        self._prepare_strategy(corpus, examples)
        return self

    def add(self, corpus: Corpus, *, train: bool = True, progress: Progress = silent) -> Self:
        """Learn the next corpus: nothing of an earlier one is read, and nothing of it changes.

        Without `train` the rows are the documents' vectors, ready as soon as they are encoded; `tune` trains them later.
        Whatever goes wrong, Ctrl-C included, leaves the method as it was.
        """
        before, blocks = {name: tensor.clone() for name, tensor in self.model_.strategy.state().items()}, len(self.model_.rows.blocks)
        annotated = self.new_corpus_queries == "gen+train"
        how = self.add_row_start if train else "document"
        try:
            start = self._row_start(corpus, how, length=self.row_length_, annotated=annotated, progress=progress)
            self.model_.rows.grow([document.docid for document in corpus.documents], start)
            self.logs_.append(self._train_newest(corpus, progress) if train else TrainingLog())
        except BaseException:
            if len(self.model_.rows.blocks) > blocks:
                self.model_.rows.drop_last()
            self.model_.strategy = make_strategy(self.prompts, **self.model_.strategy.get_params()).load_state(before)
            raise
        finally:
            self._settle()
        return self

    def tune(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Train the newest rows, which were added untrained, for the corpus they belong to."""
        newest = self.model_.rows.docids[-len(self.model_.rows.blocks[-1]) :]
        if other := {document.docid for document in corpus.documents} - set(newest):
            raise ValueError(f"{min(other)!r} is not among the newest rows")
        self.model_.rows.learn_last()
        try:
            self.logs_.append(self._train_newest(corpus, progress))
        finally:
            self._settle()
        return self

    def _settle(self) -> None:
        self.model_.eval()
        self.model_.rows.freeze()
        self.model_.strategy.freeze()

    def _train_newest(self, corpus: Corpus, progress: Progress) -> TrainingLog:
        examples = self._examples(corpus, annotated=self.new_corpus_queries == "gen+train")
        rates = Rates(0.0, self.add_row_lr, self.add_lr, 0.0, self.row_decay)
        plan = Plan(self.add_epochs, self.batch_size, self.add_schedule, self.seed + len(self.logs_))
        lowest, highest = self.stand_in_range
        care = Care(self.row_length_ if self.hold_row_length else 0.0, self.stand_ins, lowest, highest, self.stand_in_weight)
        scope = self.softmax_scope
        if self.prompts == "none":
            return learn_rows(self.model_, examples, self.tokenizer_, rates, plan, care, scope=scope, progress=progress)
        kept = keep_states(self.model_, examples.ids, self.tokenizer_, progress=progress)
        self.model_.strategy.begin_corpus(kept.query)
        return learn_prompts(self.model_, examples, kept, self.tokenizer_, rates, plan, care, scope=scope, progress=progress)

    def facts(self) -> dict[str, Any]:
        return {
            "row_length": self.row_length_,
            "corpora": len(self.logs_),
            "topics": {"words": self.topics_.words, "labels": self.topics_.labels.tolist()} if self.topics_ else None,
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.row_length_ = facts["row_length"]
        if topics := facts.get("topics"):
            self.topics_ = Topics(np.array(topics.get("labels", []), dtype=np.int64), topics["words"])
        self.logs_ = [TrainingLog() for _ in range(facts["corpora"])]

    def start(self, backbone: Backbone) -> None:
        """A model around a backbone, not yet trained."""
        for option, allowed in CHOICES.items():
            if getattr(self, option) not in allowed:
                raise UsageError(f"{option}={getattr(self, option)!r} is none of {', '.join(allowed)}")
        for option, least in LEAST.items():
            if getattr(self, option) < least:
                raise UsageError(f"{option}={getattr(self, option)} is less than {least}")
        encoder = backbone.encoder
        encoder.config = dataclasses.replace(encoder.config, dropout=self.dropout, attention_dropout=self.dropout)
        for option in ("max_tokens", "document_tokens"):
            if not 3 <= getattr(self, option) <= encoder.config.max_tokens:
                raise UsageError(
                    f"{option}={getattr(self, option)} but the backbone {self.backbone} reads 3 to {encoder.config.max_tokens}"
                )
        strategy = make_strategy(self.prompts, **{"seed": self.seed, **self.prompt_options})
        keywords = {"pooling": self.pooling, "normalise": self.normalise, "scale": self.scale}
        model = DSI(encoder, strategy, **keywords, selection=self.selection, prefix_space=self.prefix_space)  # type: ignore[arg-type]
        self.model_ = model.to(torch.device(torch_device(self.device))).eval()
        self.tokenizer_ = backbone.tokenizer
        self.logs_, self.topics_, self.cut_documents_ = [], None, 0

    def _row_start(self, corpus: Corpus, how: str, *, length: float, annotated: bool = True, progress: Progress = silent) -> Tensor:
        """Where new rows begin: `random` U(±1/√D), or at `length` the `document`'s vector or the mean of its `queries`."""
        width, count = self.model_.rows.width, len(corpus)
        if how == "random":
            generator = seeded(self.seed, f"rows {len(self.model_.rows)}")
            drawn = (2 * torch.rand(count, width, generator=generator) - 1) / math.sqrt(width)
            return drawn.to(self.model_.encoder.word.weight.device)
        if how == "document":
            return length * self.document_vectors(corpus, progress=progress)
        asked = asked_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=annotated)
        place = {document.docid: number for number, document in enumerate(corpus.documents)}
        ids = self.tokenizer_.encode([one.text for one in asked], max_tokens=self.max_tokens).ids
        vectors = query_vectors(self.model_, ids, self.tokenizer_, progress=progress)
        return length * unit(mean_by_row(vectors, torch.tensor([place[one.docid] for one in asked]), 0, count))

    def _examples(self, corpus: Corpus, *, annotated: bool = True) -> Examples:
        asked = asked_of(corpus, pseudo=self.pseudo_queries, seed=self.seed, annotated=annotated)
        return tokenised(asked, self.model_.rows, self.tokenizer_, max_tokens=self.max_tokens)

    def _prepare_strategy(self, corpus: Corpus, examples: Examples) -> None:
        strategy = self.model_.strategy
        asks = strategy.center or strategy.wants_topics or type(strategy).prepare is not PromptStrategy.prepare
        if strategy.name == "none" or not asks:
            return  # nothing of D0 is needed later: no pass over its queries
        queries = selection_vectors(self.model_, examples.ids, self.tokenizer_)
        topic_of_query: Tensor | None = None
        if strategy.wants_topics:
            vectors = self.document_vectors(corpus).cpu().numpy()
            texts = [whole_text(document) for document in corpus.documents]
            self.topics_ = mine_topics(vectors, texts, engine=self.topic_engine, seed=self.seed)
            topic_of_query = torch.from_numpy(self.topics_.labels)[examples.targets].to(queries.device)
        strategy.prepare(queries, topic_of_query)
