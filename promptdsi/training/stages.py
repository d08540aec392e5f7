"""What learns when: three ways to use the one training loop.

- `learn_everything`: D0, encoder and rows.
- `learn_rows`: a new corpus without prompts. Query vectors never change, so they are computed once and only rows train.
- `learn_prompts`: a new corpus with prompts. Frozen lower layers run once; upper layers run with prefixes each step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from promptdsi.model.arrays import unit
from promptdsi.model.dsi import DSI
from promptdsi.model.path import Encoded
from promptdsi.model.rows import Rows
from promptdsi.model.tokenizer import Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.batches import Numbers
from promptdsi.training.distributed import ShardedRows, gather, join, sum_gradients
from promptdsi.training.encoding import KeptStates, device_of, query_vectors
from promptdsi.training.examples import Examples
from promptdsi.training.objectives import cross_entropy, cross_entropy_given_old, log_sum_over
from promptdsi.training.training import Group, Plan, TrainingLog, train


class Rates(NamedTuple):
    """Learning rates and decays; prompts and keys never decay."""

    encoder: float
    rows: float
    prompts: float
    encoder_decay: float = 0.01
    row_decay: float = 0.01


class Replay(Protocol):
    """What stands for old queries while new rows learn."""

    def draw(self, rows: Rows, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` query vectors (count, D) and the old rows they should find (count,)."""


class RetentionLoss(NamedTuple):
    """What keeps the old found: rows held at the length they started with, how strongly they are held near the direction they
    started in, and what stands for old queries in each batch."""

    hold_length: bool = False
    anchor: float = 0.0
    replay: Replay | None = None
    drawn: int = 0
    weight: float = 1.0


class Softmax(NamedTuple):
    """What new rows are learned with: scores are multiplied by `scale`, over all seen rows or the new ones alone."""

    scale: float
    scope: str = "all_seen"


def learn_everything(
    model: DSI,
    examples: Examples,
    tokenizer: Tokenizer,
    rates: Rates,
    plan: Plan,
    *,
    checkpoint: Path | None = None,
    what: str = "learning D0",
    progress: Progress = silent,
) -> TrainingLog:
    """D0: every weight of the encoder and every row, on (query → document), cross-entropy over all rows.

    Under torchrun the processes share the work; every one ends with the whole model.
    """
    world = join()
    model.train()
    device = device_of(model)
    targets = examples.targets.to(device)
    encoder = {f"encoder.{name}": weight for name, weight in model.encoder.named_parameters()}
    sharded = ShardedRows(model.rows.blocks[-1], world) if world.size > 1 else None

    def step(batch: Numbers) -> Tensor:
        tokens = tokenizer.pad([examples.ids[number] for number in world.part(batch)], device)
        with autocast(device):
            vectors = model.unprompted(tokens)  # (B, D)
        if sharded is None:
            return cross_entropy(vectors, model.rows, targets[torch.from_numpy(batch)], scale=model.scale).mean()
        vectors = gather(vectors.float(), world, len(batch))
        loss = sharded.cross_entropy(vectors, targets[torch.from_numpy(world.order(batch))], scale=model.scale)
        sum_gradients(encoder.values())
        return loss

    rows = model.rows.blocks[-1] if sharded is None else sharded.parameter
    groups = [Group(encoder, rates.encoder, rates.encoder_decay), Group({"rows": rows}, rates.rows, rates.row_decay)]
    # Several processes would each write the checkpoint of their own shard: only a single one keeps it.
    kept = checkpoint if world.size == 1 else None
    trained_on = {"checkpoint": kept, "identity": identity_of(model, examples) if kept else ""}
    log = train(step, groups, examples.lengths, plan, **trained_on, what=what, progress=progress)  # type: ignore[arg-type]
    if sharded is not None:
        model.rows.blocks[-1].data.copy_(sharded.whole())
    model.eval()
    return log


