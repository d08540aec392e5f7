"""The state of an interrupted training on disk: weights, optimizer moments and random states, so that it ends as if uninterrupted.

Several processes make one file too, through the first, piece by piece: any number of processes reads what any other has written.
torch.distributed.checkpoint writes safetensors as well, but its processes agree on what to write by pickled messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from promptdsi.files import adopt, discard, tensor_header
from promptdsi.training.distributed import World, broadcast, collect_rows, scatter_rows

SECONDS_BETWEEN_CHECKPOINTS = 60.0
MOST_TIME = 0.05  # the share of training time that writing checkpoints may take: one of a large model takes seconds
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}
TYPES = {name: dtype for dtype, name in DTYPES.items()}


class Shared(NamedTuple):
    """The processes of one training, and the parameters of which each has a share, with how many rows all shares have together."""

    world: World = World()
    shards: Mapping[str, int] = {}  # never changed


ALONE = Shared()


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
        shared: Shared = ALONE,
    ) -> None:
        self.folder, self.path = folder, folder / "checkpoint.safetensors"
        self.identity = json.dumps(identity, sort_keys=True, default=str)
        self.named, self.optimizer, self.generator, (self.world, self.shards) = named, optimizer, generator, shared
        self.started = self.saved = time.monotonic()
        self.interval = SECONDS_BETWEEN_CHECKPOINTS
        self.seconds_before = 0.0  # of training before the interruption

    @property
    def due(self) -> bool:
        return time.monotonic() - self.saved > self.interval

    def save(self, done: int, losses: list[float]) -> None:
        """Write the state after `done` steps; every process calls this, the first one writes."""
        begun = time.monotonic()
        tensors = self._state() | {"losses": torch.tensor(losses, dtype=torch.float64)}
        tensors["random"] = torch.stack(self.world.every(self._dropout()[0]()))
        seconds = self.seconds_before + begun - self.started
        header = {"identity": self.identity, "done": str(done), "seconds": str(seconds)}
        if self.world.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self._partial, "wb") as file:
                self._write(tensors, header, file)
            adopt(self._partial, self.path)
        else:
            self._write(tensors, header, None)
        self.saved = time.monotonic()
        self.interval = max(SECONDS_BETWEEN_CHECKPOINTS, (self.saved - begun) / MOST_TIME)

    def _state(self) -> dict[str, Tensor]:
        """All tensors by name; of a parameter `NAME` they are `weight:NAME` and its moments."""
        tensors = {} if self.generator is None else {"generator": self.generator.get_state()}
        for name, parameter in self.named.items():
            tensors[f"weight:{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}:{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        return tensors

    def _write(self, tensors: dict[str, Tensor], header: dict[str, str], file: IO[bytes] | None) -> None:
        """In the first process, write all tensors into the file; the others send their shares."""
        shapes = {name: self._full_shape(name, list(tensor.shape)) for name, tensor in tensors.items()}
        order, content = tensor_header({name: (DTYPES[tensor.dtype], shapes[name]) for name, tensor in tensors.items()}, header)
        if file:
            file.write(content)
        for name in order:
            if self._is_shared(name, shapes[name]):
                collect_rows(tensors[name], lambda first, piece: file and file.write(piece.numpy().data), shapes[name][0], self.world)
            elif file:
                file.write(tensors[name].detach().cpu().contiguous().numpy().tobytes())

    def _is_shared(self, name: str, shape: list[int]) -> bool:
        """Whether each process has a share of this tensor; not of an optimizer's step counter."""
        return len(shape) > 0 and name.partition(":")[2] in self.shards

    def _full_shape(self, name: str, shape: list[int]) -> list[int]:
        return [self.shards[name.partition(":")[2]], *shape[1:]] if self._is_shared(name, shape) else shape

    def load(self, losses: list[float]) -> tuple[int, float]:
        """Restore a checkpoint of this same training, if there is one; the number of steps it had done, and the seconds they took."""
        from safetensors import safe_open

        with contextlib.ExitStack() as stack:
            file: Any = None
            stored: dict[str, Any] = {"done": 0, "seconds": 0.0, "tensors": {}}
            if self.world.rank == 0 and self.path.exists():
                file = stack.enter_context(safe_open(self.path, "pt"))
                if (header := file.metadata() or {}).get("identity") == self.identity:
                    tensors = {name: [file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()] for name in file.keys()}  # noqa: SIM118
                    stored = {"done": int(header["done"]), "seconds": float(header.get("seconds", 0.0)), "tensors": tensors}
            stored = json.loads(broadcast(json.dumps(stored).encode())) if self.world.size > 1 else stored
            for name, (dtype, shape) in stored["tensors"].items():
                self._restore(name, self._read(file, name, TYPES[dtype], shape), losses)
        self.seconds_before = stored["seconds"]
        return stored["done"], self.seconds_before

    def _read(self, file: Any, name: str, dtype: torch.dtype, shape: list[int]) -> Tensor:
        """This process's share of a tensor, or all of one that every process has."""
        if self._is_shared(name, shape):
            share = torch.empty(len(self.world.share(shape[0])), *shape[1:], dtype=dtype)
            scatter_rows(lambda first, last: file.get_slice(name)[first:last], share, shape[0], self.world)
            return share
        return self.world.first(file.get_tensor(name).clone() if file else torch.empty(shape, dtype=dtype))

    def _restore(self, name: str, tensor: Tensor, losses: list[float]) -> None:
        key, _, owner = name.partition(":")
        if owner and key == "weight":
            self.named[owner].data.copy_(tensor)
        elif owner:
            self.optimizer.state[self.named[owner]][key] = tensor.to(self.named[owner].device)
        elif name == "losses":
            losses.extend(tensor.tolist())
        elif name == "generator" and self.generator is not None:
            self.generator.set_state(tensor)
        elif name == "random":  # of each process that wrote it: a process that was not there draws dropout from its own beginning
            states = tensor.view(-1, tensor.shape[-1])
            if self.world.rank < len(states):
                self._dropout()[1](states[self.world.rank].clone())  # of a view torch 2.13 reads past the end

    def remove(self) -> None:
        """Delete the checkpoint of a finished training, and nothing else that is in the folder."""
        if self.world.rank:
            return
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
