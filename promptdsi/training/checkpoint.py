"""The state of an interrupted training on disk: weights, optimizer moments and random states, so that it ends as if uninterrupted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from promptdsi.files import adopt, discard

SECONDS_BETWEEN_CHECKPOINTS = 60.0
MOST_TIME = 0.05  # the share of training time that writing checkpoints may take: one of a large model takes seconds


class Checkpoint:
    """Tensors as safetensors, the rest in its header, in one file that is replaced atomically.

    It belongs to one plan on one set of examples; a checkpoint of another training is not used. `generator` is randomness of the
    training beside dropout's.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        named: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator | None = None,
    ) -> None:
        self.folder, self.path = folder, folder / "checkpoint.safetensors"
        self.identity = json.dumps(identity, sort_keys=True, default=str)
        self.named, self.optimizer, self.generator = named, optimizer, generator
        self.started = self.saved = time.monotonic()
        self.interval = SECONDS_BETWEEN_CHECKPOINTS
        self.seconds_before = 0.0  # of training before the interruption

    @property
    def due(self) -> bool:
        return time.monotonic() - self.saved > self.interval

    def save(self, done: int, losses: list[float]) -> None:
        from safetensors.torch import save_file

        begun = time.monotonic()
        tensors: dict[str, Tensor] = {"random": self._dropout()[0](), "losses": torch.tensor(losses, dtype=torch.float64)}
        if self.generator is not None:
            tensors["generator"] = self.generator.get_state()
        for name, parameter in self.named.items():
            tensors[f"weight:{name}"] = parameter.detach().contiguous()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}:{name}"] = value.contiguous() if isinstance(value, Tensor) else torch.tensor(value)
        seconds = self.seconds_before + begun - self.started
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, self._partial, {"identity": self.identity, "done": str(done), "seconds": str(seconds)})
        adopt(self._partial, self.path)
        self.saved = time.monotonic()
        self.interval = max(SECONDS_BETWEEN_CHECKPOINTS, (self.saved - begun) / MOST_TIME)

    def load(self, losses: list[float]) -> tuple[int, float]:
        """Restore a checkpoint of this same training, if there is one; the number of steps it had done, and the seconds they took."""
        from safetensors import safe_open
        from safetensors.torch import load_file

        if not self.path.exists():
            return 0, 0.0
        with safe_open(self.path, "pt") as file:
            header = file.metadata() or {}
        if header.get("identity") != self.identity:
            return 0, 0.0
        tensors = load_file(self.path)
        for name, parameter in self.named.items():
            parameter.data.copy_(tensors[f"weight:{name}"])
        for name, tensor in tensors.items():
            key, _, owner = name.partition(":")
            if owner and key != "weight":
                self.optimizer.state[self.named[owner]][key] = tensor.to(self.named[owner].device)
        self._dropout()[1](tensors["random"])
        if self.generator is not None:
            self.generator.set_state(tensors["generator"])
        losses.extend(tensors["losses"].tolist())
        self.seconds_before = float(header.get("seconds", 0.0))
        return int(header["done"]), self.seconds_before

    def remove(self) -> None:
        """Delete the checkpoint of a finished training, and nothing else that is in the folder."""
        self.path.unlink(missing_ok=True)
        discard(self._partial)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    @property
    def _partial(self) -> Path:
        return self.path.with_suffix(".partial")

    def _dropout(self) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
        """Get and set the state of the generator that draws dropout on the weights' device."""
        device = next(iter(self.named.values())).device
        module: Any = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type, torch)
        place = [device] if device.type == "cuda" else []  # the others have one generator
        return lambda: module.get_rng_state(*place), lambda state: module.set_rng_state(state, *place)


def checksum_of(settings: Any, arrays: Iterable[Tensor | NDArray[Any]]) -> str:
    """A checksum of what is trained on what: settings as JSON, then weights, queries and targets."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for array in arrays:
        content = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
        digest.update(np.ascontiguousarray(content).data)
    return digest.hexdigest()
