"""Analytic: every row in closed form over a frozen encoder, by ridge regression (as RanPAC, McDonnell et al., 2023). No gradient step.

    method = Analytic().fit(d0).add(d1)

With X the vectors of all training queries and documents and Y the document of each, the rows are V = YᵀX (XᵀX + λI)⁻¹. A new corpus adds
to XᵀX and to YᵀX, so that adding corpora one after the other gives the rows of learning all at once, up to rounding: YᵀX of old documents
is recovered from their rows. No old query or document is needed; but old rows change with every corpus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.methods.options import LEAST
from promptdsi.model.backbone import Backbone
from promptdsi.model.dsi import seeded
from promptdsi.model.rows import Rows
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import mean_by_position
from promptdsi.training.training import TrainingLog


@dataclass(kw_only=True)
class Analytic(DSIMethod):
    """Learned state: also `gram_`, XᵀX (M, M) in double precision, and `features_`, the random projection (D, M) if there is one."""

    name: ClassVar[str] = "analytic"
    rehearsal_free: ClassVar[bool] = True
    least: ClassVar[dict[str, float]] = LEAST | {"projection": 0, "ridge": 1e-9}

    projection: int = 2048  # M of random features, relu(xW); 0: the vectors themselves
    ridge: float = 0.01  # λ as a multiple of the mean of XᵀX's diagonal over D0

    gram_: Tensor = field(init=False, repr=False, compare=False)
    features_: Tensor | None = field(init=False, repr=False, compare=False)

    def start(self, backbone: Backbone) -> None:
        super().start(backbone)
        width, device = backbone.encoder.config.width, self.model_.device
        self.features_, self.gram_ = None, torch.zeros(0, 0, dtype=torch.double)
        if self.projection:
            self.features_ = torch.randn(width, self.projection, generator=seeded(self.seed, "projection")).to(device)

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        """Replace D0's rows by those of the closed form."""
        vectors, sums = self._statistics(corpus, pairs or self.training_pairs(corpus))
        if self.model_.rows.width != vectors.shape[1]:
            docids, self.model_.rows = self.model_.rows.docids, Rows(vectors.shape[1]).to(vectors.device)
            self.model_.rows.grow(docids, sums.float())
        ridge = self.ridge * float((vectors.double() ** 2).sum()) / vectors.shape[1]
        self.gram_ = _gram(vectors) + ridge * torch.eye(vectors.shape[1], dtype=torch.double, device=vectors.device)
        self._set_rows(_solve(self.gram_, sums))

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Bring in the next corpus exactly. Any failure leaves the method as it was."""
        pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
        vectors, sums = self._statistics(corpus, pairs, progress)
        old_sums = torch.cat([block.detach() for block in self.model_.rows.blocks]).double() @ self.gram_  # YᵀX of old documents
        self.gram_ = self.gram_ + _gram(vectors)
        self.model_.rows.grow([document.docid for document in corpus.documents], sums.float())
        self._set_rows(_solve(self.gram_, torch.cat([old_sums, sums])))
        self.logs_.append(TrainingLog())
        return self

    def encode(self, queries: Any, *, prompted: bool = True, progress: Progress = silent) -> Tensor:
        return self._project(super().encode(queries, prompted=prompted, progress=progress))

    def _statistics(self, corpus: Corpus, pairs: Pairs, progress: Progress = silent) -> tuple[Tensor, Tensor]:
        """X of a corpus (n, M), and its sum over each document's queries and the document itself (k, M)."""
        queries = self.encode([pair.text for pair in pairs], progress=progress)
        documents = self._project(self.document_vectors(corpus, progress=progress))
        targets = torch.cat([self.positions(corpus, pairs), torch.arange(len(documents), device=documents.device)]).long()
        vectors = torch.cat([queries, documents])
        counts = torch.bincount(targets, minlength=len(documents))[:, None]
        return vectors, (mean_by_position(vectors, targets, len(documents)) * counts).double()

    def _project(self, vectors: Tensor) -> Tensor:
        return vectors if self.features_ is None else torch.relu(vectors @ self.features_)

    def _set_rows(self, rows: Tensor) -> None:
        blocks = rows.float().split([len(block) for block in self.model_.rows.blocks])
        self.model_.rows.blocks = nn.ParameterList(nn.Parameter(block.clone(), requires_grad=False) for block in blocks)
        self.model_.rows.learn_last()  # forgets pieces made of the rows before
        self.model_.rows.freeze()

    @property
    def row_width(self) -> int:
        return self.projection or super().row_width

    @property
    def encodes_as_d0(self) -> bool:
        return True

    def extra_bytes(self) -> int:
        return 8 * self.gram_.numel()

    def tensors(self) -> dict[str, Tensor]:
        return {"gram": self.gram_} | ({} if self.features_ is None else {"features": self.features_})

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        self.gram_, self.features_ = tensors["gram"], tensors.get("features")


def _gram(vectors: Tensor) -> Tensor:
    return vectors.T.double() @ vectors.double()


def _solve(gram: Tensor, sums: Tensor) -> Tensor:
    """YᵀX (XᵀX + λI)⁻¹, (n, M)."""
    return torch.cholesky_solve(sums.T, torch.linalg.cholesky(gram)).T
