"""Every prompt strategy, and one as somebody outside the package would write it: the contract suites run on all of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from promptdsi.model.prompts import PromptStrategy, Selection, strategies


class NearestCorpus(PromptStrategy):
    """A strategy as somebody outside the package would write it: one prompt per corpus, nearest corpus mean."""

    name = "nearest-corpus"

    def begin_corpus(self, queries: Tensor) -> None:
        self.freeze()
        self.append("keys", queries.mean(0, keepdim=True), learns=False)
        self.append("prompts", self.new_prompts(1, queries))

    def select(self, query: Any) -> Selection:
        similarity = self.similarity(query)
        return self.selection(similarity.argmax(1), similarity)


ALL = sorted(set(strategies()) | {"nearest-corpus"})
PROMPTED = [name for name in ALL if name != "none"]
