"""Dense: the backbone as it is; a document's vector is its row, and nothing is trained.

method = Dense().fit(d0).add(d1)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.base import Method
from promptdsi.methods.options import Encoding, check_options
from promptdsi.methods.vector_search import VectorSearch
from promptdsi.model.backbone import Backbone, load_backbone
from promptdsi.progress import Progress, silent


@dataclass(kw_only=True)
class Dense(VectorSearch, Method):
    """Cosine of the query's vector with the documents', pooled as the backbone was trained: of `encoding` only token limits count."""

    name: ClassVar[str] = "dense"
    rehearsal_free: ClassVar[bool] = True

    encoding: Encoding = Encoding(max_tokens=64)

    @property
    def encodes_as_d0(self) -> bool:
        return True

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        self.start(load_backbone(self.backbone, offline=self.offline))
        return self.add(corpus, progress=progress)

    def add(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        rows = self.document_vectors(corpus, progress=progress)
        self.model_.rows.grow(self.passages(corpus).docids, rows)
        self.model_.rows.freeze()
        self.add_words(corpus)
        return self

    def start(self, backbone: Backbone) -> None:
        check_options(self.get_params())
        self.model_ = self.make_model(backbone.encoder)
        self.model_.pooling, self.model_.normalize = backbone.pooling, True
        self.model_.encoder.freeze()
        self.tokenizer_, self.truncated_documents_ = backbone.tokenizer, 0
        self.words_ = None

    def metadata(self) -> dict[str, Any]:
        return {"pooling": self.model_.pooling} | self.word_metadata()

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.model_.pooling = metadata["pooling"]
