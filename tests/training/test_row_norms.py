"""What keeps the old found while new rows learn: lengths fitted from D0's rows, lengths held, rows anchored where they started."""

from __future__ import annotations

from typing import Any

import pytest
import small
import tiny
import torch

from promptdsi import Corpus
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.methods.rows_only import RowsOnly
from promptdsi.model.path import unit
from promptdsi.model.rows import Rows
from promptdsi.training.objectives import LARGEST, NEIGHBORS, SMALLEST, distance_from, fitted_norms
from promptdsi.training.stages import RowOptions, learn_rows
from promptdsi.training.training import Training


def directions(count: int, seed: int, width: int = 12) -> torch.Tensor:
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def norms_by_rule(rows: torch.Tensor, new: torch.Tensor, default: float) -> torch.Tensor:
    """Norms of new rows where these are D0's, in two blocks: one would have been stored in parts."""
    table = Rows(rows.shape[1])
    for part in rows.split(max(len(rows) // 2, 1)):
        table.grow([f"d{len(table) + number}" for number in range(len(part))], part)
    return fitted_norms(table, len(rows), new, default=default)


def closeness(new: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cosine of the nearest rows, and the nearest one's, a row's own left out; written independently."""
    mean, first = [], []
    for row in new:
        cosines = sorted((float(row @ other) for other in rows if not torch.equal(row, other)), reverse=True)[:NEIGHBORS]
        mean.append(sum(cosines) / len(cosines))
        first.append(cosines[0])
    return torch.tensor(mean), torch.tensor(first)


def test_a_rule_that_d0s_rows_follow_is_found_and_applied() -> None:
    old, new = directions(200, 0), directions(30, 1)
    mean, first = closeness(old, old)
    rows = (1.4 - 0.5 * mean + 0.2 * first)[:, None] * old
    mean, first = closeness(new, old)
    assert torch.allclose(norms_by_rule(rows, 7 * new, 9.0)[:, 0], 1.4 - 0.5 * mean + 0.2 * first, atol=1e-3)


def test_rows_of_equal_length_give_new_ones_that_length() -> None:
    assert torch.allclose(norms_by_rule(1.3 * directions(50, 0), directions(9, 1), 9.0), torch.tensor(1.3), atol=1e-5)


def test_purged_rows_take_no_part() -> None:
    old, new = directions(60, 0), directions(9, 1)
    rows = torch.cat([old, torch.zeros(20, 12)])
    assert torch.allclose(norms_by_rule(rows, new, 9.0), norms_by_rule(old, new, 9.0))


def test_a_rule_of_few_rows_cannot_run_away() -> None:
    generator = torch.Generator().manual_seed(3)
    wild = directions(11, 0) * (0.01 + 100 * torch.rand(11, 1, generator=generator))
    norms, mean = norms_by_rule(wild, directions(200, 1), 9.0), wild.norm(dim=1).mean()
    assert bool((norms >= 0.999 * SMALLEST * mean).all()) and bool((norms <= 1.001 * LARGEST * mean).all())
    for few in (wild[: 2 * NEIGHBORS], torch.zeros(30, 12), torch.zeros(0, 12)):  # purged to the last, even
        assert torch.equal(norms_by_rule(few, directions(3, 1), 1.1), torch.full((3, 1), 1.1))


def learned(limits: RowOptions, *, lr: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """New rows before and after learning, from a model of a few hundred weights."""
    from test_stages import TOKENIZER, examples

    model = tiny.begun("none", scale=2.0)
    new = model.rows.blocks[-1]
    before = new.detach().clone()
    learn_rows(model, examples(5, 6, 5, 6, 5), TOKENIZER, Training(epochs=20, batch_size=2, lr=0.0, row_lr=lr, row_decay=0.0), limits)
    return before, new.detach()


def test_each_row_keeps_the_length_it_started_with() -> None:
    before, after = learned(RowOptions(fix_row_norm=True))
    assert torch.allclose(after.norm(dim=1), before.norm(dim=1), rtol=1e-5)
    assert len(before.norm(dim=1).unique()) > 1 and not torch.allclose(after, before, atol=1e-2)
    before, after = learned(RowOptions())
    assert not torch.allclose(after.norm(dim=1), before.norm(dim=1), rtol=1e-2)


def test_the_anchor_is_the_mean_squared_distance_of_directions_and_has_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 5, generator=generator, dtype=torch.float64).requires_grad_()
    start = unit(torch.randn(7, 5, generator=generator, dtype=torch.float64))
    plain = (unit(rows) - start).square().sum(1).mean()
    torch.testing.assert_close(distance_from(start, rows), plain)
    fast, reference = (torch.autograd.grad(3 * loss, rows)[0] for loss in (distance_from(start, rows), plain))
    torch.testing.assert_close(fast, reference)


def test_an_anchor_holds_rows_near_where_they_started_the_more_the_stronger() -> None:
    moved = []
    for anchor in (0.0, 1.0, 30.0):
        before, after = learned(RowOptions(fix_row_norm=True, anchor_weight=anchor), lr=0.01)
        moved.append(float((unit(after) - unit(before)).norm(dim=1).mean()))
    assert moved[0] > moved[1] > moved[2]


@pytest.mark.parametrize("kind", [PromptDSI, RowsOnly])
@pytest.mark.parametrize("rule", ["mean", "fitted"])
def test_new_rows_get_their_lengths_by_the_rule(kind: Any, rule: str, backbone: str, corpora: list[Corpus]) -> None:
    start = {"fit.row_init": "document", "add.row_init": "document", "rows.fix_row_norm": True}
    params = small.PARAMS | start | {"backbone": backbone, "rows.row_norm": rule, "rows.row_norm_scale": 0.9}
    method = kind.from_params(params).fit(corpora[0])
    documents = method.initial_rows(corpora[1], "document", norm=method.row_norm_)  # as they enter the rule: it magnifies rounding
    rows = method.model_.rows.blocks[0].detach()
    method.add(corpora[1])
    fitted = fitted_norms(method.model_.rows, len(rows), documents, default=method.row_norm_)[:, 0]
    norm = fitted if rule == "fitted" else rows.norm(dim=1).mean()
    assert torch.allclose(method.model_.rows.blocks[1].norm(dim=1), 0.9 * norm, rtol=1e-4)
