"""Checkpoints of a running training: weights, optimizer moments and random state as safetensors, the rest as JSON.

A checkpoint belongs to one plan on one set of examples; one from another training is not used.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from promptdsi.files import atomic_write


class Checkpoint:
    """A folder with one file; the file is replaced atomically, so it is never half written."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.path = folder / "checkpoint.safetensors"
        self.identity = json.dumps(identity, sort_keys=True, default=str)

    def save(self, named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, done: int, losses: list[float]) -> None:
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {"random": random_state(device_of(named)), "losses": torch.tensor(losses, dtype=torch.float64)}
        for name, parameter in named.items():
            tensors[f"weight:{name}"] = parameter.detach().contiguous()
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}:{name}"] = value.contiguous() if isinstance(value, Tensor) else torch.tensor(value)
        header = {"identity": self.identity, "done": str(done)}
        with atomic_write(self.path) as file:
            file.write(save(tensors, metadata=header))

    def load(self, named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, losses: list[float]) -> int:
        """Restore a checkpoint of this same training, if there is one; the number of steps it had done."""
        from safetensors import safe_open

        if not self.path.exists():
            return 0
        with safe_open(self.path, "pt") as file:
            header = file.metadata() or {}
            shapes = {name: list(file.get_slice(f"weight:{name}").get_shape()) for name in named if f"weight:{name}" in file.keys()}  # noqa: SIM118
            if header.get("identity") != self.identity or shapes != {name: list(p.shape) for name, p in named.items()}:
                return 0
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, parameter in named.items():
            parameter.data.copy_(tensors[f"weight:{name}"])
        for name, tensor in tensors.items():
            key, _, owner = name.partition(":")
            if owner and key != "weight":
                optimizer.state[named[owner]][key] = tensor.to(named[owner].device) if tensor.ndim else tensor
        set_random_state(device_of(named), tensors["random"])
        losses.extend(tensors["losses"].tolist())
        return int(header["done"])

    def remove(self) -> None:
        """Delete the checkpoint of a finished training, and nothing else that is in the folder."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def device_of(named: dict[str, nn.Parameter]) -> torch.device:
    return next(iter(named.values())).device


def random_state(device: torch.device) -> Tensor:
    """The state of the generator that draws dropout on this device."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)
