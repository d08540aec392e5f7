"""Training over several processes (`torchrun`): each encodes its part of a batch and stores its shard of the rows.

Rows are sharded by document rather than replicated (DDP), because they and their optimizer moments are what grows with the
corpus: at a million documents of width 384 they take 4.6 GB, which two processes halve; replicas would each hold all of it. The softmax
over all rows is exact: torch's tensor-parallel cross-entropy. The encoder is data-parallel: its gradients are summed. Two
processes therefore follow the same loss curve as one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query
from promptdsi.model.path import Numbers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class World(NamedTuple):
    """This process's rank among those that train together."""

    rank: int = 0
    size: int = 1

    def part(self, batch: Numbers) -> Numbers:
        """The examples of a batch this process encodes; at least one, so that every process has the same gradients to add."""
        return batch[self.rank :: self.size] if self.rank < len(batch) else batch[:1]

    def order(self, batch: Numbers) -> Numbers:
        """The batch in the order in which `gather` concatenates it."""
        import numpy as np

        return np.concatenate([batch[rank :: self.size] for rank in range(self.size)])


def work_alone() -> None:
    """From now on this process trains alone: the others that torchrun started have ended."""
    os.environ["WORLD_SIZE"] = "1"


def join() -> World:
    """Join the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    import torch.distributed as dist

    if not dist.is_initialized():
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
    finally:
        if _leading:
            _broadcast(b"")
        _leading = False


def is_leading() -> bool:
    """Whether other processes wait for work from this one."""
    return _leading


def send_work(content: bytes) -> None:
    """Give work to the processes that wait in `receive_work`."""
    _broadcast(content)


def receive_work() -> bytes:
    """What the first process sent; nothing when its work has ended."""
    join()
    return _broadcast()


def share_corpus(corpus: Corpus) -> None:
    """Send the corpus from the first process to the others, which wait in `receive_corpus`: only the first one reads files."""
    if join().size > 1:
        documents = [[*document[:3], dict(document.metadata)] for document in corpus.documents]
        queries = [[*query[:3], dict(query.metadata)] for query in corpus.queries]
        _broadcast(json.dumps([documents, queries, corpus.qrels, corpus.name]).encode("utf-8"))


def receive_corpus() -> Corpus:
    """The corpus of the first process; as JSON, never pickled."""
    join()
    documents, queries, qrels, name = json.loads(_broadcast())
    judgements = {split: [Judgement(*judgement) for judgement in rows] for split, rows in qrels.items()}
    return Corpus([Document(*document) for document in documents], [Query(*query) for query in queries], judgements, name=name)


def _broadcast(content: bytes = b"") -> bytes:
    """Bytes of the first process, given to all."""
    import torch.distributed as dist

    size = torch.tensor([len(content)])
    dist.broadcast(size, 0)
    if not int(size):
        return b""
    buffer = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8)
    dist.broadcast(buffer, 0)
    return buffer.numpy().tobytes()


def gather(local: Tensor, world: World, count: int) -> Tensor:
    """All processes' vectors (B, D). Gradients flow into this process's own part only; the others do the same for theirs."""
    import torch.distributed as dist

    most = -(-count // world.size)
    padded = F.pad(local.detach()[:most], (0, 0, 0, most - min(most, len(local))))
    parts = [torch.empty_like(padded) for _ in range(world.size)]
    dist.all_gather(parts, padded)
    sizes = [len(range(rank, count, world.size)) for rank in range(world.size)]
    trimmed = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    trimmed[world.rank] = local[: sizes[world.rank]]  # without the query that a process without a part encoded
    return torch.cat(trimmed)


class ShardedRows:
    """The block of rows that trains, sharded by document over the processes."""

    def __init__(self, rows: Tensor, world: World) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        self.mesh: DeviceMesh = init_device_mesh(rows.device.type, (world.size,))
        self.parameter = nn.Parameter(distribute_tensor(rows.detach(), self.mesh, [Shard(0)]))

    def cross_entropy(self, vectors: Tensor, targets: Tensor, *, scale: float) -> Tensor:
        """Mean cross-entropy over all rows, each process scoring its shard: (B, D), (B,) → scalar."""
        from torch.distributed.tensor import DTensor, Replicate
        from torch.distributed.tensor.parallel import loss_parallel

        replicated = DTensor.from_local(vectors, self.mesh, [Replicate()])
        with loss_parallel():
            loss: Any = F.cross_entropy(scale * replicated @ self.parameter.T, targets)
            # The backward pass of a sharded softmax must run in this context too, so the caller does not run it.
            loss.backward()
        return torch.as_tensor(loss.full_tensor() if isinstance(loss, DTensor) else loss).detach()

    def all_rows(self) -> Tensor:
        """All rows, gathered from every process."""
        sharded: Any = self.parameter.detach()
        return torch.as_tensor(sharded.full_tensor())


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all processes: each has seen a part of the batch of one common mean loss."""
    import torch.distributed as dist

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
