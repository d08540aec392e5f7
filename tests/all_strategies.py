"""Every prompt strategy, and one as somebody outside the package would write it: the contract suites run on all of them."""

from __future__ import annotations

from torch import Tensor, nn

from promptdsi.model.prompts import PromptStrategy, Selection, strategies


class NearestCorpus(PromptStrategy):
    """A strategy as somebody outside the package would write it: one prompt per corpus, nearest corpus mean."""

    name = "nearest-corpus"

    def begin_corpus(self, queries: Tensor) -> None:
        self.freeze()
        self.keys.append(nn.Parameter(queries.mean(0, keepdim=True), requires_grad=False))
        self.prompts.append(nn.Parameter(self.new_prompts(1, queries)))

    def select(self, query: Tensor) -> Selection:
        similarity, ids = self.similarity(query).max(1)
        return Selection(self.choose(ids), query.new_zeros(()), ids, similarity)


ALL = sorted(set(strategies()) | {"nearest-corpus"})
PROMPTED = [name for name in ALL if name != "none"]
