"""The three uses of the training loop, each step against the same step written out by hand, and what each may change."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from promptdsi.model.dsi import DSI
from promptdsi.model.path import unit
from promptdsi.model.prompts import make_strategy
from promptdsi.training import encoding, stages
from promptdsi.training.encoding import EncodingCache, lower_states, query_vectors, uncached_seconds, use_cache
from promptdsi.training.examples import Examples
from promptdsi.training.stages import Replay, RowOptions, learn_everything, learn_prompts, learn_rows
from promptdsi.training.training import Group, Plan, Training, TrainingLog, train

WORDS = ["tea", "water", "owl", "night", "boat", "lock", "hot", "how", "why", "who"]
TOKENIZER = tiny.tokenizer(WORDS)
TEXTS = ["how hot tea water", "owl night", "why lock boat", "tea", "who owl why night hot"]
OPTIONS = Training(epochs=1, lr=0.01, row_lr=0.02, encoder_decay=0.4, row_decay=0.5)
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


class Captured:
    """Stands in for the loop: keeps what it was given and computes the first loss."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[Group] = []
        self.loss = torch.zeros(())
        monkeypatch.setattr(stages, "train", self)

    def __call__(self, step: Any, groups: list[Group], lengths: list[int], plan: Plan, **keywords: Any) -> TrainingLog:
        self.step, self.groups, self.plan = step, groups, plan
        self.loss = step(np.arange(len(lengths)))
        return TrainingLog()


def examples(*targets: int) -> Examples:
    return Examples(TOKENIZER.encode(TEXTS, max_tokens=16).ids, torch.tensor(targets))


def plain(vectors: Tensor, model: DSI, targets: Tensor, scale: float, first: int = 0) -> Tensor:
    rows = torch.cat([block.detach() for block in model.rows.blocks])[first:]
    return nn.functional.cross_entropy(scale * vectors @ rows.T, targets - first)


