"""coda: a weighted sum of all components so far, α_i = cos(q ⊙ A_i, k_i), no softmax. Two new ones per corpus. Try: --prompts coda

Earlier components still contribute but no longer learn. New keys, attention vectors and prompts start orthonormal to each
other and orthogonal to all earlier ones (QR instead of Gram–Schmidt loops). Objective: cross-entropy only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from promptdsi.model.prompts.strategy import PromptStrategy, Selection, unit


class CODA(PromptStrategy):
    name = "coda"
    chooses = False

    def __init__(self, *, components: int = 2, prompt_length: int = 10, **keywords: Any) -> None:
        super().__init__(prompt_length=prompt_length, **keywords)
        self.components = components  # per corpus
        self.attention = nn.ParameterList()  # blocks (m, D)

    def begin_corpus(self, queries: Tensor) -> None:
        self.freeze()
        generator = self.generator("components")
        shape = self.new_prompts(1, queries).shape[1:]  # (L, 2, P, D)
        for blocks, size in ((self.prompts, shape), (self.keys, queries.shape[1:]), (self.attention, queries.shape[1:])):
            earlier = torch.cat(list(blocks)).flatten(1) if len(blocks) else queries.new_zeros(0, size.numel())
            fresh = orthonormal(self.components, earlier, generator)  # (m, numel)
            blocks.append(nn.Parameter(fresh.reshape(self.components, *size).to(queries)))

    def weights(self, query: Tensor) -> Tensor:
        """α: (B, M), each between −1 and 1."""
        attended = self.centred(query)[:, None] * torch.cat(list(self.attention))  # (B, M, D)
        return (unit(attended) * unit(torch.cat(list(self.keys)))).sum(-1)

    def select(self, query: Tensor) -> Selection:
        weights = self.weights(query)  # (B, M)
        prefix = torch.einsum("bm,mlspd->blspd", weights, torch.cat(list(self.prompts)))  # (B, L, 2, P, D)
        strongest, ids = weights.detach().abs().max(1)  # (B,), (B,)
        return Selection(prefix, query.new_zeros(()), ids, strongest)


def orthonormal(count: int, earlier: Tensor, generator: torch.Generator) -> Tensor:
    """`count` random unit vectors, orthogonal to each other and to the rows of `earlier`: (m, n)."""
    size = earlier.shape[1]
    if count + len(earlier) > size:
        raise ValueError(f"{count + len(earlier)} orthogonal components do not fit into {size} dimensions")
    drawn = torch.randn((size, count), generator=generator, dtype=torch.float64)  # (n, m)
    basis = torch.linalg.qr(earlier.detach().double().cpu().T).Q  # (n, earlier)
    for _ in range(2):  # twice is enough: the second pass removes what rounding left of the first
        drawn = drawn - basis @ (basis.T @ drawn)
    orthogonal: Tensor = torch.linalg.qr(drawn).Q  # (n, m)
    return orthogonal.T
