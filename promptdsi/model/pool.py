"""The pool of a prompt strategy while it learns: blocks as torch parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class TrainablePool(nn.Module):
    """Lists of blocks by kind (`prompts`, `keys`, …), the mean selection vector of D0, and the key of no prompt at all."""

    mean: Tensor | None  # (D,)
    null: Tensor | None  # (D,)

    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        for name in ("mean", "null"):
            self.register_buffer(name, None)
        self.clear()

    def clear(self) -> None:
        self.mean = self.null = None
        for kind in self.kinds:
            setattr(self, kind, nn.ParameterList())

    def append(self, kind: str, block: Tensor, learns: bool) -> None:
        getattr(self, kind).append(nn.Parameter(block, requires_grad=learns))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by a state dict; blocks are made as its names say, and do not learn."""
        self.clear()
        for name in sorted(state, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
            kind, _, position = name.partition(".")
            if position:
                self.append(kind, state[name].clone(), learns=False)
            else:
                setattr(self, name, state[name].clone())


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose; different purposes never draw the same numbers."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
