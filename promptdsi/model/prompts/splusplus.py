"""s++: one prompt and key per corpus. Training uses the new corpus's own pair; a test query takes the nearest key of all
pairs so far. Earlier pairs are frozen. Try: --prompts s++

A new prompt starts as a copy of the previous one (`copy_previous`), its key fresh. `key_update="closed_form"` sets the key to
the optimum of the match term, the normalized mean of the normalized queries, since the key touches nothing else in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.model.path import Selection, array_namespace, unit
from promptdsi.model.prompts.strategy import PromptStrategy

if TYPE_CHECKING:
    from torch import Tensor


class SPromptPlusPlus(PromptStrategy):
    name = "s++"

    def __init__(self, *, copy_previous: bool = True, key_update: str = "sgd", **keywords: Any) -> None:
        super().__init__(**keywords)
        self.copy_previous = copy_previous
        self.key_update = key_update

    def begin_corpus(self, queries: Tensor) -> None:
        self.freeze()  # rehearsal-free: the past no longer learns
        prompt, key = self.new_prompts(1, queries), self.new_keys(1, queries)
        if self.prompts and self.copy_previous:
            prompt = self.prompts[-1].detach().clone()
        if self.key_update == "closed_form":
            key = unit(unit(self.centered(queries)).sum(0, keepdim=True))
        self.append("prompts", prompt)  # (1, L, 2, P, D)
        self.append("keys", key, learns=self.key_update == "sgd")  # (1, D)

    def select(self, query: Any) -> Selection:
        similarity = self.similarity(query)  # (B, M)
        ids = similarity.argmax(1)  # (B,)
        if self.training:
            ids = array_namespace(ids).full_like(ids, len(self.keys) - 1)
        return self.selection(ids, similarity, match=self.key_update == "sgd")
