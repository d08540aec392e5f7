"""What methods share that score by query vector × row: encoding, search, exact ranks, document vectors, saving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.engine.row_table import RowTable
from promptdsi.errors import UsageError
from promptdsi.methods.base import Result, check_k
from promptdsi.methods.options import Encoding
from promptdsi.methods.storage import SavedMethod, load_method, save_method
from promptdsi.model.backbone import Backbone
from promptdsi.model.dsi import DSI
from promptdsi.model.path import Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import document_vectors, query_vectors


@dataclass(kw_only=True)
class VectorSearch:
    """A mix-in for `Method`. Learned state: `model_` (encoder, prompts and rows), `tokenizer_` and `truncated_documents_`."""

    backbone: str = "minilm"
    encoding: Encoding = Encoding()
    device: str = "auto"
    offline: bool = False

    model_: DSI = field(init=False, repr=False, compare=False)
    tokenizer_: Tokenizer = field(init=False, repr=False, compare=False)
    truncated_documents_: int = field(init=False, repr=False, compare=False)  # of the last corpus

    def start(self, backbone: Backbone) -> None:
        """Make an untrained model around a backbone: sets `model_` and `tokenizer_`."""
        raise NotImplementedError

    def metadata(self) -> dict[str, Any]:
        """What was learned beside weights, as JSON."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """What was learned beside the model itself, by name: mean queries, a second tower."""
        return {}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `metadata` and `tensors` gave."""
        raise NotImplementedError

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        if not queries:
            return []
        docids = self.model_.rows.docids
        top = RowTable.from_rows(self.model_.rows).top(self.encode(queries).cpu().numpy(), k)
        return [Result([docids[row] for row in rows], scores) for rows, scores in zip(top.rows.tolist(), top.scores.tolist(), strict=True)]

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
        """Whether queries are encoded as they were after D0, whatever was trained since: then a cache may hold their vectors."""
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
        size, most = self.encoding.document_tokens, self.encoding.document_windows
        windows, self.truncated_documents_ = self.tokenizer_.windows(texts, size=size, most=most)
        return document_vectors(self.model_, windows, self.tokenizer_, progress=progress)

    def save(self: SavedMethod, folder: str | Path) -> None:
        save_method(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Read what `save` wrote; `device` replaces the one it was saved with."""
        return load_method(cls, Path(folder), device)  # type: ignore[type-var]  # only subclasses that are also a Method are loaded
