"""The training loop: same seed same bits, interruption and resume, NaN stops, decay where it belongs, little padding."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from promptdsi.model.path import Numbers, by_length
from promptdsi.training.training import Diverged, Group, Plan, TrainingLog, bucketed, train

LENGTHS = [1] * 40


class Toy:
    """Linear regression with dropout: enough to see order, randomness and optimiser state."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(40, 6, generator=generator)
        self.weight = nn.Parameter(torch.zeros(6))
        self.other = nn.Parameter(torch.ones(3))
        self.generator = torch.Generator().manual_seed(1)
        self.steps = 0
        self.interrupt_at = interrupt_at

    def step(self, batch: Numbers) -> Tensor:
        self.steps += 1
        if self.steps == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        inputs = nn.functional.dropout(self.inputs[torch.from_numpy(batch)], 0.3)
        return ((inputs @ self.weight - torch.rand((), generator=self.generator)) ** 2).mean()

    def run(self, checkpoint: Path | None = None, *, seed: int = 5, **plan: Any) -> TrainingLog:
        groups = [Group({"weight": self.weight}, 0.05, 0.1)]
        settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "schedule": "linear"} | plan
        return train(self.step, groups, LENGTHS, Plan(**settings), seed=seed, checkpoint=checkpoint, generator=self.generator)


def test_same_seed_same_bits_other_seed_other_bits() -> None:
    first, second, third = Toy(), Toy(), Toy()
    assert first.run().losses == second.run().losses != third.run(seed=6).losses
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 14])
def test_interrupted_and_run_again_it_ends_exactly_where_it_would_have(stop: int, tmp_path: Path) -> None:
    uninterrupted = Toy()
    losses = uninterrupted.run().losses
    broken = Toy(interrupt_at=stop)
    with pytest.raises(KeyboardInterrupt):
        broken.run(tmp_path / "checkpoint")
    resumed = Toy()
    log = resumed.run(tmp_path / "checkpoint")
    assert resumed.steps == len(losses) - stop
    assert log.losses == losses and torch.equal(resumed.weight, uninterrupted.weight)
    assert not (tmp_path / "checkpoint").exists()  # done: nothing is left behind


def test_a_checkpoint_of_another_training_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Toy(interrupt_at=3).run(tmp_path / "checkpoint")
    other = Toy()
    other.run(tmp_path / "checkpoint", seed=9)
    assert other.steps == 15


def test_without_checkpoint_ctrl_c_ends_behind_the_step() -> None:
    before = signal.getsignal(signal.SIGINT)
    toy = Toy(interrupt_at=2)
    with pytest.raises(KeyboardInterrupt):
        toy.run()
    assert toy.steps == 2 and signal.getsignal(signal.SIGINT) is before


def test_it_trains_in_a_thread_too() -> None:
    logs: list[TrainingLog] = []
    thread = threading.Thread(target=lambda: logs.append(Toy().run()))
    thread.start()
    thread.join()
    assert len(logs[0].losses) == 15


@pytest.mark.parametrize(
    ("poison", "says"),
    [
        ("loss", "the loss is nan at step 3"),
        ("gradient", "gradient of weight is not finite at step 3"),
        ("weight", "weight of weight is not finite"),
        ("sum", "weight of weight is not finite"),  # each number is finite, and they are too large to be added
    ],
)
def test_nan_stops_and_names_step_and_tensor(poison: str, says: str) -> None:
    toy = Toy()
    plain = toy.step

    def step(batch: Numbers) -> Tensor:
        loss = plain(batch)
        if toy.steps == 3 and poison == "loss":
            return loss * float("nan")
        if toy.steps == 3 and poison == "gradient":
            return loss + (toy.weight * 0).abs().sqrt().sum()  # value 0, gradient 0/0
        return loss

    def after() -> None:
        if toy.steps == 15 and poison == "weight":
            toy.weight.data[0] = float("inf")
        if toy.steps == 15 and poison == "sum":
            toy.weight.data[:] = 3e38

    with pytest.raises(Diverged, match=says):
        train(step, [Group({"weight": toy.weight}, 0.05)], LENGTHS, Plan(3, 8), after_step=after)


def test_decay_touches_only_the_groups_that_ask_for_it() -> None:
    decayed, undecayed, grown = (nn.Parameter(torch.ones(2)) for _ in range(3))
    groups = [Group({"decayed": decayed}, 0.1, 0.5), Group({"kept": undecayed}, 0.1), Group({}, 0.1)]
    train(lambda batch: (0 * decayed).sum() + (0 * undecayed).sum(), groups, LENGTHS, Plan(1, 8))
    assert (decayed < 1).all() and torch.equal(undecayed, torch.ones(2)) and torch.equal(grown, torch.ones(2))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=300), st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
def test_every_example_comes_once_an_epoch(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    batches = bucketed(lengths, size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // size)
    again = bucketed(lengths, size, seed=seed, epoch=epoch)
    assert all(np.array_equal(batch, repeated) for batch, repeated in zip(batches, again, strict=True))
    encoding = by_length(lengths, 64 * size)
    assert sorted(np.concatenate(encoding).tolist()) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[number] for number in batch) <= 64 * size for batch in encoding)


def test_bucketing_pads_little_and_still_shuffles() -> None:
    lengths = np.random.default_rng(0).integers(4, 32, 6000).tolist()

    def padded(batches: list[Numbers]) -> float:
        return sum(len(batch) * max(lengths[number] for number in batch) for batch in batches) / sum(lengths)

    plain = [np.arange(start, min(start + 128, 6000)) for start in range(0, 6000, 128)]
    assert padded(bucketed(lengths, 128, seed=0, epoch=0)) < 1.05 < 1.5 < padded(plain)
    first, second = (bucketed(lengths, 128, seed=0, epoch=epoch)[0].tolist() for epoch in (0, 1))
    assert first != second
