"""Rows of D0 that several processes train, each its share: none ever has all rows or all of their optimizer state.

Rows are sharded by document rather than replicated (DDP), because they, their gradient and their moments are what grows with the corpus: at
a million documents of width 384 they take 6 GB, which two processes halve. The softmax over all rows is exact, as sums over rows are
summed over processes. The encoder is data-parallel. Several processes therefore follow the loss curve of one.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from promptdsi.model.dsi import DSI
from promptdsi.model.path import unit
from promptdsi.model.tokenizer import Ids, TokenIds, Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import Shared
from promptdsi.training.distributed import World, collect_rows, scatter, scatter_rows
from promptdsi.training.encoding import mean_by_position, query_vectors, window_means
from promptdsi.training.examples import Examples, Siblings
from promptdsi.training.objectives import Masked, distance_from, sharded_cross_entropy

Windows = Sequence[Sequence[Ids]]


class FirstRows(NamedTuple):
    """How rows begin that no process has all of: as what the first process reads from one row to another.

    That is the rows themselves (`rows`), or the windows of their documents, which each process encodes for its share (`document`); or
    nothing, where they are the mean of the queries that each process has (`queries`).
    """

    kind: str
    read: Callable[[int, int], Any] = lambda first, last: None

    def share(self, model: DSI, examples: Examples | None, tokenizer: Tokenizer, count: int, world: World, progress: Progress) -> Tensor:
        """This process's share of the rows: (n, D)."""
        mine = world.share(count)
        if self.kind == "document":
            packed = scatter(lambda rank: _pack(self.read(world.share(count, rank).start, world.share(count, rank).stop)), world)
            return window_means(model, *_unpack(packed), tokenizer, progress=progress)
        if self.kind == "queries":
            assert examples is not None
            numbers = torch.nonzero((examples.targets >= mine.start) & (examples.targets < mine.stop))[:, 0]
            vectors = query_vectors(model, [examples.ids[number] for number in numbers.tolist()], tokenizer, progress=progress)
            positions = (examples.targets[numbers] - mine.start).to(vectors.device)
            return unit(mean_by_position(vectors, positions, len(mine)))
        rows = torch.empty(len(mine), model.rows.width, device=model.device)
        scatter_rows(self.read, rows, count, world)
        return rows


def _pack(windows: Windows) -> bytes:
    from safetensors.numpy import save

    ids = TokenIds.packed(window for document in windows for window in document)
    return save({"ids": ids.flat, "offsets": ids.offsets, "counts": np.array([len(document) for document in windows], np.int64)})


def _unpack(content: bytes) -> tuple[TokenIds, Tensor]:
    """All windows in one array, and how many each document has."""
    from safetensors.numpy import load

    tensors = load(content)
    return TokenIds(tensors["ids"], tensors["offsets"]), torch.from_numpy(tensors["counts"])


class ShardedRows:
    """The rows that train, of which this process has `parameter`, and what is computed over all of them together."""

    def __init__(self, share: Tensor, count: int, world: World) -> None:
        self.parameter, self.count, self.world, self.rows = nn.Parameter(share), count, world, world.share(count)

    @property
    def shared(self) -> Shared:
        return Shared(self.world, {"rows": self.count})

    def cross_entropy(self, vectors: Tensor, targets: Tensor, *, scale: float, masked: Masked | None) -> Tensor:
        """Cross-entropy of each query over all rows: (B, D), (B,) → (B,)."""
        keywords: dict[str, Any] = {"scale": scale, "masked": masked, "world": self.world}
        return sharded_cross_entropy(vectors, self.parameter, self.rows.start, targets, **keywords)

    def loss(self, examples: Examples, numbers: Tensor, vectors: Tensor, scale: float) -> Tensor:
        """The mean loss of a batch, in every process: examples by number (B,), their vectors (B, D)."""
        targets = examples.targets[numbers].to(vectors.device)
        if examples.siblings is None:
            return self.cross_entropy(vectors, targets, scale=scale, masked=None).mean()
        targets = self.assign(examples.siblings, numbers, vectors, targets)
        return self.cross_entropy(vectors, targets, scale=scale, masked=examples.siblings.masked(numbers, targets)).mean()

    @torch.no_grad()
    def assign(self, siblings: Siblings, numbers: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
        """As `Siblings.assign`, where the passages of a document may lie in several processes."""
        targets, undecided = targets.clone(), siblings.undecided(numbers)
        best = torch.full((len(undecided), 2), -torch.inf, dtype=torch.float64)  # score and row
        for number, position in enumerate(undecided):
            first, count = int(siblings.first[numbers[position]]), int(siblings.rows[numbers[position]])
            low, high = max(first, self.rows.start), min(first + count, self.rows.stop)
            if low < high:
                scores = self.parameter[low - self.rows.start : high - self.rows.start] @ vectors[position]
                best[number] = torch.tensor([float(scores.max()), low + int(scores.argmax())], dtype=torch.float64)
        if undecided:
            offers = torch.stack(self.world.every(best))  # (processes, n, 2)
            chosen = offers[offers[:, :, 0].argmax(0), torch.arange(len(undecided)), 1]
            targets[undecided] = chosen.to(targets)
        return targets

    def distance_from(self, start: Tensor) -> Tensor:
        """The mean over all rows, of which each process differentiates its share's part."""
        part = distance_from(start, self.parameter) * (len(self.rows) / self.count)
        return part + (self.world.sum(part.detach().clone()) - part.detach())

    def send(self) -> None:
        """In a helper: give the share to the first process."""
        collect_rows(self.parameter, lambda first, piece: None, self.count, self.world)

    def collect(self, rows: Tensor) -> None:
        """In the first process: all rows into a tensor (N, D)."""
        collect_rows(self.parameter, lambda first, piece: rows[first : first + len(piece)].copy_(piece), self.count, self.world)

    def collect_on_disk(self, folder: Path) -> Tensor:
        """In the first process: all rows (N, D), mapped from a file in this folder that has no name, so that nothing can be left over."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            collect_rows(self.parameter, lambda first, piece: file.write(piece.numpy().data), self.count, self.world)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        with contextlib.suppress(OSError):
            folder.rmdir()
        return torch.frombuffer(mapped, dtype=torch.float32).view(self.count, -1)


class SharedVectors:
    """Vectors of queries, computed once, of which each process has a share."""

    def __init__(self, model: DSI, examples: Examples, tokenizer: Tokenizer, world: World, progress: Progress = silent) -> None:
        ids = [examples.ids[number] for number in range(world.rank, len(examples.ids), world.size)]
        self.world, self.vectors = world, query_vectors(model, ids, tokenizer, int8=model.int8, progress=progress)

    def batch(self, numbers: Tensor) -> Tensor:
        """The vectors of a batch, in every process: (B, D)."""
        batch = self.vectors.new_zeros(len(numbers), self.vectors.shape[1])
        mine = numbers % self.world.size == self.world.rank
        batch[mine.to(batch.device)] = self.vectors[(numbers[mine] // self.world.size).to(batch.device)]
        return self.world.sum(batch)
