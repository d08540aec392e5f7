"""PromptDSI: frozen encoder, frozen old rows, new rows and a few prompts per corpus (the paper's method, any strategy).

    method = PromptDSI.from_params(PRESETS["best"]).fit(d0).add(d1)
    method.search(["who wrote hamlet"], k=10)

Keyword defaults are the paper's; `PRESETS["best"]` is what we recommend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.errors import UsageError
from promptdsi.methods.dsi_method import BEST_D0, DSIMethod, Pairs
from promptdsi.methods.options import merge_params
from promptdsi.model.backbone import Backbone
from promptdsi.model.path import unit
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import checksum_of
from promptdsi.training.encoding import compute_once, encode_once, lower_states, selection_vectors
from promptdsi.training.objectives import fitted_norms
from promptdsi.training.stages import Replay, RowOptions, learn_prompts, learn_rows
from promptdsi.training.topics import Topics, mine_topics
from promptdsi.training.training import Training, TrainingLog

# Learned rows alone, one per document, encoder trained: what the frontier of the study shows.
ROWS: dict[str, Any] = BEST_D0 | {
    "prompts": "none",
    "add": {"epochs": 10, "lr": 1e-3, "row_lr": 3e-3, "schedule": "constant", "row_decay": 0.0, "row_init": "document"},
    "rows": {"fix_row_norm": True, "row_norm": "fitted", "row_norm_scale": 0.88, "anchor_weight": 3.0},
}
# What we recommend: passages and words beside rows, which are learned over the encoder as it comes.
BEST: dict[str, Any] = merge_params(
    ROWS,
    {
        "encoding": {"passage_tokens": 256, "words": True, "int8": True, "scale": 40.0},
        "pseudo_queries": 2,
        "fit": {"learn": "rows", "epochs": 3},
        "rows": {"row_norm_scale": 0.94, "anchor_weight": 20.0},
    },
)
PRESETS: dict[str, dict[str, Any]] = {"paper": {}, "rows": ROWS, "best": BEST}


@dataclass(kw_only=True)
class PromptDSI(DSIMethod):
    """Learned state: also `topics_`, whose words serve people."""

    name: ClassVar[str] = "promptdsi"
    rehearsal_free: ClassVar[bool] = True

    prompts: str = "s++"
    prompt_options: dict[str, Any] = field(default_factory=dict)
    selection: str = "single"
    prefix_space: str = "post"
    topic_engine: str = "kmeans"
    add_options: Training = Training(epochs=10, lr=1e-4, row_lr=1e-4, schedule="epochs")  # `lr` is the prompts'
    rows: RowOptions = RowOptions()

    topics_: Topics | None = field(init=False, repr=False, compare=False)

    def add(
        self,
        corpus: Corpus,
        *,
        pairs: Pairs | None = None,
        train: bool = True,
        checkpoint: Path | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Train on the next corpus: nothing of an earlier one is read, and nothing of it changes.

        `pairs` are its `training_pairs(new=True)`, where the caller has them already. Without `train` the rows are the documents'
        vectors, ready as soon as they are encoded; `tune` trains them later. Any failure, Ctrl-C included, leaves the method as
        it was.
        """
        if train:
            self.check_trainable()
        before, blocks = {name: tensor.clone() for name, tensor in self.model_.strategy.state().items()}, len(self.model_.rows.blocks)
        row_init = self.add_options.row_init if train else "document"
        try:
            with encode_once(self.encodes_as_d0):
                if pairs is None and (train or row_init == "queries"):
                    pairs = self.training_pairs(corpus, new=True)
                rows = self.initial_rows(corpus, row_init, norm=self.row_norm_, pairs=pairs, progress=progress)
                rows = self._with_norms(rows, row_init)
                self.model_.rows.grow(self.passages(corpus).docids, rows)
                self.logs_.append(self._train_newest(pairs or (), checkpoint, progress) if train else TrainingLog())
                self.add_words(corpus)
        except BaseException:
            if len(self.model_.rows.blocks) > blocks:
                self.model_.rows.drop_last()
            self.model_.strategy.load_state(before)
            raise
        finally:
            self.freeze()
        return self

    def tune(self, corpus: Corpus, *, pairs: Pairs | None = None, progress: Progress = silent) -> Self:
        """Train the newest rows, which were added untrained, on the corpus they belong to. `pairs` as in `add`."""
        self.check_trainable()
        newest = self.model_.rows.docids[-len(self.model_.rows.blocks[-1]) :]
        if other := {document.docid for document in corpus.documents} - set(newest):
            raise ValueError(f"{min(other)!r} is not among the newest rows")
        self.model_.rows.learn_last()
        try:
            self.logs_.append(self._train_newest(self.training_pairs(corpus, new=True) if pairs is None else pairs, None, progress))
        finally:
            self.freeze()
        return self

    def check(self) -> None:
        super().check()
        if self.selection == "two-pass" and self.strategy().reselect_per_layer:
            raise UsageError("reselect_per_layer chooses prompts within one pass: it needs selection=single")

    def freeze(self) -> None:
        super().freeze()
        self.model_.strategy.freeze()

    def check_trainable(self) -> None:
        """Refuse to train rows without a removed option that the method was configured with."""
        if self.retired:
            options = ", ".join(f"{name}={value}" for name, value in self.retired.items())
            raise UsageError(
                f"made with {options}, which was removed: it can be searched and added to without training (fast), "
                "but new rows cannot be trained; create it anew without that option"
            )

    def _with_norms(self, rows: Tensor, row_init: str) -> Tensor:
        """Initial rows (n, D) at the norms the options ask for; random ones are left alone unless norms are fixed."""
        if row_init == "random" and not self.rows.fix_row_norm:
            return rows
        norms: Tensor | float = self.row_norm_
        if self.rows.row_norm == "fitted":  # on D0's rows: the norms of later ones are set, not trained
            old = self.model_.rows.elsewhere or self.model_.rows
            norms = fitted_norms(old, self.d0_rows_, rows, default=self.row_norm_)
        return self.rows.row_norm_scale * norms * unit(rows)

    def _train_newest(self, pairs: Pairs, checkpoint: Path | None, progress: Progress) -> TrainingLog:
        examples, options = self.examples(pairs), self.add_options
        keywords: dict[str, Any] = {"seed": self.seed + len(self.logs_), "checkpoint": checkpoint, "progress": progress}
        keywords["replay"] = self.old_queries()
        if self.prompts == "none":
            return learn_rows(self.model_, examples, self.tokenizer_, options, self.rows, **keywords)
        states = lower_states(self.model_, examples.ids, self.tokenizer_, progress=progress)
        self.model_.strategy.begin_corpus(states.query)
        return learn_prompts(self.model_, examples, states, self.tokenizer_, options, self.rows, **keywords)

    def first_limits(self) -> RowOptions:
        return self.rows

    def old_queries(self) -> Replay | None:
        """Old queries that are trained on again while the newest rows train; none unless a method stores them."""
        return None

    def prompt_counts(self, queries: Sequence[str]) -> list[int] | None:
        """How many queries select each prompt; None where none is selected (no prompts, or CODA's weighted sum)."""
        strategy = self.model_.strategy
        if not len(strategy.prompts) or not strategy.chooses:
            return None
        ids = self.tokenizer_.encode(list(queries), max_tokens=self.encoding.max_tokens).ids
        selected = strategy.select(selection_vectors(self.model_, ids, self.tokenizer_)).ids
        return torch.bincount(cast("Tensor", selected), minlength=sum(len(block) for block in strategy.prompts)).tolist()

    def trained_parameters(self) -> int:
        """Rows and prompt pools of all new corpora; fixed keys (topics) do not count."""
        sizes = self.model_.strategy.sizes()
        fixed = sizes["keys"] if self.model_.strategy.wants_topics else 0
        return super().trained_parameters() + sum(sizes.values()) - fixed

    def extra_bytes(self) -> int:
        return super().extra_bytes() + 4 * sum(self.model_.strategy.sizes().values())

    def metadata(self) -> dict[str, Any]:
        topics = self.topics_ and {**self.topics_._asdict(), "labels": self.topics_.labels.tolist()}
        return super().metadata() | {"topics": topics}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        if topics := metadata.get("topics"):
            self.topics_ = Topics(np.array(topics.get("labels", []), dtype=np.int64), topics["words"], topics.get("weights", ()))

    def start(self, backbone: Backbone) -> None:
        super().start(backbone)
        self.model_.selection, self.model_.prefix_space, self.topics_ = self.selection, self.prefix_space, None

    @property
    def encodes_as_d0(self) -> bool:
        return self.prompts == "none"

    def strategy(self) -> PromptStrategy:
        return make_strategy(self.prompts, **{"seed": self.seed, **self.prompt_options})

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        """Mine topics and give the strategy D0's selection vectors, where it uses them."""
        strategy = self.model_.strategy
        uses_d0 = strategy.center or strategy.null_prompt or strategy.wants_topics or type(strategy).prepare is not PromptStrategy.prepare
        if strategy.name == "none" or not uses_d0:
            return
        examples = self.examples(self.training_pairs(corpus) if pairs is None else pairs)
        queries = selection_vectors(self.model_, examples.ids, self.tokenizer_)
        topic_of_query: Tensor | None = None
        if strategy.wants_topics:
            vectors = self.document_vectors(corpus).cpu().numpy()
            texts = [whole_text(document) for document in self.passages(corpus).documents()]
            key = f"topics {self.topic_engine} {self.seed} {checksum_of(len(texts), [vectors])}"
            self.topics_ = compute_once(key, lambda: mine_topics(vectors, texts, engine=self.topic_engine, seed=self.seed))
            topic_of_query = torch.from_numpy(self.topics_.labels)[examples.targets].to(queries.device)
        strategy.prepare(queries, topic_of_query)
