"""s++: one prompt and key per corpus. Training uses the new corpus's own pair; a test query takes the nearest key of all
pairs so far. Earlier pairs are frozen. Try: --prompts s++

A new prompt starts as a copy of the previous one (`copy_previous`), its key fresh. `key_update="closed_form"` sets the key to
the optimum of the match term, the normalised mean of the normalised queries, since the key touches nothing else in training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from promptdsi.model.prompts.strategy import PromptStrategy, Selection, unit


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
            key = unit(unit(self.centred(queries)).sum(0, keepdim=True))
        self.prompts.append(nn.Parameter(prompt))  # (1, L, 2, P, D)
        self.keys.append(nn.Parameter(key, requires_grad=self.key_update == "sgd"))  # (1, D)

    def select(self, query: Tensor) -> Selection:
        similarity = self.similarity(query)  # (B, M)
        newest = torch.full_like(query[:, 0], len(self.keys) - 1, dtype=torch.long)  # (B,)
        ids = newest if self.training else similarity.argmax(1)  # (B,)
        chosen = similarity.gather(1, ids[:, None])[:, 0]  # (B,)
        loss = (1 - chosen).mean() if self.training and self.key_update == "sgd" else query.new_zeros(())
        return Selection(self.choose(ids), loss, ids, chosen.detach())
