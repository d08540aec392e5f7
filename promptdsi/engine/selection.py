"""Which prompts a query gets, at search time and without torch: the nearest key, or a weighted sum of all components (CODA).

Learning lives in `model/prompts`; a strategy that is not among `KNOWN` is searched with torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
KNOWN = ("none", "l2p", "s++", "topic", "coda")
EPS = 1e-6  # of lengths, as in training


class Chosen(NamedTuple):
    """For each query: its prefix (B, L, 2, P, D), the prompt it comes from and how near its key is, and who goes without (B,)."""

    prefix: Floats
    ids: NDArray[np.int64]
    similarity: Floats | None
    hidden: NDArray[np.bool_] | None


class Pool:
    """Prompts (M, L, 2, P, D) with keys (M, D), as one generation has them. `layers` are numbered from 1."""

    def __init__(self, tensors: Mapping[str, Any], layers: tuple[int, ...], *, center: bool = False) -> None:
        self.layers = layers
        self.prompts, self.keys, self.attention = (_joined(tensors, owner) for owner in ("prompts", "keys", "attention"))
        self.mean = tensors.get("mean") if center else None
        self.null = tensors.get("null")

    def __len__(self) -> int:
        return 0 if self.prompts is None else len(self.prompts)

    @property
    def rows(self) -> int:
        """Prefix rows per side."""
        return 0 if self.prompts is None else self.prompts.shape[3]

    def choose(self, query: Floats) -> Chosen:
        """A prefix for each selection vector (B, D)."""
        assert self.prompts is not None and self.keys is not None, "without prompts there is nothing to choose"
        query = query - self.mean if self.mean is not None else query
        if self.attention is not None:
            weights = (unit(query[:, None] * self.attention) * unit(self.keys)).sum(-1)  # (B, M)
            ids = np.abs(weights).argmax(1)
            prefix = np.tensordot(weights, self.prompts, 1)
            return Chosen(prefix, ids, np.abs(weights).max(1), None)
        close = unit(query) @ unit(self.keys).T  # (B, M)
        ids = close.argmax(1)
        best = close.max(1)
        hidden = None if self.null is None else (unit(query) @ unit(self.null[None]).T)[:, 0] > best
        return Chosen(self.prompts[ids], ids, best, hidden)


def unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.sqrt(np.square(vectors).sum(-1, keepdims=True)), EPS)
    return found


def _joined(tensors: Mapping[str, Any], owner: str) -> Floats | None:
    """The blocks of an owner, in the order they were learned."""
    names = sorted((name for name in tensors if name.startswith(f"{owner}.")), key=lambda name: int(name.rpartition(".")[2]))
    return np.concatenate([tensors[name] for name in names]) if names else None
