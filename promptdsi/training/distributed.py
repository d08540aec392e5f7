"""What several processes that train together (`torchrun`) send each other. The first one leads: it alone reads, writes and commits.

Nothing is pickled: tensors and bytes are sent as they are. Rows pass through the first process piece by piece; it never has them all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptdsi.errors import UsageError
from promptdsi.model.path import Numbers

PIECE = 16_384  # rows that are sent at a time: 25 MB of width 384


class World(NamedTuple):
    """This process's rank among those that train together, and what they compute together; alone, each is what it has itself."""

    rank: int = 0
    size: int = 1

    def part(self, batch: Numbers) -> Numbers:
        """The examples of a batch this process encodes; at least one, so that every process has the same gradients to add."""
        return batch[self.rank :: self.size] if self.rank < len(batch) else batch[:1]

    def order(self, batch: Numbers) -> Numbers:
        """The batch in the order in which `gather` concatenates it."""
        return np.concatenate([batch[rank :: self.size] for rank in range(self.size)])

    def share(self, count: int, rank: int | None = None) -> range:
        """Which of `count` rows a process trains, by default this one; none is empty where there are as many rows as processes."""
        rank = self.rank if rank is None else rank
        return range(count * rank // self.size, count * (rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        return self._reduced(tensor, "SUM")

    def max(self, tensor: Tensor) -> Tensor:
        """The largest over all processes, in place."""
        return self._reduced(tensor, "MAX")

    def any(self, *flags: bool) -> list[bool]:
        """Of each flag whether any process has set it: they stop and save together."""
        return [bool(flag) for flag in self.max(torch.tensor([int(flag) for flag in flags])).tolist()]

    def every(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have the same shape."""
        import torch.distributed as dist

        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if self.size == 1:
            return [tensor]
        dist.all_gather(parts, tensor)
        return parts

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor of the first process, in place."""
        import torch.distributed as dist

        if self.size > 1:
            dist.broadcast(tensor, 0)
        return tensor

    def _reduced(self, tensor: Tensor, how: str) -> Tensor:
        import torch.distributed as dist

        if self.size > 1:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, how))
        return tensor


def work_alone() -> None:
    """From now on this process trains alone. A process that ends while threads still serve its connections may be aborted."""
    import torch.distributed as dist

    os.environ["WORLD_SIZE"] = "1"
    if dist.is_initialized():
        dist.destroy_process_group()


def join() -> World:
    """Join the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    import torch.distributed as dist

    if not dist.is_initialized():
        # torch's first optimizer imports this, and its defaults hold the connections of that moment: threads that serve them would
        # outlive `destroy_process_group`, and one that wants the interpreter while it ends aborts the process.
        import torch.distributed.nn.functional

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # Gloo for the processor, nccl for accelerators. A helper may wait for days until the first process trains again.
        dist.init_process_group(timeout=timedelta(days=30))
    return World(dist.get_rank(), dist.get_world_size())


_leading = False


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """In the first process of several: the others wait for work until this ends (`help_training`), rather than run the same program."""
    global _leading
    _leading = join().size > 1
    try:
        yield
        if _leading:
            with contextlib.suppress(RuntimeError):  # a helper that ends before the others heard of it closes its connections
                broadcast(b"")
    finally:
        if _leading:
            work_alone()
        _leading = False


def is_leading() -> bool:
    """Whether other processes wait for work from this one."""
    return _leading


def team() -> World:
    """The processes that wait for work from this one, which leads them; without any, this one alone."""
    world = join()
    if world.size > 1 and not _leading:
        raise UsageError("several processes train only where the first one leads: start the commands that do with torchrun")
    return world


def broadcast(content: bytes = b"") -> bytes:
    """Bytes of the first process, given to all that wait for them."""
    world = join()
    if world.size == 1:
        return content
    size = world.first(torch.tensor([len(content)]))
    if not int(size):
        return b""
    buffer = bytearray(content) if world.rank == 0 else bytearray(int(size))
    return _bytes(world.first(torch.frombuffer(buffer, dtype=torch.uint8)))


def receive_work() -> bytes:
    """What the first process broadcasts next; nothing when its work has ended, or it has, which its own exit code explains."""
    try:
        return broadcast()
    except RuntimeError:
        return b""


def scatter(read: Callable[[int], bytes], world: World) -> bytes:
    """To each process the bytes that the first one reads for it, one process after the other."""
    import torch.distributed as dist

    if world.rank == 0:
        for rank in range(1, world.size):
            content = read(rank)
            dist.send(torch.tensor([len(content)]), rank)
            dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), rank)
        return read(0)
    size = torch.zeros(1, dtype=torch.long)
    dist.recv(size, 0)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(buffer, 0)
    return _bytes(buffer)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def scatter_rows(read: Callable[[int, int], Tensor], share: Tensor, count: int, world: World) -> None:
    """Fill the share of each process (n, …) with what the first one reads, piece by piece, first row to last."""
    import torch.distributed as dist

    for rank, first, last in _pieces(count, world):
        if world.rank not in (0, rank):
            continue
        mine, start = rank == world.rank, world.share(count, rank).start
        piece = read(first, last).contiguous() if world.rank == 0 else torch.empty(last - first, *share.shape[1:], dtype=share.dtype)
        if not mine:
            dist.send(piece, rank)
        elif world.rank:
            dist.recv(piece, 0)
        if mine:
            share[first - start : last - start] = piece.to(share.device)


def collect_rows(share: Tensor, write: Callable[[int, Tensor], object], count: int, world: World) -> None:
    """In the first process, `write` every piece of all shares with the number of its first row, in order; the others send theirs."""
    import torch.distributed as dist

    for rank, first, last in _pieces(count, world):
        start = world.share(count, rank).start
        piece = torch.empty(last - first, *share.shape[1:], dtype=share.dtype)
        if rank == world.rank:
            piece = share[first - start : last - start].detach().cpu().contiguous()
            if world.rank:
                dist.send(piece, 0)
        elif world.rank == 0:
            dist.recv(piece, rank)
        if world.rank == 0:
            write(first, piece)


def _pieces(count: int, world: World) -> Iterator[tuple[int, int, int]]:
    """All rows in pieces: whose it is, its first row, and the one behind its last."""
    for rank in range(world.size):
        share = world.share(count, rank)
        for first in range(share.start, share.stop, PIECE):
            yield rank, first, min(first + PIECE, share.stop)


def gather(local: Tensor, world: World, count: int) -> Tensor:
    """All processes' vectors (B, D). Gradients flow into this process's own part only; the others do the same for theirs."""
    most = -(-count // world.size)
    parts = world.every(F.pad(local.detach()[:most], (0, 0, 0, most - min(most, len(local)))))
    sizes = [len(range(rank, count, world.size)) for rank in range(world.size)]
    trimmed = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    trimmed[world.rank] = local[: sizes[world.rank]]  # without the query that a process without a part encoded
    return torch.cat(trimmed)


def sum_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Sum the gradients of all processes: each has seen a part of the batch of one common mean loss."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if world.size == 1 or not gradients:
        return
    flat = world.sum(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
