"""What trains when: three ways to use the one training loop, in one process; `shared_stages.py` has those of several.

- `learn_everything`: D0, encoder and rows.
- `learn_rows`: a new corpus without prompts. Query vectors never change, so they are computed once and only rows train.
- `learn_prompts`: a new corpus with prompts. Frozen lower layers run once; upper layers run with prefixes each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from promptdsi.model.dsi import DSI
from promptdsi.model.path import Encoded, Numbers, unit
from promptdsi.model.tokenizer import Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import checksum_of
from promptdsi.training.encoding import LowerStates, autocast, query_vectors
from promptdsi.training.examples import Examples
from promptdsi.training.objectives import Masked, cross_entropy, cross_entropy_given_old, distance_from, log_sum_over_old
from promptdsi.training.training import Group, Training, TrainingLog, train


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """What bounds new rows so that old documents stay retrievable."""

    fix_row_norm: bool = False  # at the initial norms
    row_norm: str = "mean"  # of D0's rows; or fitted: the norm D0's rows have in such a neighborhood
    row_norm_scale: float = 1.0  # times that
    anchor_weight: float = 0.0  # of a penalty on leaving the initial direction
    softmax_scope: str = "all_seen"  # or new_only


class Replay(NamedTuple):
    """Vectors of old queries (n, D), and the row each should retrieve (n,): each step draws `size`, whose loss counts `weight`."""

    vectors: Tensor
    targets: Tensor
    size: int = 512
    weight: float = 1.0


def learn_everything(
    model: DSI,
    examples: Examples,
    tokenizer: Tokenizer,
    options: Training,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    begins: str = "",
    what: str = "learning D0",
    progress: Progress = silent,
) -> TrainingLog:
    """Train every weight of the encoder that learns, and the newest block of rows, on (query → document), by cross-entropy over all rows.

    `begins` is a checksum of what the rows begin as, where the rows themselves are not to identify a checkpoint.
    """
    model.train()
    device = model.device
    targets = examples.targets.to(device)

    def step(batch: Numbers) -> Tensor:
        tokens = tokenizer.pad([examples.ids[number] for number in batch], device)
        with autocast(device):
            vectors = model.unprompted(tokens)  # (B, D)
        batch_targets, masked = _assign(examples, torch.from_numpy(batch), vectors, model.rows.blocks[-1], targets)
        return cross_entropy(vectors, model.rows, batch_targets, scale=model.scale, masked=masked).mean()

    encoder = {f"encoder.{name}": weight for name, weight in model.encoder.named_parameters() if weight.requires_grad}
    rows = Group({"rows": model.rows.blocks[-1]}, options.row_lr, options.row_decay)
    groups = [Group(encoder, options.lr, options.encoder_decay), rows]
    resume = resume_from(checkpoint, model, examples, begins=begins)
    log = train(step, groups, examples.lengths, options, seed=seed, **resume, what=what, progress=progress)
    model.eval()
    return log


def learn_rows(
    model: DSI,
    examples: Examples,
    tokenizer: Tokenizer,
    options: Training,
    limits: RowOptions,
    *,
    seed: int = 0,
    replay: Replay | None = None,
    checkpoint: Path | None = None,
    begins: str = "",
    progress: Progress = silent,
) -> TrainingLog:
    """Train new rows only, on query vectors computed once. `begins` as in `learn_everything`."""
    model.eval()  # no dropout: the encoder is frozen, and its vectors are the ones that search will see
    vectors = query_vectors(model, examples.ids, tokenizer, int8=model.int8, progress=progress)  # (n, D)
    rows = model.rows
    new = rows.blocks[-1]
    first_new = len(rows) - len(new)
    positions = examples.targets.to(vectors.device) - first_new
    # Neither old rows nor vectors change, so the old rows' part of the softmax is one number per query for the whole training.
    if limits.softmax_scope == "new_only":
        old = vectors.new_full((len(vectors),), -torch.inf)
    else:
        old = log_sum_over_old(vectors, rows, scale=model.scale)  # (n,)
    # Rows deleted before `tune` are still in the block, but no document any more: they must not take part in the softmax.
    deleted = torch.tensor(
        sorted(number - first_new for number in rows.deleted if number >= first_new), dtype=torch.long, device=vectors.device
    )
    generator = torch.Generator().manual_seed(seed)
    retained = _retention_loss(model, limits, replay, generator)
    local = examples.moved(first_new)

    def step(batch: Numbers) -> Tensor:
        numbers = torch.from_numpy(batch)
        batch_targets, masked = _assign(local, numbers, vectors[numbers], new, positions)
        softmax: dict[str, Any] = {"scale": model.scale, "deleted": deleted, "masked": masked}
        return retained(cross_entropy_given_old(vectors[numbers], new, old[numbers], batch_targets, **softmax).mean())

    groups = [Group({"rows": new}, options.row_lr, options.row_decay)]
    # All vectors have the same size, so batches need no bucketing by length: every example counts as length 1.
    resume = resume_from(checkpoint, model, examples, limits, replay, begins)
    resume |= {"generator": generator, "after_step": norm_fixer(new, limits)}
    return train(step, groups, [1] * len(vectors), options, seed=seed, **resume, what="learning rows", progress=progress)


def learn_prompts(
    model: DSI,
    examples: Examples,
    states: LowerStates,
    tokenizer: Tokenizer,
    options: Training,
    limits: RowOptions,
    *,
    seed: int = 0,
    replay: Replay | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> TrainingLog:
    """Train new rows and the strategy's open prompts and keys, from stored states of the frozen lower layers."""
    model.train()
    device = model.device
    targets = examples.targets.to(device)
    new = model.rows.blocks[-1]
    first_new = len(model.rows) - len(new)
    local = examples.moved(first_new)
    generator = torch.Generator().manual_seed(seed)
    retained = _retention_loss(model, limits, replay, generator)

    def step(batch: Numbers) -> Tensor:
        tokens = tokenizer.pad([examples.ids[number] for number in batch], device)
        numbers = torch.from_numpy(batch)
        with autocast(device):
            encoded: Encoded = model(tokens, entering=states.batch(batch.tolist(), tokens), query=states.query[numbers])
        batch_targets, masked = _assign(local, numbers, encoded.vectors, new, targets - first_new)
        masked = masked and (masked[0], masked[1] + first_new)
        softmax: dict[str, Any] = {"scale": model.scale, "scope": limits.softmax_scope, "masked": masked}
        return retained(cross_entropy(encoded.vectors, model.rows, batch_targets + first_new, **softmax).mean() + encoded.selection.loss)

    prompts = {f"prompts.{name}": weight for name, weight in model.prompt_pool.named_parameters() if weight.requires_grad}
    # Lazy: a batch selects a few prompts of a pool, and the others must not move by stale momentum.
    groups = [Group(prompts, options.lr, lazy=True), Group({"rows": new}, options.row_lr, options.row_decay)]
    resume = resume_from(checkpoint, model, examples, limits, replay) | {"generator": generator, "after_step": norm_fixer(new, limits)}
    log = train(step, groups, examples.lengths, options, seed=seed, **resume, what="learning prompts", progress=progress)
    model.eval()
    return log


