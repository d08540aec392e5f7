"""What the sampling generators share: the device they run on and seeds that make them repeatable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from promptdsi.corpus.records import Document


def torch_device(name: str) -> str:
    """`auto` is the accelerator there is, else the processor."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def batch_seed(seed: int, documents: Sequence[Document]) -> int:
    """A seed from the batch's content: a run that is resumed samples what it would have sampled."""
    content = "\0".join(f"{document.title}\0{document.text}" for document in documents)
    return int(hashlib.sha256(f"{seed}\0{content}".encode()).hexdigest()[:8], 16)
