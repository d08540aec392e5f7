"""coda: a weighted sum of all components so far, α_i = cos(q ⊙ A_i, k_i), no softmax. Two new ones per corpus. Try: --prompts coda

Earlier components still contribute but no longer learn. New keys, attention vectors and prompts start orthonormal to each
other and orthogonal to all earlier ones (QR instead of Gram–Schmidt loops). Objective: cross-entropy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.model.path import Selection, array_namespace, unit
from promptdsi.model.prompts.strategy import PromptStrategy, concat

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CODA(PromptStrategy):
    name = "coda"
    blocks = (*PromptStrategy.blocks, "attention")  # attention: blocks (m, D)
    chooses = False

    def __init__(self, *, components: int = 2, prompt_length: int = 10, **keywords: Any) -> None:
        super().__init__(prompt_length=prompt_length, **keywords)
        self.components = components  # per corpus

    def begin_corpus(self, queries: Tensor) -> None:
        self.freeze()
        generator = self.generator("components")
        shape = self.new_prompts(1, queries).shape[1:]  # (L, 2, P, D)
        for kind, size in zip(self.blocks, (shape, queries.shape[1:], queries.shape[1:]), strict=True):
            blocks = getattr(self.pool, kind)
            earlier = concat(blocks).flatten(1) if len(blocks) else queries.new_zeros(0, size.numel())
            fresh = orthonormal(self.components, earlier, generator)  # (m, numel)
            self.append(kind, fresh.reshape(self.components, *size).to(queries))

    def weights(self, query: Any) -> Any:
        """α: (B, M), each between −1 and 1."""
        attended = self.centered(query)[:, None] * concat(self.pool.attention)  # (B, M, D)
        return (unit(attended) * unit(concat(self.keys))).sum(-1)

    def select(self, query: Any) -> Selection:
        xp = array_namespace(query)
        weights = self.weights(query)  # (B, M)
        prefix = xp.tensordot(weights, concat(self.prompts), axes=1)  # (B, L, 2, P, D)
        strength = xp.abs(weights)
        return Selection(prefix, strength.argmax(1), xp.max(strength, axis=1))


def orthonormal(count: int, earlier: Tensor, generator: torch.Generator) -> Tensor:
    """`count` random unit vectors, orthogonal to each other and to the rows of `earlier`: (m, n)."""
    import torch

    size = earlier.shape[1]
    if count + len(earlier) > size:
        raise ValueError(f"{count + len(earlier)} orthogonal components do not fit into {size} dimensions")
    vectors = torch.randn((size, count), generator=generator, dtype=torch.float64)  # (n, m)
    basis = torch.linalg.qr(earlier.detach().double().cpu().T).Q  # (n, earlier)
    for _ in range(2):  # twice is enough: the second pass removes what rounding left of the first
        vectors = vectors - basis @ (basis.T @ vectors)
    orthogonal: Tensor = torch.linalg.qr(vectors).Q  # (n, m)
    return orthogonal.T
