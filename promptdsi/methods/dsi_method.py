"""What every differentiable search index shares: how D0 is trained, and how a D0 that was trained before is taken over.

Sequential, DSI++, IncDSI, PromptDSI, … differ in how they train on the corpora after it: in `add`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.engine.words import WordTable
from promptdsi.errors import UsageError
from promptdsi.methods.base import Method
from promptdsi.methods.options import LEAST, check_options, flatten_params
from promptdsi.methods.vector_search import VectorSearch
from promptdsi.model.backbone import Backbone, load_backbone
from promptdsi.model.dsi import seeded
from promptdsi.model.path import unit
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import checksum_of
from promptdsi.training.distributed import team
from promptdsi.training.encoding import mean_by_position
from promptdsi.training.examples import Examples, TrainingPair, tokenize_pairs, training_pairs_of
from promptdsi.training.sharded import FirstRows
from promptdsi.training.shared_stages import learn_together
from promptdsi.training.stages import RowOptions, learn_everything, learn_rows
from promptdsi.training.training import FirstTraining, TrainingLog

# How the recommended preset trains D0, for any method; class defaults are the paper's.
BEST_D0: dict[str, Any] = {
    "encoding": {"pooling": "mean", "normalize": True, "scale": 20.0, "max_tokens": 64},
    "pseudo_queries": 5,
    "fit": {"epochs": 3, "lr": 5e-5, "row_lr": 1e-3, "schedule": "constant", "row_decay": 0.0, "row_init": "document"},
    "add": {"row_init": "document"},
}
Pairs = Sequence[TrainingPair]


@dataclass(kw_only=True)
class DSIMethod(VectorSearch, Method):
    """Learned state: also `row_norm_` (mean of D0's rows), `d0_rows_` (their number), `logs_`, and `replay_` where queries are stored."""

    least: ClassVar[dict[str, float]] = LEAST  # a subclass adds its own options

    pseudo_queries: int = 15
    new_corpus_queries: str = "gen+train"  # or gen, the paper's problem statement
    fit_options: FirstTraining = FirstTraining(epochs=20, lr=1e-4, row_lr=1e-4, schedule="epochs")
    seed: int = 0

    row_norm_: float = field(init=False, repr=False, compare=False)
    d0_rows_: int = field(init=False, repr=False, compare=False)
    logs_: list[TrainingLog] = field(init=False, repr=False, compare=False)
    replay_: tuple[TrainingPair, ...] | None = field(init=False, repr=False, compare=False)

    def fit(
        self,
        corpus: Corpus,
        *,
        pairs: Pairs | None = None,
        words: WordTable | None = None,
        checkpoint: Path | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Train on D0 what `fit_options.learn` says, freeze it, and prepare for later corpora.

        `pairs` are the corpus's `training_pairs` and `words` its words, where the caller has them already.
        """
        options = self.fit_options
        self.start(load_backbone(self.backbone, offline=self.offline))
        pairs = self.training_pairs(corpus) if pairs is None and options.learn != "nothing" else pairs or ()
        if options.learn != "everything":
            self.model_.encoder.freeze()
        docids, log = self.passages(corpus).docids, TrainingLog()
        keywords: dict[str, Any] = {"seed": self.seed, "checkpoint": checkpoint, "progress": progress}
        if checkpoint:
            keywords["begins"] = self._begins(corpus)
        if 1 < team().size <= len(docids):
            return self._freeze_d0(corpus, [self._fit_together(corpus, pairs, keywords)], pairs, words)
        rows = self.initial_rows(corpus, options.row_init, norm=1.0, pairs=pairs, progress=progress)
        self.model_.rows.grow(docids, rows)
        if options.learn == "everything":
            log = learn_everything(self.model_, self.examples(pairs), self.tokenizer_, options, **keywords)
        elif options.learn == "rows":
            log = learn_rows(self.model_, self.examples(pairs), self.tokenizer_, options, self.first_limits(), **keywords)
        return self._freeze_d0(corpus, [log], pairs, words)

    def _fit_together(self, corpus: Corpus, pairs: Pairs, keywords: dict[str, Any]) -> TrainingLog:
        """Train D0 with the processes that help: each has a share of the rows from the start."""
        options, docids = self.fit_options, self.passages(corpus).docids
        first = self.first_rows(corpus, options.row_init)
        self.model_.rows.grow(docids, torch.zeros(1, 1).expand(len(docids), self.model_.rows.width))  # no memory: rows that are elsewhere
        examples = self.examples(pairs) if options.learn != "nothing" else None
        what = "learning D0" if options.learn == "everything" else "learning rows"
        limits = self.first_limits()
        return learn_together(options.learn, self.model_, examples, self.tokenizer_, options, limits, first=first, what=what, **keywords)

    def _begins(self, corpus: Corpus) -> str:
        """A checksum of what D0's rows begin as: the same for any number of processes."""
        settings = [self.fit_options.row_init, self.seed, *vars(self.encoding).values()]
        texts = (whole_text(document) + "\0" for document in self.passages(corpus).documents())
        return checksum_of(settings, (np.frombuffer(text.encode(), np.uint8) for text in texts))

    def first_limits(self) -> RowOptions:
        """What bounds D0's rows where only they train."""
        return RowOptions()

    def begin_from(self, d0: DSIMethod, corpus: Corpus) -> Self:
        """Begin with the D0 another method has trained on `corpus`: methods that are compared start from the same weights."""
        params, other = flatten_params(self.get_params()), flatten_params(d0.get_params())
        for option in ("backbone", "encoding.max_tokens", "encoding.pooling", "encoding.normalize", "encoding.scale"):
            if params[option] != other[option]:
                raise UsageError(f"{option}={params[option]!r}, but D0 was learned with {other[option]!r}")
        self.start(Backbone(d0.backbone, copy.deepcopy(d0.model_.encoder), d0.tokenizer_, d0.encoding.pooling))
        rows = torch.cat([block.detach().clone() for block in d0.model_.rows.blocks]).to(self.model_.device)
        self.model_.rows.grow(list(d0.model_.rows.docids), rows)
        return self._freeze_d0(corpus, list(d0.logs_), None, None)

    def _freeze_d0(self, corpus: Corpus, logs: list[TrainingLog], pairs: Pairs | None, words: WordTable | None) -> Self:
        self.logs_ = logs
        self.freeze()
        self.row_norm_ = float(self.model_.rows.blocks[0].detach().norm(dim=1).mean())
        self.d0_rows_ = len(self.model_.rows)
        self.prepare(corpus, pairs)
        if words is None:
            self.add_words(corpus)
        self.words_ = words or self.words_
        self.calibrate(corpus)
        return self

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        """Take from D0 what later corpora need of it: topics, mean queries, stored queries. `pairs` as in `fit`."""

    def freeze(self) -> None:
        self.model_.eval()
        self.model_.encoder.freeze()
        self.model_.rows.freeze()

    def trained_parameters(self) -> int:
        return (len(self.model_.rows) - self.d0_rows_) * self.model_.rows.width

    def extra_bytes(self) -> int:
        return sum(len(text.encode("utf-8")) for pair in self.replay_ or () for text in (pair.text, pair.docid))

    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"row_norm": self.row_norm_, "corpora": len(self.logs_), "d0_rows": self.d0_rows_}
        return metadata | self.word_metadata() | ({} if self.replay_ is None else {"replay": [tuple(pair) for pair in self.replay_]})

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.row_norm_ = metadata["row_norm"]
        self.d0_rows_ = metadata.get("d0_rows") or len(self.model_.rows.blocks[0])
        self.logs_ = [TrainingLog() for _ in range(metadata["corpora"])]
        self.replay_ = tuple(TrainingPair(*pair) for pair in metadata["replay"]) if "replay" in metadata else None

    def start(self, backbone: Backbone) -> None:
        self.check()
        limits = {"encoding.max_tokens": self.encoding.max_tokens, "encoding.document_tokens": self.encoding.document_tokens}
        self.model_ = self.make_model(backbone.encoder, self.strategy(), limits=limits)
        self.tokenizer_ = backbone.tokenizer
        self.logs_, self.truncated_documents_, self.replay_ = [], 0, None
        self.words_ = self.calibration_ = None

    def check(self) -> None:
        """Refuse keywords that make no sense, as far as that can be known without a backbone."""
        check_options(self.get_params(), self.least)
        self.strategy()

    def strategy(self) -> PromptStrategy:
        """The prompts new corpora are learned with; none unless a method says otherwise."""
        return make_strategy("none")

    def initial_rows(
        self, corpus: Corpus, row_init: str, *, norm: float, pairs: Pairs | None = None, progress: Progress = silent
    ) -> Tensor:
        """Rows before training: `random` U(±1/√D), or of the given norm the `document`'s vector or its `queries`' mean: (n, D)."""
        if row_init == "document":
            return norm * self.document_vectors(corpus, progress=progress)
        first = self.first_rows(corpus, row_init)
        if row_init == "random":
            rows: Tensor = first.read(0, len(self.passages(corpus).docids))
            return rows.to(self.model_.device)
        pairs = self.training_pairs(corpus, new=len(self.model_.rows) > 0) if pairs is None else pairs
        return norm * unit(self.mean_queries(corpus, pairs, self.encode([pair.text for pair in pairs], progress=progress)))

    def first_rows(self, corpus: Corpus, row_init: str) -> FirstRows:
        """The same for rows that no process has all of: what is read of them, from one row to another, in order."""
        width = self.model_.rows.width
        if row_init == "document":
            return FirstRows(row_init, self.document_windows(corpus))
        if row_init == "random":
            generator = seeded(self.seed, f"rows {self.model_.rows.total}")
            return FirstRows("rows", lambda low, high: (2 * torch.rand(high - low, width, generator=generator) - 1) / math.sqrt(width))
        if len(self.passages(corpus).docids) > len(corpus):
            raise UsageError("row_init=queries needs one row per document: set encoding.passage_tokens to 0")
        return FirstRows(row_init)

    def mean_queries(self, corpus: Corpus, pairs: Pairs, vectors: Tensor) -> Tensor:
        """The mean vector of each document's training queries: (n, D), from the vectors of all pairs."""
        return mean_by_position(vectors, self.positions(corpus, pairs), len(corpus))

    def positions(self, corpus: Corpus, pairs: Pairs) -> Tensor:
        """The position in the corpus of each pair's document: (n,)."""
        position = {document.docid: number for number, document in enumerate(corpus.documents)}
        return torch.tensor([position[pair.docid] for pair in pairs], device=self.model_.device)

    def training_pairs(self, corpus: Corpus, *, new: bool = False) -> list[TrainingPair]:
        """The queries a corpus is learned from; of a new corpus the annotated ones only if `new_corpus_queries` says so."""
        annotated = not new or self.new_corpus_queries == "gen+train"
        return training_pairs_of(self.passages(corpus), pseudo=self.pseudo_queries, seed=self.seed, annotated=annotated)

    def annotated_words(self) -> bool:
        return self.words_ is None or self.new_corpus_queries == "gen+train"

    def examples(self, pairs: Pairs) -> Examples:
        return tokenize_pairs(pairs, self.model_.rows, self.tokenizer_, max_tokens=self.encoding.max_tokens)
