"""l2p: a shared pool; each query takes the prompt whose key is nearest (Eq. 1), at training and test alike. Try: --prompts l2p

Prompts learn from the cross-entropy only, keys from the match term 1 − cos(q, k) of the chosen key only; both stay open at
every corpus. `key_update="closed_form"` replaces the match term by its fixed point, spherical k-means on the new queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from promptdsi.model.prompts.strategy import PromptStrategy, Selection, unit

LLOYD_STEPS = 50


class L2P(PromptStrategy):
    name = "l2p"

    def __init__(self, *, pool_size: int = 5, key_update: str = "sgd", **keywords: Any) -> None:
        super().__init__(**keywords)
        self.pool_size = pool_size  # M in the paper
        self.key_update = key_update

    def begin_corpus(self, queries: Tensor) -> None:
        if not self.prompts:
            keys = self.new_keys(self.pool_size, queries)
            self.prompts.append(nn.Parameter(self.new_prompts(self.pool_size, queries)))
            self.keys.append(nn.Parameter(keys))
        self.prompts.requires_grad_(True)
        self.keys.requires_grad_(self.key_update == "sgd")
        if self.key_update == "closed_form":
            self._settle_keys(unit(self.centred(queries)))

    @torch.no_grad()
    def _settle_keys(self, queries: Tensor) -> None:
        """Assign to the nearest key and move keys to their queries' mean direction, until nothing changes."""
        keys = self.keys[0]
        for _ in range(LLOYD_STEPS):
            nearest = (queries @ unit(keys).T).argmax(1)  # (n,)
            sums = torch.zeros_like(keys).index_add_(0, nearest, queries)  # (M, D)
            used = torch.bincount(nearest, minlength=len(keys)) > 0
            moved = torch.where(used[:, None], unit(sums), keys)
            if torch.equal(moved, keys):
                break
            keys.copy_(moved)

    def select(self, query: Tensor) -> Selection:
        similarity, ids = self.similarity(query).max(1)  # (B,), (B,)
        loss = (1 - similarity).mean() if self.training and self.key_update == "sgd" else query.new_zeros(())
        return Selection(self.choose(ids), loss, ids, similarity.detach())
