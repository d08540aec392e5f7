"""What methods share that answer with query vector × rows: encoding, search, exact ranks, document vectors, keeping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import whole_text
from promptdsi.engine.row_table import RowTable
from promptdsi.errors import UsageError
from promptdsi.methods.method import Method, Result, check_k
from promptdsi.methods.options import Encoding
from promptdsi.methods.storage import load_method, save_method
from promptdsi.model.backbone import Backbone
from promptdsi.model.dsi import DSI
from promptdsi.model.tokenizer import Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import document_vectors, query_vectors


@dataclass(kw_only=True)
class NeuralMethod(Method):
    """Learned state: `model_` (encoder, prompts and rows), `tokenizer_`, and how many documents were longer than may be read."""

    backbone: str = "minilm"
    encoding: Encoding = Encoding()
    device: str = "auto"
    offline: bool = False

    model_: DSI = field(init=False, repr=False, compare=False)
    tokenizer_: Tokenizer = field(init=False, repr=False, compare=False)
    cut_documents_: int = field(init=False, repr=False, compare=False)

    @abstractmethod
    def start(self, backbone: Backbone) -> None:
        """A model around a backbone, nothing learned yet: sets `model_` and `tokenizer_`."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What was learned beside weights, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What was learned beside the model itself, by name: mean queries, a second tower."""
        return {}

    @abstractmethod
    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `metadata` and `tensors` gave."""

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        if not queries:
            return []
        found = RowTable.from_rows(self.model_.rows).top(self.encode(queries).cpu().numpy(), k)
        docids = self.model_.rows.docids
        return [
            Result([docids[row] for row in rows], scores) for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        ]

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        rows = self.model_.rows
        if unknown := [docid for docid in docids if rows.row_of.get(docid, -1) < 0 or rows.row_of[docid] in rows.deleted]:
            raise UsageError(f"{len(unknown)} documents are not in the index, {unknown[0]!r} first")
        if not queries:
            return np.empty(0, dtype=np.int64)
        vectors = self.encode(queries)
        return rows.ranks(vectors, rows.numbers(docids).to(vectors.device)).cpu().numpy()

    @property
    def encodes_as_d0(self) -> bool:
        """Whether queries are encoded as they were after D0, whatever was learned since: then it need be done only once."""
        return False

    @torch.no_grad()
    def encode(self, queries: Sequence[str], *, prompted: bool = True, progress: Progress = silent) -> Tensor:
        """Query vectors, ready to be scored: (n, D)."""
        queries = [queries] if isinstance(queries, str) else list(queries)
        ids = self.tokenizer_.encode(queries, max_tokens=self.encoding.max_tokens).ids
        return query_vectors(self.model_, ids, self.tokenizer_, prompted=prompted, progress=progress)

    def document_vectors(self, corpus: Corpus, *, progress: Progress = silent) -> Tensor:
        """The unit vector of each document: (n, D)."""
        texts = [whole_text(document) for document in corpus.documents]
        windows, self.cut_documents_ = self.tokenizer_.windows(
            texts, size=self.encoding.document_tokens, most=self.encoding.document_windows
        )
        return document_vectors(self.model_, windows, self.tokenizer_, progress=progress)

    def save(self, folder: str | Path) -> None:
        save_method(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Read what `save` wrote; `device` replaces the one it was saved with."""
        return load_method(cls, Path(folder), device)
