"""What the sampling generators share: the device they run on and seeds that make them repeatable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from promptdsi.corpus.records import Document
from promptdsi.errors import PromptDSIError, UsageError


def torch_device(name: str) -> str:
    """A device that is there; `auto` is the accelerator there is, else the processor."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, available in there.items() if available)
    if name.split(":")[0] not in there:
        raise UsageError(f"no device {name!r}; there are auto, cpu, cuda and mps")
    if not there[name.split(":")[0]]:
        raise PromptDSIError(f"this machine has no {name} that torch can use; try --device cpu")
    return name


def batch_seed(seed: int, documents: Sequence[Document]) -> int:
    """A seed from the batch's content: a run that is resumed samples what it would have sampled."""
    content = "\0".join(f"{document.title}\0{document.text}" for document in documents)
    return int(hashlib.sha256(f"{seed}\0{content}".encode()).hexdigest()[:8], 16)
