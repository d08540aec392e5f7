"""topic: one prompt per topic mined from D0; the keys are the topics' mean query vectors and never change. Try: --prompts topic

All prompts stay open at every corpus, shared over time; a prompt moves only in steps where a query selects it. Which topic a query
belongs to never changes, because keys and lower layers are frozen. With `top_k` the rows of several prompts follow each other.
Objective: cross-entropy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.model.path import Selection, unit
from promptdsi.model.prompts.strategy import PromptStrategy

if TYPE_CHECKING:
    from torch import Tensor


class Topic(PromptStrategy):
    name = "topic"
    wants_topics = True

    def __init__(self, *, top_k: int = 1, **keywords: Any) -> None:
        super().__init__(**keywords)
        if top_k < 1:
            raise UsageError(f"top_k={top_k}: at least one prompt must be chosen")
        self.top_k = top_k

    def prepare(self, queries: Tensor, topics: Tensor | None = None) -> None:
        """Keys = means of the unit selection vectors of each topic's queries; topic −1 (outliers) is dropped."""
        import torch

        super().prepare(queries)
        if topics is None:
            raise ValueError("the topic strategy needs the topic of each query of D0")
        labels = topics[topics >= 0].unique()
        if len(labels) < 2:
            raise PromptDSIError(f"D0 gave {len(labels)} topics, at least two are needed; use more documents or another strategy")
        if len(labels) < self.top_k:
            raise UsageError(f"top_k={self.top_k}, but D0 gave {len(labels)} topics")
        position = torch.searchsorted(labels, topics.clamp(min=0))
        directions = unit(self.centered(queries)) * (topics >= 0)[:, None]
        sums = queries.new_zeros(len(labels), queries.shape[1]).index_add_(0, position, directions)  # (M, D)
        counts = torch.bincount(position[topics >= 0], minlength=len(labels))  # (M,)
        self.append("keys", sums / counts[:, None], learns=False)

    def begin_corpus(self, queries: Tensor) -> None:
        if not self.keys:
            raise PromptDSIError("topics are mined while D0 is learned; create the index with prompts topic")
        if not self.prompts:
            self.append("prompts", self.new_prompts(len(self.keys[0]), queries))
        self.prompts.requires_grad_(True)

    def select(self, query: Any) -> Selection:
        similarity = self.similarity(query)  # (B, M)
        return self.selection(self.nearest(similarity, self.top_k), similarity)
