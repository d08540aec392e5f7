"""The torch device a model runs on."""

from __future__ import annotations

from promptdsi.errors import PromptDSIError, UsageError


def torch_device(name: str) -> str:
    """Return `name` if torch can use that device; `auto` is an accelerator if there is one, else the CPU."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, usable in available.items() if usable)
    kind = name.split(":")[0]
    if kind not in available:
        raise UsageError(f"no device {name!r}; there are auto, cpu, cuda and mps")
    if not available[kind]:
        raise PromptDSIError(f"this machine has no {name} that torch can use; try --device cpu")
    return name
