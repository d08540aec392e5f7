"""What methods share that score by query vector × row: passages, words, encoding, search and exact ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.corpus.passages import Passages, cut_corpus, whole_documents
from promptdsi.engine.postings import Postings, WordStatistics
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import Calibration, WordTable
from promptdsi.errors import UsageError
from promptdsi.methods.base import Result, check_k
from promptdsi.methods.options import Encoding
from promptdsi.methods.saving import SavedMethod, SavedWords, load_method, save_method
from promptdsi.model.backbone import Backbone
from promptdsi.model.config import torch_device
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Encoder
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.model.tokenizer import Ids, Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import document_vectors, query_vectors
from promptdsi.training.examples import LEAST_QUERIES, calibration_pairs
from promptdsi.training.fusion import DEFAULT_WEIGHT, MOST_SCORES, collect, fit_calibration, fit_weight
from promptdsi.wording import agreeing


@dataclass(kw_only=True)
class VectorSearch(ABC):
    """A mix-in for `Method`. Learned state: `model_` (encoder, prompts and rows), `tokenizer_` and `truncated_documents_`."""

    backbone: str = "minilm"
    encoding: Encoding = Encoding()
    device: str = "auto"
    offline: bool = False

    model_: DSI = field(init=False, repr=False, compare=False)
    tokenizer_: Tokenizer = field(init=False, repr=False, compare=False)
    truncated_documents_: int = field(init=False, repr=False, compare=False)  # of the last corpus
    words_: WordTable | None = field(default=None, init=False, repr=False, compare=False)
    word_salt_: str = field(default="", init=False, repr=False, compare=False)  # with one, words are stored as hashes
    _last_passages: Passages | None = field(default=None, init=False, repr=False, compare=False)
    calibration_: Calibration | None = field(default=None, init=False, repr=False, compare=False)

    @abstractmethod
    def start(self, backbone: Backbone) -> None:
        """Make an untrained model around a backbone: sets `model_` and `tokenizer_`."""

    def make_model(self, encoder: Encoder, strategy: PromptStrategy | None = None, *, limits: Mapping[str, int] | None = None) -> DSI:
        """A model without rows, as `encoding` says. `limits` are token limits by name: the encoder must be able to read as many."""
        encoding, most = self.encoding, encoder.config.max_tokens
        for option, tokens in (limits or {}).items():
            if not 3 <= tokens <= most:
                raise UsageError(f"{option}={tokens} but the backbone {self.backbone} reads 3 to {most}")
        encoder.config = replace(encoder.config, dropout=encoding.dropout, attention_dropout=encoding.dropout)
        keywords: dict[str, Any] = {"pooling": encoding.pooling, "normalize": encoding.normalize, "scale": encoding.scale}
        keywords["int8"] = encoding.int8
        return DSI(encoder, strategy or make_strategy("none"), **keywords).to(torch.device(torch_device(self.device))).eval()

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What was learned beside weights, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What was learned beside the model itself, by name: mean queries, a second tower."""
        return {}

    @abstractmethod
    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `metadata` and `tensors` gave."""

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        queries = [queries] if isinstance(queries, str) else list(queries)
        if not queries:
            return []
        docids = self.model_.rows.docids
        words = [self.words_.query(query) for query in queries] if self.words_ else None
        top = RowTable.from_rows(self.model_.rows).top(self.encode(queries).cpu().numpy(), k, words)
        return [Result([docids[row] for row in rows], scores) for rows, scores in zip(top.rows.tolist(), top.scores.tolist(), strict=True)]

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        rows = self.model_.rows
        if unknown := [docid for docid in docids if rows.row_of.get(docid, -1) < 0 or rows.row_of[docid] in rows.deleted]:
            raise UsageError(f"{agreeing(len(unknown), 'documents are not in the index')}, {unknown[0]!r} first")
        if not queries:
            return np.empty(0, dtype=np.int64)
        vectors = self.encode(queries)
        if self.words_ is None and not rows.several and rows.blocks[0].device.type != "cpu":  # an accelerator ranks faster than the CPU
            return rows.ranks(vectors, rows.numbers(docids).to(vectors.device)).cpu().numpy()
        table, arrays = RowTable.from_rows(rows), vectors.cpu().numpy()
        words = [self.words_.query(query) if self.words_ else None for query in queries]
        return np.concatenate(table.ranks(arrays, [[rows.row_of[docid]] for docid in docids], words))

    @property
    def row_width(self) -> int:
        """The width of learned rows."""
        return int(self.model_.encoder.config.width)

    @property
    def encodes_as_d0(self) -> bool:
        """Whether queries are encoded as they were after D0, whatever was trained since: then a cache may hold their vectors."""
        return False

    @torch.no_grad()
    def encode(self, queries: Sequence[str], *, prompted: bool = True, progress: Progress = silent) -> Tensor:
        """Query vectors, ready to be scored: (n, D)."""
        queries = [queries] if isinstance(queries, str) else list(queries)
        ids = self.tokenizer_.encode(queries, max_tokens=self.encoding.max_tokens).ids
        return query_vectors(self.model_, ids, self.tokenizer_, prompted=prompted, progress=progress)

    def passages(self, corpus: Corpus) -> Passages:
        """The passages that get a row: one per document unless `encoding.passage_tokens` says otherwise."""
        limit = min(self.encoding.passage_tokens, self.encoding.document_tokens)  # a passage is read in one window
        if not limit:
            return whole_documents(corpus)
        # Kept until the corpus is learned: training needs them again and again.
        if self._last_passages is None or self._last_passages.corpus is not corpus:
            self._last_passages = cut_corpus(corpus, limit, self.tokenizer_.token_starts)
        return self._last_passages

    def add_words(self, corpus: Corpus) -> None:
        """Take in the words of a corpus whose rows were just added, where words count."""
        if not self.encoding.words:
            self._last_passages = None
            return
        postings = self._postings(corpus, annotated=self.annotated_words())
        self._last_passages = None  # no text of a corpus is kept once it is learned
        if self.words_ is None:
            weight = self.encoding.word_weight or DEFAULT_WEIGHT
            self.words_ = WordTable(postings, WordStatistics.of(*postings), weight=weight, salt=self.word_salt_)
        else:
            self.words_ = self.words_.grown(postings)

    def _postings(self, corpus: Corpus, *, annotated: bool) -> list[Postings]:
        """The words of a corpus's passages, piece by piece, and where `annotated` those of its annotated train queries."""
        passages = self.passages(corpus)
        texts = passages.texts_with_queries(corpus.pairs("train", kinds=("annotated",)) if annotated else ())
        counts = passages.counts
        sizes = (sum(counts[piece.start : piece.stop]) for piece in passages.pieces())
        return [Postings.build(islice(texts, size), self.word_salt_) for size in sizes]

    def annotated_words(self) -> bool:
        """Whether the words of the corpus's annotated train queries count as words of their documents."""
        return True

    @torch.no_grad()
    def calibrate(self, corpus: Corpus) -> None:
        """Fit the weight of words and the confidence of hits on D0's queries: dev where there are enough, else train, else pseudo."""
        rows = self.model_.rows
        pairs, kind = calibration_pairs(self.passages(corpus), seed=0, limit=MOST_SCORES // max(len(rows), 1))
        words = self.words_
        if words and kind == "train":  # their own words stand beside their documents': they are scored without them
            words = WordTable(self._postings(corpus, annotated=False), words.statistics, salt=words.salt)
        self._last_passages = None
        if len(pairs) < LEAST_QUERIES:
            return
        table, texts = RowTable.from_rows(rows), [pair.text for pair in pairs]
        scored = collect(table, self.encode(texts).cpu().numpy(), texts, [rows.row_of[pair.docid] for pair in pairs], words)
        if self.words_ and kind != "pseudo" and not self.encoding.word_weight:
            self.words_ = self.words_.weighted(fit_weight(scored))
        self.calibration_ = fit_calibration(scored, self.words_.weight if self.words_ else 0.0, pseudo=kind == "pseudo")

    def word_metadata(self) -> dict[str, Any]:
        """The learned weight of words, and the calibration of confidences, as JSON."""
        words = {"word_weight": self.words_.weight, "word_salt": self.word_salt_} if self.words_ else {}
        return words | ({"calibration": self.calibration_._asdict()} if self.calibration_ else {})

    def load_words(self, metadata: dict[str, Any], words: SavedWords | None) -> None:
        """Restore what `word_metadata` and the word files gave."""
        self.calibration_ = Calibration(**metadata["calibration"]) if "calibration" in metadata else None
        if words:
            self.word_salt_ = metadata["word_salt"]
            self.words_ = WordTable(words.postings, words.statistics, weight=metadata["word_weight"], salt=self.word_salt_)

    def document_vectors(self, corpus: Corpus, *, progress: Progress = silent) -> Tensor:
        """The unit vector of each document, or of each passage: (n, D)."""
        windows = self.document_windows(corpus)(0, None)
        return document_vectors(self.model_, windows, self.tokenizer_, progress=progress)

    def document_windows(self, corpus: Corpus) -> Callable[[int, int | None], list[list[Ids]]]:
        """The windows of documents, or passages, from one to another; `truncated_documents_` counts those that are longer."""
        documents, self.truncated_documents_ = self.passages(corpus).documents(), 0

        def windows(first: int, last: int | None) -> list[list[Ids]]:
            texts = [whole_text(document) for document in documents[first:last]]
            size, most = self.encoding.document_tokens, self.encoding.document_windows
            ids, longer = self.tokenizer_.windows(texts, size=size, most=most)
            self.truncated_documents_ += longer
            return ids

        return windows

    def save(self: SavedMethod, folder: str | Path) -> None:
        save_method(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Read what `save` wrote; `device` replaces the one it was saved with."""
        return load_method(cls, Path(folder), device)  # type: ignore[type-var]  # only subclasses that are also a Method are loaded
