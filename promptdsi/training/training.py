"""The one training loop: epochs over batches, AdamW with groups, a learning-rate schedule, checkpoints, and a stop on NaN.

The caller passes `step(batch) → loss` and the groups of parameters that train. Same seed, same bits: the only global randomness
is dropout's, seeded here and saved in checkpoints.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptdsi.errors import PromptDSIError
from promptdsi.model.path import Numbers
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import ALONE, Checkpoint, Shared
from promptdsi.training.distributed import World, sum_gradients

WINDOW = 64  # batches per shuffled window that is sorted by length: large enough to pad little, small enough to stay random


class Diverged(PromptDSIError):
    """A loss, gradient or weight is not finite; nothing of this training may be used."""


@dataclass(frozen=True)
class Group:
    """Parameters with one learning rate. Prompts and keys have decay 0: a decayed prompt is a changed prompt."""

    named: dict[str, nn.Parameter]
    lr: float
    decay: float = 0.0
    lazy: bool = False  # entries (along the first axis) without gradient are not moved by stale momentum


@dataclass(frozen=True)
class Plan:
    """How long and how to train. `schedule` names a factor on every group's learning rate; see `factor`."""

    epochs: int
    batch_size: int = 128
    schedule: str = "constant"


@dataclass(frozen=True, kw_only=True)
class Training(Plan):
    """How weights are trained on one corpus. `lr` is the encoder's learning rate, or the prompts' where the encoder is frozen."""

    lr: float
    row_lr: float
    encoder_decay: float = 0.01
    row_decay: float = 0.01
    row_init: str = "random"  # random, document (its vector) or queries (their mean vector)


@dataclass(frozen=True, kw_only=True)
class FirstTraining(Training):
    """How D0 is trained: encoder and rows, rows over the encoder as it is, or nothing, which leaves rows at their initial vectors."""

    learn: str = "everything"  # or rows, or nothing


@dataclass
class TrainingLog:
    """Loss of every step, number of examples seen, and seconds; of these, the seconds before an interruption."""

    losses: list[float] = field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0
    seconds_before: float = 0.0