@pytest.mark.parametrize("name", ["l2p", "s++", "coda", "topic"])
@pytest.mark.parametrize("scope", ["all_seen", "new_only"])
def test_a_step_with_prompts(name: str, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.begun(name, scale=4.5)
    model.encoder.freeze()
    captured = Captured(monkeypatch)
    data = examples(5, 6, 5, 6, 5)
    states = lower_states(model, data.ids, TOKENIZER)
    learn_prompts(model, data, states, TOKENIZER, OPTIONS, RowOptions(softmax_scope=scope))
    model.train()
    encoded = model(TOKENIZER.pad(data.ids))
    expected = plain(encoded.vectors, model, data.targets, 4.5, 5 if scope == "new_only" else 0) + encoded.selection.loss
    torch.testing.assert_close(captured.loss, expected, **CLOSE)
    prompts, rows = captured.groups
    assert (prompts.lr, prompts.decay, prompts.lazy) == (0.01, 0.0, True)
    assert set(prompts.named) == {f"prompts.{n}" for n, p in model.prompt_pool.named_parameters() if p.requires_grad}
    assert (rows.lr, rows.decay, list(rows.named)) == (0.02, 0.5, ["rows"]) and rows.named["rows"] is model.rows.blocks[-1]
    if name in ("l2p", "s++"):
        assert encoded.selection.loss.item() > 0
    if name == "s++":  # in training every query uses the newest pair, whatever its nearest key
        assert encoded.selection.ids is not None and encoded.selection.ids.tolist() == [1] * 5


def test_dropout_is_on_while_prompts_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.begun("s++", encoder_changes={"dropout": 0.5})
    captured = Captured(monkeypatch)
    data = examples(5, 6, 5, 6, 5)
    learn_prompts(model, data, lower_states(model, data.ids, TOKENIZER), TOKENIZER, OPTIONS, RowOptions())
    model.train()
    assert captured.step(np.arange(5)).item() != captured.step(np.arange(5)).item()


@pytest.mark.parametrize("scope", ["all_seen", "new_only"])
def test_a_step_on_rows_alone(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.begun("none", scale=4.5)
    model.rows.delete(["b", "m1"])
    captured = Captured(monkeypatch)
    data = examples(5, 5, 5, 5, 5)
    learn_rows(model, data, TOKENIZER, OPTIONS, RowOptions(softmax_scope=scope))
    scores = 4.5 * model.unprompted(TOKENIZER.pad(data.ids)) @ torch.cat([block.detach() for block in model.rows.blocks]).T
    scores[:, [1, 6]] = -torch.inf  # deleted rows are in no softmax, old or new
    if scope == "new_only":
        scores[:, :5] = -torch.inf
    torch.testing.assert_close(captured.loss, nn.functional.cross_entropy(scores, data.targets), **CLOSE)
    (rows,) = captured.groups
    assert (rows.lr, rows.decay) == (0.02, 0.5)


@pytest.mark.parametrize("name", ["none", "l2p"])
def test_replayed_queries_add_their_own_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.begun(name, scale=4.5)
    captured = Captured(monkeypatch)
    data = examples(5, 6, 5, 6, 5)
    losses = []
    old = Replay(unit(torch.arange(16.0).reshape(2, tiny.WIDTH) - 5), torch.tensor([1, 3]), size=8, weight=0.5)
    for replay in (None, old):
        if name == "none":
            learn_rows(model, data, TOKENIZER, OPTIONS, RowOptions(), seed=4, replay=replay)
        else:
            learn_prompts(model, data, lower_states(model, data.ids, TOKENIZER), TOKENIZER, OPTIONS, RowOptions(), seed=4, replay=replay)
        losses.append(captured.loss.detach())
    numbers = torch.randint(2, (8,), generator=torch.Generator().manual_seed(4))
    assert set(numbers.tolist()) == {0, 1}
    torch.testing.assert_close(losses[1] - losses[0], 0.5 * plain(old.vectors[numbers], model, old.targets[numbers], 4.5), **CLOSE)


def test_d0_learns_everything_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("none", scale=2.0)
    model.rows.grow(["a", "b", "c"], torch.randn(3, tiny.WIDTH))
    captured = Captured(monkeypatch)
    data = examples(0, 1, 2, 0, 1)
    learn_everything(model, data, TOKENIZER, OPTIONS)
    torch.testing.assert_close(captured.loss, plain(model.unprompted(TOKENIZER.pad(data.ids)), model, data.targets, 2.0), **CLOSE)
    encoder, rows = captured.groups
    assert (encoder.lr, encoder.decay, rows.lr, rows.decay) == (0.01, 0.4, 0.02, 0.5)
    assert len(encoder.named) == len(list(model.encoder.parameters()))
    dropping = tiny.model("none", encoder_changes={"dropout": 0.5})
    dropping.rows.grow(["a", "b", "c"], torch.randn(3, tiny.WIDTH))
    learn_everything(dropping, data, TOKENIZER, OPTIONS)
    dropping.train()
    assert captured.step(np.arange(5)).item() != captured.step(np.arange(5)).item()


def test_what_a_frozen_encoder_has_encoded_is_not_encoded_again_but_counted() -> None:
    model, cache = tiny.model("none"), EncodingCache()
    ids = TOKENIZER.encode(TEXTS, max_tokens=16).ids
    plain = query_vectors(model, ids, TOKENIZER)
    with use_cache(cache):
        first = query_vectors(model, ids, TOKENIZER)
        model.encoder.word.weight.data.zero_()  # nobody looks at it again
        started = uncached_seconds()
        again = query_vectors(model, ids, TOKENIZER)
        counted = uncached_seconds() - started
        other = query_vectors(model, ids[:2], TOKENIZER)
        with use_cache(None):
            anew = query_vectors(model, ids, TOKENIZER)
    assert torch.equal(plain, first) and torch.equal(first, again)
    assert not torch.equal(other, plain[:2]) and not torch.equal(anew, plain)
    took = next(iter(cache.results.values()))[1]
    assert cache.seconds_saved == took <= counted


@pytest.mark.parametrize("selection", ["single", "two-pass"])
def test_kept_states_and_vectors_are_those_of_a_fresh_run(selection: str) -> None:
    model = tiny.begun("topic", selection=selection)
    data = examples(5, 6, 5, 6, 5)
    states = lower_states(model, data.ids, TOKENIZER)
    tokens = TOKENIZER.pad(data.ids)
    stored_run = model(tokens, entering=states.batch(range(5), tokens), query=states.query)
    fresh = model(tokens)
    torch.testing.assert_close(stored_run.vectors, fresh.vectors, **CLOSE)
    assert torch.equal(stored_run.selection.ids, fresh.selection.ids)
    if selection == "two-pass":
        torch.testing.assert_close(states.query, model.unprompted(tokens), **CLOSE)
    else:
        first = model.enter(tokens)[0, : len(data.ids[0])]
        torch.testing.assert_close(states.query[0], first.mean(0), **CLOSE)


MIXED_PRECISION = """
import torch, tiny
model = tiny.begun("topic")
tokens = tiny.batch(*([7] * 200))
with torch.autocast("cpu", dtype=torch.bfloat16):
    query = model.selection_vector(tokens, model.enter(tokens))
    mixed = model(tokens, query=query.float()).selection
assert torch.equal(mixed.ids, model.strategy.select(query.float()).ids)
assert mixed.prefix.dtype == torch.float32
"""


def test_prompts_are_chosen_alike_under_mixed_precision() -> None:
    """In a child process, without AMX: virtual machines may announce it and kill whoever uses it (SIGILL)."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run([sys.executable, "-c", MIXED_PRECISION], env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, f"exit code {outcome.returncode}\n{outcome.stderr}"


def test_the_processor_never_computes_in_bfloat16() -> None:
    with encoding.autocast(torch.device("cpu")):
        assert not torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_prompts_and_keys_start_uniform_and_every_draw_is_its_own() -> None:
    strategy = make_strategy("s++", copy_previous=False)
    for _ in range(2):
        strategy.begin_corpus(torch.randn(3, 64))
    for tensor in (*strategy.prompts, *strategy.keys):
        assert -1 <= tensor.min().item() < -0.8 and 0.8 < tensor.max().item() <= 1
    values = [tensor.flatten()[0].item() for tensor in (*strategy.prompts, *strategy.keys)]
    assert len(set(values)) == len(values)
    small = tiny.begun("l2p", options={"prompt_init": "small", "prompt_length": 20}).strategy
    assert 0.01 < small.prompts[0].std().item() < 0.03


def test_a_prompt_nobody_selected_stays_put_stale_momentum_or_not() -> None:
    pool = nn.Parameter(torch.ones(3, 2))
    moments: list[Tensor] = []

    def step(batch: Any) -> Tensor:
        moments.append(pool.detach().clone())
        return (pool[0] ** 2).sum() if len(moments) <= 2 else (pool[1] ** 2).sum()

    train(step, [Group({"pool": pool}, 0.1, lazy=True)], [1] * 6, Plan(1, 1))
    assert (moments[2][0] < 1).all() and torch.equal(pool[0], moments[2][0])  # moved while selected, not afterwards
    assert (pool[1] < 1).all() and torch.equal(pool[2], torch.ones(2))


def test_the_schedule_sets_the_rate_of_every_step() -> None:
    weight = nn.Parameter(torch.zeros(1))
    seen = [0.0]
    train(
        lambda batch: weight.sum(),
        [Group({"weight": weight}, 1.0)],
        [1] * 10,
        Plan(1, 1, "linear"),
        after_step=lambda: seen.append(weight.item()),
    )
    steps = -np.diff(seen)  # a constant gradient makes every Adam step as long as its rate
    np.testing.assert_allclose(steps, [1.0, *((10 - n) / 9 for n in range(1, 10))], rtol=1e-4)
