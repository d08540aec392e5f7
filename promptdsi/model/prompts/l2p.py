"""l2p: a shared pool; each query takes the prompt with the nearest key, in training and test alike. Try: --prompts l2p

Prompts learn from the cross-entropy only, keys from the match term 1 − cos(q, k) of the chosen keys only; both stay open at
every corpus. With `top_k` the rows of several prompts follow each other. `key_update="closed_form"` replaces the match term by its
fixed point, spherical k-means on the new queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.errors import UsageError
from promptdsi.model.path import Selection, unit
from promptdsi.model.prompts.strategy import PromptStrategy

if TYPE_CHECKING:
    from torch import Tensor

LLOYD_STEPS = 50


class L2P(PromptStrategy):
    name = "l2p"

    def __init__(self, *, pool_size: int = 5, top_k: int = 1, key_update: str = "sgd", **keywords: Any) -> None:
        super().__init__(**keywords)
        if not 1 <= top_k <= pool_size:
            raise UsageError(f"top_k={top_k} prompts of a pool of {pool_size}")
        self.pool_size, self.top_k = pool_size, top_k  # M and N in the paper
        self.key_update = key_update

    def begin_corpus(self, queries: Tensor) -> None:
        if not self.prompts:
            keys = self.new_keys(self.pool_size, queries)
            self.append("prompts", self.new_prompts(self.pool_size, queries))
            self.append("keys", keys)
        self.prompts.requires_grad_(True)
        self.keys.requires_grad_(self.key_update == "sgd")
        if self.key_update == "closed_form":
            self._cluster(unit(self.centered(queries)))

    def _cluster(self, queries: Tensor) -> None:
        """Spherical k-means: assign queries to the nearest key and move keys to their queries' mean direction, until nothing changes."""
        import torch

        keys = self.keys[0].detach()
        for _ in range(LLOYD_STEPS):
            nearest = (queries @ unit(keys).T).argmax(1)  # (n,)
            sums = torch.zeros_like(keys).index_add_(0, nearest, queries)  # (M, D)
            used = torch.bincount(nearest, minlength=len(keys)) > 0
            updated = torch.where(used[:, None], unit(sums), keys)
            if torch.equal(updated, keys):
                break
            keys.copy_(updated)

    def select(self, query: Any) -> Selection:
        similarity = self.similarity(query)  # (B, M)
        return self.selection(self.nearest(similarity, self.top_k), similarity, match=self.key_update == "sgd")
