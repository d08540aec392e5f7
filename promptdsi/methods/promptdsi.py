"""PromptDSI: frozen encoder, frozen old rows, new rows and a few prompts per corpus (the paper's method, any strategy).

    method = PromptDSI.from_params(PRESETS["best"]).fit(d0).add(d1)
    method.search(["who wrote hamlet"], k=10)

Keyword defaults are the paper's; `PRESETS["best"]` is what we recommend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import whole_text
from promptdsi.errors import UsageError
from promptdsi.methods.dsi import BEST_D0, DSIMethod
from promptdsi.methods.options import SCHEDULES, RowOptions, Training
from promptdsi.model.arrays import unit
from promptdsi.model.backbone import Backbone
from promptdsi.model.path import PREFIX_SPACES, SELECTIONS
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import keep_states, selection_vectors
from promptdsi.training.lengths import fitted_lengths
from promptdsi.training.stages import Rates, RetentionLoss, Softmax, learn_prompts, learn_rows
from promptdsi.training.topics import ENGINES, Topics, mine_topics
from promptdsi.training.training import Plan, TrainingLog

BEST: dict[str, Any] = BEST_D0 | {
    "prompts": "none",
    "add": {"epochs": 10, "lr": 1e-3, "row_lr": 3e-3, "schedule": "constant", "row_decay": 0.0, "row_init": "document"},
    "rows": {"fix_row_norm": True, "row_norm": "fitted", "row_norm_scale": 0.88, "anchor_weight": 3.0},
}
PRESETS: dict[str, dict[str, Any]] = {"paper": {}, "best": BEST}


@dataclass(kw_only=True)
class PromptDSI(DSIMethod):
    """Learned state: also `topics_` (words, for people)."""

    name: ClassVar[str] = "promptdsi"
    rehearsal_free: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = DSIMethod.choices | {
        "selection": SELECTIONS,
        "prefix_space": PREFIX_SPACES,
        "topic_engine": tuple(ENGINES),
        "add.schedule": SCHEDULES,
        "rows.softmax_scope": ("all_seen", "new_only"),
        "rows.row_norm": ("mean", "fitted"),
    }
    least: ClassVar[dict[str, float]] = DSIMethod.least | {
        "add.batch_size": 1,
        "add.epochs": 0,
        "add.lr": 0.0,
        "add.row_lr": 0.0,
        "add.row_decay": 0.0,
        "rows.row_norm_scale": 0.0,
        "rows.anchor_weight": 0.0,
    }

    prompts: str = "s++"
    prompt_options: dict[str, Any] = field(default_factory=dict)
    selection: str = "single"
    prefix_space: str = "post"
    topic_engine: str = "kmeans"
    add_options: Training = Training(epochs=10, lr=1e-4, row_lr=1e-4, schedule="epochs")
    rows: RowOptions = RowOptions()

    topics_: Topics | None = field(init=False, repr=False, compare=False)

    def add(self, corpus: Corpus, *, train: bool = True, progress: Progress = silent) -> Self:
        """Learn the next corpus: nothing of an earlier one is read, and nothing of it changes.

        Without `train` the rows are the documents' vectors, ready as soon as they are encoded; `tune` trains them later.
        Whatever goes wrong, Ctrl-C included, leaves the method as it was.
        """
        if train:
            self.check_trainable()
        before, blocks = {name: tensor.clone() for name, tensor in self.model_.strategy.state().items()}, len(self.model_.rows.blocks)
        how = self.add_options.row_init if train else "document"
        try:
            start = self._sized(self.row_start(corpus, how, length=self.row_length_, progress=progress), how)
            self.model_.rows.grow([document.docid for document in corpus.documents], start)
            self.logs_.append(self._train_newest(corpus, progress) if train else TrainingLog())
        except BaseException:
            if len(self.model_.rows.blocks) > blocks:
                self.model_.rows.drop_last()
            self.model_.strategy.load_state(before)
            raise
        finally:
            self._settle()
        return self

    def _sized(self, start: Tensor, how: str) -> Tensor:
        """Starting rows (n, D) at the length the options ask for; random ones are left alone unless lengths are held."""
        if how == "random" and not self.rows.fix_row_norm:
            return start
        rows = self.model_.rows.blocks[0].detach()  # D0's: later rows have lengths by rule, not by training
        lengths: Tensor | float = (
            self.row_length_ if self.rows.row_norm == "mean" else fitted_lengths(rows, start, otherwise=self.row_length_)
        )
        return self.rows.row_norm_scale * lengths * unit(start)

    def tune(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Train the newest rows, which were added untrained, for the corpus they belong to."""
        self.check_trainable()
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
        examples = self.examples(self.training_pairs(corpus, new=True))
        options = self.add_options
        rates = Rates(0.0, options.row_lr, options.lr, 0.0, options.row_decay)
        plan = Plan(options.epochs, options.batch_size, options.schedule, self.seed + len(self.logs_))
        softmax = Softmax(self.encoding.scale, self.rows.softmax_scope)
        if self.prompts == "none":
            return learn_rows(self.model_, examples, self.tokenizer_, rates, plan, self.retention(), softmax, progress=progress)
        kept = keep_states(self.model_, examples.ids, self.tokenizer_, progress=progress)
        self.model_.strategy.begin_corpus(kept.query)
        return learn_prompts(self.model_, examples, kept, self.tokenizer_, rates, plan, self.retention(), softmax, progress=progress)

    def check_trainable(self) -> None:
        """Refuse to train rows without an option that was removed and that all earlier rows were trained with."""
        if self.retired:
            options = ", ".join(f"{name}={value}" for name, value in self.retired.items())
            raise UsageError(
                f"made with {options}, which was removed: it can be searched and added to without training (fast), "
                "but new rows cannot be trained; create it anew without that option"
            )

    def retention(self) -> RetentionLoss:
        """What keeps old documents retrievable while the newest rows learn."""
        return RetentionLoss(self.rows.fix_row_norm, self.rows.anchor_weight)

    def prompt_counts(self, queries: Sequence[str]) -> list[int] | None:
        """How many queries choose each prompt; None where prompts are not chosen (none, and CODA's weighted sum)."""
        strategy = self.model_.strategy
        if not len(strategy.prompts) or not strategy.chooses:
            return None
        ids = self.tokenizer_.encode(list(queries), max_tokens=self.encoding.max_tokens).ids
        chosen = strategy.select(selection_vectors(self.model_, ids, self.tokenizer_)).ids
        return torch.bincount(cast("Tensor", chosen), minlength=sum(len(block) for block in strategy.prompts)).tolist()

    def trained_parameters(self) -> int:
        """Rows and pools of all new corpora; keys that are fixed (topics) do not count."""
        sizes = self.model_.strategy.sizes()
        fixed = sizes["keys"] if self.model_.strategy.wants_topics else 0
        return super().trained_parameters() + sum(sizes.values()) - fixed

    def extra_bytes(self) -> int:
        return 4 * sum(self.model_.strategy.sizes().values())

    def metadata(self) -> dict[str, Any]:
        topics = {"words": self.topics_.words, "labels": self.topics_.labels.tolist()} if self.topics_ else None
        return super().metadata() | {"topics": topics}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        if topics := metadata.get("topics"):
            self.topics_ = Topics(np.array(topics.get("labels", []), dtype=np.int64), topics["words"])

    def start(self, backbone: Backbone) -> None:
        super().start(backbone)
        self.topics_ = None

    @property
    def encodes_as_d0(self) -> bool:
        return self.prompts == "none"

    def strategy(self) -> PromptStrategy:
        return make_strategy(self.prompts, **{"seed": self.seed, **self.prompt_options})

    def path(self) -> dict[str, str]:
        return {"selection": self.selection, "prefix_space": self.prefix_space}

    def prepare(self, corpus: Corpus) -> None:
        """Mine topics, and let the strategy see D0's selection vectors, where it wants them."""
        strategy = self.model_.strategy
        asks = strategy.center or strategy.null_prompt or strategy.wants_topics or type(strategy).prepare is not PromptStrategy.prepare
        if strategy.name == "none" or not asks:
            return  # nothing of D0 is needed later: no pass over its queries
        examples = self.examples(self.training_pairs(corpus))
        queries = selection_vectors(self.model_, examples.ids, self.tokenizer_)
        topic_of_query: Tensor | None = None
        if strategy.wants_topics:
            vectors = self.document_vectors(corpus).cpu().numpy()
            texts = [whole_text(document) for document in corpus.documents]
            self.topics_ = mine_topics(vectors, texts, engine=self.topic_engine, seed=self.seed)
            topic_of_query = torch.from_numpy(self.topics_.labels)[examples.targets].to(queries.device)
        strategy.prepare(queries, topic_of_query)