def learn_rows(
    model: DSI,
    examples: Examples,
    tokenizer: Tokenizer,
    rates: Rates,
    plan: Plan,
    retention: RetentionLoss,
    softmax: Softmax,
    *,
    progress: Progress = silent,
) -> TrainingLog:
    """New rows only, on query vectors computed once. The old rows enter as one number per query, their log-sum-exp."""
    model.eval()
    vectors = query_vectors(model, examples.ids, tokenizer, progress=progress)  # (n, D)
    rows = model.rows
    new = rows.blocks[-1]
    first_new = len(rows) - len(new)
    places = examples.targets.to(vectors.device) - first_new
    if softmax.scope == "new_only":
        old = vectors.new_full((len(vectors),), -torch.inf)
    else:
        old = log_sum_over(vectors, rows, len(rows.blocks) - 1, scale=softmax.scale)  # (n,)
    deleted = torch.tensor(
        sorted(number - first_new for number in rows.deleted if number >= first_new), dtype=torch.long, device=vectors.device
    )
    replayed, strayed = _replayed(model, retention, softmax.scale, plan.seed), _strayed(new, retention.anchor)

    def step(batch: Numbers) -> Tensor:
        chosen = torch.from_numpy(batch)
        loss = cross_entropy_given_old(vectors[chosen], new, old[chosen], places[chosen], scale=softmax.scale, deleted=deleted).mean()
        return loss + replayed() + strayed()

    groups = [Group({"rows": new}, rates.rows, rates.row_decay)]
    return train(step, groups, [1] * len(vectors), plan, after_step=_holding(new, retention), what="learning rows", progress=progress)


def learn_prompts(
    model: DSI,
    examples: Examples,
    kept: KeptStates,
    tokenizer: Tokenizer,
    rates: Rates,
    plan: Plan,
    retention: RetentionLoss,
    softmax: Softmax,
    *,
    progress: Progress = silent,
) -> TrainingLog:
    """New rows and the strategy's open prompts and keys, from kept states of the frozen lower layers."""
    model.train()
    device = device_of(model)
    targets = examples.targets.to(device)
    new = model.rows.blocks[-1]
    replayed, strayed = _replayed(model, retention, softmax.scale, plan.seed), _strayed(new, retention.anchor)

    def step(batch: Numbers) -> Tensor:
        tokens = tokenizer.pad([examples.ids[number] for number in batch], device)
        chosen = torch.from_numpy(batch)
        with autocast(device):
            encoded: Encoded = model(tokens, entering=kept.batch(batch.tolist(), tokens), query=kept.query[chosen])
        loss = cross_entropy(encoded.vectors, model.rows, targets[chosen], scale=softmax.scale, scope=softmax.scope).mean()
        return loss + encoded.selection.loss + replayed() + strayed()  # type: ignore[no-any-return]

    prompts = {f"prompts.{name}": weight for name, weight in model.prompt_pool.named_parameters() if weight.requires_grad}
    groups = [Group(prompts, rates.prompts, lazy=True), Group({"rows": new}, rates.rows, rates.row_decay)]
    log = train(step, groups, examples.lengths, plan, after_step=_holding(new, retention), what="learning prompts", progress=progress)
    model.eval()
    return log


def identity_of(model: DSI, examples: Examples) -> str:
    """What is trained on what, before it is trained: settings, weights, starting rows, queries and targets."""
    digest = hashlib.sha256(json.dumps([model.pooling, model.normalize, model.scale, model.encoder.config.to_json()]).encode())
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for one in examples.ids:
        digest.update(one.tobytes())
    digest.update(examples.targets.cpu().numpy().tobytes())
    return digest.hexdigest()


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the accelerator has it; the processor computes in float32."""
    able = (device.type == "cuda" and torch.cuda.is_bf16_supported()) or device.type == "mps"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=able)


def _holding(rows: Tensor, retention: RetentionLoss) -> Callable[[], None]:
    """Put rows back to the length they started with after each step, where it is held."""
    lengths = rows.detach().norm(dim=1, keepdim=True).clone()  # (n, 1)

    def hold() -> None:
        with torch.no_grad():
            rows.copy_(lengths * unit(rows))

    return hold if retention.hold_length else lambda: None


def _strayed(rows: Tensor, anchor: float) -> Callable[[], Tensor]:
    """What it costs rows to leave the direction they started in: the squared distance, averaged over rows.

    A row starts as the document's own vector, which says more about queries to come than the few it is trained on.
    """
    start = unit(rows.detach().clone())
    if not anchor:
        return lambda: torch.zeros((), device=rows.device)
    return lambda: anchor * (unit(rows) - start).square().sum(1).mean()


def _replayed(model: DSI, retention: RetentionLoss, scale: float, seed: int) -> Callable[[], Tensor]:
    """The loss on what stands for old queries, drawn anew each step."""
    replay = retention.replay
    if replay is None or not retention.drawn:
        return lambda: torch.zeros((), device=device_of(model))
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        points, old = replay.draw(model.rows, retention.drawn, generator)
        return retention.weight * cross_entropy(points, model.rows, old, scale=scale).mean()

    return loss