def _assign(examples: Examples, numbers: Tensor, vectors: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Masked | None]:
    """The target of each query of a batch among `rows`, and the other passages of its document, which are no wrong answers."""
    if examples.siblings is None:
        return targets[numbers], None
    batch_targets = examples.siblings.assign(numbers, vectors, rows, targets[numbers])
    return batch_targets, examples.siblings.masked(numbers, batch_targets)


def resume_from(
    checkpoint: Path | None,
    model: DSI,
    examples: Examples,
    limits: RowOptions | None = None,
    replay: Replay | None = None,
    begins: str = "",
) -> dict[str, Any]:
    """Keywords with which `train` continues from a checkpoint in this folder: one of the same weights, settings, queries and targets.

    Rows that several processes begin differ in their last bits with the number of processes: what they begin as stands for them.
    """
    if checkpoint is None:
        return {}
    settings: list[Any] = [model.pooling, model.normalize, model.scale, model.encoder.config.to_json(), begins]
    if limits is not None:  # with new rows alone; D0 takes no prompts
        strategy = [model.strategy.name, model.strategy.get_params(), model.selection, model.prefix_space, model.int8]
        settings += [vars(limits), strategy, *([replay.size, replay.weight] if replay else [])]
    weights = [weight for name, weight in model.state_dict().items() if not (begins and name.startswith("rows."))]
    arrays = [*weights, *examples.ids, examples.targets, *(examples.siblings or ()), *(replay[:2] if replay else ())]
    return {"checkpoint": checkpoint, "identity": checksum_of(settings, arrays)}


def norm_fixer(rows: Tensor, limits: RowOptions) -> Callable[[], None]:
    """Puts rows back to their initial norms; runs after each optimizer step."""
    norms = rows.detach().norm(dim=1, keepdim=True).clone()  # (n, 1)

    def fix() -> None:
        with torch.no_grad():
            rows.copy_(norms * unit(rows))

    return fix if limits.fix_row_norm else lambda: None


def _retention_loss(model: DSI, limits: RowOptions, replay: Replay | None, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Adds to a batch's loss that of replayed old queries, and the mean squared distance of row directions from their initial ones.

    A row starts as its document's vector, which tells more about future queries than the few it is trained on.
    """
    rows = model.rows.blocks[-1]
    start = unit(rows.detach().clone())

    def added(loss: Tensor) -> Tensor:
        if replay is not None:
            numbers = torch.randint(len(replay.vectors), (replay.size,), generator=generator)
            loss = (
                loss + replay.weight * cross_entropy(replay.vectors[numbers], model.rows, replay.targets[numbers], scale=model.scale).mean()
            )
        if limits.anchor_weight:
            loss = loss + limits.anchor_weight * distance_from(start, rows)
        return loss

    return added