def factor(schedule: str, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The factor on the learning rates at a step.

    `epochs` is IncDSI's: 0.9 rising to 1.0 over ten epochs, stepped once an epoch. `linear` warms up over a tenth and falls
    to zero.

    Examples
    --------
    >>> [factor("epochs", step, 5, 20) for step in (0, 5, 50, 99)]
    [0.9, 0.91, 1.0, 1.0]
    >>> [round(factor("linear", step, 10, 1), 2) for step in (0, 1, 5, 9)]
    [1.0, 1.0, 0.56, 0.11]
    """
    total = steps_per_epoch * epochs
    if schedule == "constant":
        return 1.0
    if schedule == "epochs":
        return round(0.9 + 0.1 * min(1.0, (step // steps_per_epoch) / 10), 10)
    if schedule == "linear":
        warm = max(1, total // 10)
        return (step + 1) / warm if step < warm else (total - step) / (total - warm)
    raise ValueError(f"no schedule {schedule!r}; there are constant, epochs, linear")


def train(
    step: Callable[[Numbers], Tensor],
    groups: Sequence[Group],
    lengths: Sequence[int] | Numbers,
    plan: Plan,
    *,
    seed: int = 0,
    shared: Shared = ALONE,
    after_step: Callable[[], None] = lambda: None,
    checkpoint: Path | None = None,
    identity: str = "",
    generator: torch.Generator | None = None,
    what: str = "training",
    progress: Progress = silent,
) -> TrainingLog:
    """Train until the plan is done. With a checkpoint folder an interrupted run continues exactly where it stopped.

    `identity` says what is trained on what: a checkpoint of anything else is not used; it holds the state of `generator` too, from which
    `step` may draw. `after_step` runs after every optimizer step, for what must always hold (such as row norms). Several processes
    (`shared`) call this together; they stop and save together, and only the first touches the checkpoint's folder.
    """
    groups = [group for group in groups if group.named]
    named = {name: parameter for group in groups for name, parameter in group.named.items()}
    steps_per_epoch, optimizer, log = math.ceil(len(lengths) / plan.batch_size), _optimizer(groups), TrainingLog()
    torch.manual_seed(seed + 7919 * shared.world.rank)  # dropout: each of several processes draws its own
    of = _settings(plan, groups, seed, identity)
    saved = Checkpoint(checkpoint, of, named, optimizer, generator, shared) if checkpoint else None
    resumed, log.seconds_before = saved.load(log.losses) if saved else (0, 0.0)  # steps done before, and the time they took
    started, world = time.monotonic(), shared.world
    epochs = (bucketed(lengths, plan.batch_size, seed=seed, epoch=epoch) for epoch in range(plan.epochs))
    with progress(what, total=steps_per_epoch * plan.epochs, unit="steps") as advance, _Interruptible() as interrupt:
        advance(resumed)
        for number, batch in enumerate(itertools.chain.from_iterable(epochs)):
            log.examples += len(batch)
            if number < resumed:
                continue
            rate = factor(plan.schedule, number, steps_per_epoch, plan.epochs)
            log.losses.append(_update(step, batch, optimizer, groups, rate, number, shared))
            after_step()
            advance(1)
            stop, due = world.any(interrupt.requested, saved is not None and saved.due)
            if saved and (stop or due):
                saved.save(number + 1, log.losses)
            if stop:
                raise KeyboardInterrupt
    _check_finite(named, "weight", len(log.losses), world)
    if saved:
        saved.remove()
    log.seconds = log.seconds_before + time.monotonic() - started
    return log


def _settings(plan: Plan, groups: Sequence[Group], seed: int, identity: str) -> dict[str, Any]:
    """What a checkpoint must have been made with to be used."""
    rates = [(sorted(group.named), group.lr, group.decay, group.lazy) for group in groups]
    return {"plan": vars(plan), "seed": seed, "rates": rates, "of": identity}


def _optimizer(groups: Sequence[Group]) -> torch.optim.Optimizer:
    parameters = [{"params": list(group.named.values()), "lr": group.lr, "weight_decay": group.decay} for group in groups]
    return torch.optim.AdamW(parameters, fused=True)  # one pass over parameters and moments, not a dozen


def _update(
    step: Callable[[Numbers], Tensor], batch: Numbers, optimizer: Any, groups: Sequence[Group], rate: float, number: int, shared: Shared
) -> float:
    for settings, group in zip(optimizer.param_groups, groups, strict=True):
        settings["lr"] = group.lr * rate
    optimizer.zero_grad(set_to_none=True)
    loss = step(batch)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise Diverged(f"the loss is {value} at step {number + 1}; training stopped, nothing is kept. Try a smaller learning rate")
    loss.backward()
    sum_gradients((parameter for group in groups for name, parameter in group.named.items() if name not in shared.shards), shared.world)
    gradients = {name: p.grad for group in groups for name, p in group.named.items() if p.grad is not None}
    _check_finite(gradients, "gradient", number, shared.world)
    lazy = [parameter for group in groups if group.lazy for parameter in group.named.values()]
    untouched = [entries for parameter in lazy for entries in _untouched(parameter, optimizer)]
    optimizer.step()
    for tensor, mask, before in untouched:
        tensor[mask] = before
    return value


def _untouched(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of a parameter and each of its moments: the tensor, which entries (m,) got no gradient in this step, and those entries."""
    gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    mask = ~gradient.flatten(1).any(1)  # (m,)
    state = optimizer.state.get(parameter, {})
    moments = [value for value in state.values() if isinstance(value, Tensor) and value.shape == parameter.shape]
    return [(tensor, mask, tensor[mask].clone()) for tensor in (parameter.data, *moments)]


def _check_finite(tensors: dict[str, Tensor] | dict[str, nn.Parameter], kind: str, number: int, world: World) -> None:
    """One sum of norms tells whether all are finite, in every process; the culprit is looked for only if not."""
    if not tensors:
        return
    total: Tensor = sum(torch._foreach_norm([tensor.detach() for tensor in tensors.values()], 1))  # type: ignore[assignment]
    if not math.isfinite(float(world.sum(total))):
        infinite = (name for name, tensor in tensors.items() if not torch.isfinite(tensor).all())
        bad = next(infinite, next(iter(tensors)))  # those of another process, or all are finite and their sum is not
        raise Diverged(
            f"the {kind} of {bad} is not finite at step {number + 1}; training stopped, nothing is kept. Try a smaller learning rate"
        )


class _Interruptible:
    """Ctrl-C and SIGTERM wait for the running step to end, so that a checkpoint never holds half a step."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interruptible:
        import threading

        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:  # the second time, at once
            raise KeyboardInterrupt
        self.requested = True


def bucketed(lengths: Sequence[int] | Numbers, batch_size: int, *, seed: int, epoch: int) -> list[Numbers]:
    """One epoch's batches: every example once, those of similar length together, in an order that seed and epoch decide."""
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    measure = np.asarray(lengths)
    batches: list[Numbers] = []
    for start in range(0, len(order), WINDOW * batch_size):
        window = order[start : start + WINDOW * batch_size]
        window = window[np.argsort(measure[window], kind="stable")]
        batches += [window[first : first + batch_size] for first in range(0, len(window), batch_size)]
    return [batches[number] for number in rng.permutation(len(batches))]
