"""topic: one prompt per topic mined from D0; the keys are the topics' mean query vectors and never change. Try: --prompts topic

All prompts stay open at every corpus, shared over time; a prompt moves only in steps where a query selects it. Which topic a query
belongs to never changes, because keys and lower layers are frozen. Objective: cross-entropy only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from promptdsi.errors import PromptDSIError
from promptdsi.model.prompts.strategy import PromptStrategy, Selection, unit


class Topic(PromptStrategy):
    name = "topic"
    wants_topics = True

    def prepare(self, queries: Tensor, topics: Tensor | None = None) -> None:
        """Keys = means of the unit selection vectors of each topic's queries; topic −1 (outliers) is dropped."""
        super().prepare(queries)
        if topics is None:
            raise ValueError("the topic strategy needs the topic of each query of D0")
        found = topics[topics >= 0].unique()
        if len(found) < 2:
            raise PromptDSIError(f"D0 gave {len(found)} topics, at least two are needed; use more documents or another strategy")
        place = torch.searchsorted(found, topics.clamp(min=0))
        directions = unit(self.centred(queries)) * (topics >= 0)[:, None]
        sums = queries.new_zeros(len(found), queries.shape[1]).index_add_(0, place, directions)  # (M, D)
        counts = torch.bincount(place[topics >= 0], minlength=len(found))  # (M,)
        self.keys.append(nn.Parameter(sums / counts[:, None], requires_grad=False))

    def begin_corpus(self, queries: Tensor) -> None:
        if not self.keys:
            raise PromptDSIError("topics are mined while D0 is learned; create the index with prompts topic")
        if not self.prompts:
            self.prompts.append(nn.Parameter(self.new_prompts(len(self.keys[0]), queries)))
        self.prompts.requires_grad_(True)

    def select(self, query: Tensor) -> Selection:
        similarity, ids = self.similarity(query).max(1)  # (B,), (B,)
        return Selection(self.choose(ids), query.new_zeros(()), ids, similarity)
