"""IncDSI's row problem: the solver against a generic one, and documents added one after the other against all done from scratch."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from promptdsi.training import convex
from promptdsi.training.convex import ConvexSettings, solve_row, solve_rows

USUAL = ConvexSettings(weight=0.4, margin_new=0.5, margin_old=0.2, ridge=1e-4)


def settings_of(weight: float, margin_new: float, margin_old: float, ridge: float) -> ConvexSettings:
    return ConvexSettings(weight=weight, margin_new=margin_new, margin_old=margin_old, ridge=ridge)


class Task(NamedTuple):
    """Present rows and means (N, D), and the queries (n, D) of documents to come."""

    rows: Tensor
    means: Tensor
    queries: list[Tensor]


def random_task(present: int, coming: int, width: int, *, per_document: int = 3, norm: float = 1.0, seed: int = 0) -> Task:
    """Queries around a common direction, as encoders have one, and rows near their mean queries."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def scaled(vectors: Tensor) -> Tensor:
        return norm * torch.nn.functional.normalize(vectors, dim=-1)

    means = scaled(normal(present + coming, width) + normal(width))
    queries = list(scaled(means[present:, None] + 0.3 * norm * normal(coming, per_document, width) / width**0.5))
    return Task(scaled(means[:present] + 0.3 * norm * normal(present, width) / width**0.5), means[:present], queries)


def value(row: Tensor, queries: Tensor, best: Tensor, means: Tensor, scores: Tensor, settings: ConvexSettings) -> Tensor:
    """The objective as it is written in the paper."""
    gain = (best + settings.margin_new - queries @ row).clamp(min=0).square().sum()
    harm = (means @ row - scores + settings.margin_old).clamp(min=0).square().sum()
    return settings.weight * gain + (1 - settings.weight) * harm + settings.ridge * row.square().sum()


def gradient(row: Tensor, *problem: Tensor, settings: ConvexSettings) -> Tensor:
    row = row.clone().requires_grad_()
    queries, best, means, scores = problem
    return torch.autograd.grad(value(row, queries, best, means, scores, settings), row)[0]


def problem_of(task: Task, document: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    queries = task.queries[document]
    return queries, (queries @ task.rows.T).amax(1), task.means, (task.rows * task.means).sum(1)


class Solution(NamedTuple):
    """A solved row (D,), its objective and the norm of the gradient there."""

    row: Tensor
    loss: float
    gradient: float


def solve(problem: tuple[Tensor, Tensor, Tensor, Tensor], settings: ConvexSettings, start: Tensor) -> Solution:
    row = solve_row(*problem, settings, start)
    return Solution(row, float(value(row, *problem, settings)), float(gradient(row, *problem, settings=settings).norm()))


def solved(task: Task, settings: ConvexSettings, start: Tensor | None = None) -> Solution:
    return solve(problem_of(task), settings, torch.zeros(task.rows.shape[1], dtype=torch.float64) if start is None else start)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One entry for every Newton step from now on."""
    steps: list[float] = []
    newton = convex._Hinges.newton

    def counted(self: convex._Hinges, point: convex._Point, ridge: float) -> Tensor:
        steps.append(ridge)
        return newton(self, point, ridge)

    monkeypatch.setattr(convex._Hinges, "newton", counted)
    return steps


settings_anywhere = st.builds(
    ConvexSettings,
    weight=st.floats(0.05, 0.95),
    margin_new=st.floats(0, 8),
    margin_old=st.floats(0, 8),
    ridge=st.floats(-10, -3).map(lambda power: 10**power),
)
tasks = st.builds(
    random_task,
    st.integers(1, 150),
    st.just(1),
    st.integers(2, 24),
    per_document=st.integers(1, 5),
    norm=st.sampled_from([1.0, 10.0]),
    seed=st.integers(0, 1000),
)


@given(tasks, settings_anywhere)
def test_no_generic_solver_finds_a_better_row(task: Task, settings: ConvexSettings) -> None:
    solution = solved(task, settings)
    problem = problem_of(task)

    def both(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        row = torch.tensor(numbers, requires_grad=True)
        loss = value(row, *problem, settings)
        loss.backward()
        return loss.item(), row.grad.numpy()

    options = {"maxiter": 60, "ftol": 1e-15, "gtol": 1e-12}
    for start in (problem[0].mean(0), solution.row):  # from afar it may get stuck; from ours it must not get away
        generic = minimize(both, start.numpy(), jac=True, method="L-BFGS-B", options=options)
        assert solution.loss <= generic.fun * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_a_generic_solver_finds_the_same_row(seed: int) -> None:
    task, settings = random_task(60, 1, 8, seed=seed), ConvexSettings(weight=0.3, margin_new=1.0, margin_old=0.5, ridge=1e-2)
    problem = problem_of(task)
    generic = minimize(
        lambda row: float(value(torch.from_numpy(row), *problem, settings)),
        np.zeros(8),
        jac=lambda row: gradient(torch.from_numpy(row), *problem, settings=settings).numpy(),
        method="BFGS",
        options={"gtol": 1e-11},
    )
    torch.testing.assert_close(solved(task, settings).row, torch.from_numpy(generic.x), atol=1e-7, rtol=1e-7)


@given(tasks, settings_anywhere)
def test_the_problem_is_flat_at_the_solution_and_no_start_leads_elsewhere(task: Task, settings: ConvexSettings) -> None:
    problem = problem_of(task)
    solution = solved(task, settings)
    size = float(task.means.norm(dim=1).max()) * (float(problem[3].abs().max()) + settings.margin_old + settings.margin_new)
    assert solution.gradient <= 1e-11 * len(task.means) * size
    far = solved(task, settings, 3 * task.means[-1] - task.rows[0])
    assert far.loss == pytest.approx(solution.loss, rel=1e-7)
    torch.testing.assert_close(far.row, solution.row, atol=1e-4 * float(solution.row.norm()), rtol=0)


@pytest.mark.parametrize("settings", [settings_of(0.5, 8, 8, 1e-10), settings_of(0.05, 1, 8, 1e-3), settings_of(0.95, 8, 0.1, 1e-6)])
@pytest.mark.parametrize("common", [0.0, 1.0])
def test_wide_problems_with_large_margins_are_solved_too(settings: ConvexSettings, common: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a common direction the wishes contradict each other, and more hinges are active than the row has numbers."""
    task = random_task(400, 1, 64)
    means = torch.nn.functional.normalize(task.means - (1 - common) * task.means.mean(0), dim=1)
    task, steps = task._replace(means=means), count_steps(monkeypatch)
    solution = solved(task, settings)
    assert len(steps) < 1000
    again = solved(task, settings, task.queries[0][0])
    torch.testing.assert_close(again.row, solution.row, atol=1e-6 * float(solution.row.norm()), rtol=0)


def test_copies_of_one_document_do_not_make_the_problem_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    task, settings, steps = random_task(40, 1, 30, norm=10), settings_of(0.5, 8, 8, 1e-10), count_steps(monkeypatch)
    copied = Task(task.rows.repeat(5, 1), task.means.repeat(5, 1), task.queries)
    solution = solved(copied, settings)
    assert solution.gradient < 1e-9 and len(steps) < 200
    assert solution.loss == pytest.approx(solved(copied, settings, task.means[0]).loss, rel=1e-9)


def test_the_order_of_the_old_documents_does_not_matter() -> None:
    task = random_task(300, 1, 16)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    shuffled = task._replace(rows=task.rows[order], means=task.means[order])
    torch.testing.assert_close(solved(shuffled, USUAL).row, solved(task, USUAL).row, atol=1e-10, rtol=1e-10)


def test_when_no_hinge_is_active_only_the_ridge_speaks() -> None:
    queries, means = torch.eye(3)[:1], torch.eye(3)[1:]
    # Nothing to beat (−2 + 1 < 0) and old documents far ahead of any small row: zero is best.
    solution = solve((queries, torch.tensor([-2.0]), means, torch.tensor([5.0, 5.0])), settings_of(0.5, 1, 1, 1e-3), torch.ones(3))
    assert solution.row.tolist() == pytest.approx([0, 0, 0], abs=1e-12) and solution.loss == pytest.approx(0, abs=1e-20)
    # One query, no conflict: λ(a + m1 − x)² + μx² is least at x = λ(a + m1) / (λ + μ) = 0.5 · 3 / 0.75 = 2.
    solution = solve((queries, torch.tensor([2.0]), means, torch.tensor([5.0, 5.0])), settings_of(0.5, 1, 1, 0.25), torch.ones(3))
    assert solution.row.tolist() == pytest.approx([2, 0, 0], abs=1e-6) and solution.row.dtype == torch.float32
    assert solution.loss == pytest.approx(0.5 * 1 + 0.25 * 4)


def test_many_hinges_and_few_make_the_same_newton_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round takes in all or a few; the end is the same."""
    task, settings = random_task(200, 1, 12), settings_of(0.5, 2, 2, 1e-6)
    few = solved(task, settings)
    monkeypatch.setattr(convex, "FIRST", 1000)
    torch.testing.assert_close(solved(task, settings).row, few.row, atol=1e-9, rtol=1e-9)


def from_scratch(task: Task, settings: ConvexSettings, deleted: Tensor | None = None) -> Tensor:
    """Add documents one by one, everything computed anew each time."""
    live = torch.ones(len(task.rows), dtype=torch.bool) if deleted is None else ~deleted
    rows, means = task.rows[live], task.means[live]
    for queries in task.queries:
        row = solve_row(queries, (queries @ rows.T).amax(1), means, (rows * means).sum(1), settings, queries[0])
        rows, means = torch.cat([rows, row[None]]), torch.cat([means, queries.mean(0)[None]])
    return rows[int(live.sum()) :]


def test_adding_a_corpus_equals_adding_its_documents_one_by_one_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convex, "SCORES_AT_ONCE", 700)  # several slices of queries
    task = random_task(150, 12, 16)
    task.queries[3] = task.queries[2] + 0.01  # two new documents in each other's way
    expected = from_scratch(task, USUAL)
    torch.testing.assert_close(solve_rows(*task, USUAL), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(solve_rows(*task, USUAL, start=expected), expected, atol=1e-9, rtol=1e-9)
    rows, means = task.rows, task.means
    for queries in task.queries:
        rows = torch.cat([rows, solve_rows(rows, means, [queries], USUAL)])
        means = torch.cat([means, queries.mean(0)[None]])
    torch.testing.assert_close(rows[150:], expected, atol=1e-9, rtol=1e-9)


def test_a_second_corpus_sees_the_first_and_leaves_it_alone() -> None:
    task = random_task(80, 10, 12)
    first = solve_rows(task.rows, task.means, task.queries[:6], USUAL)
    present = torch.cat([task.rows, first])
    means = torch.cat([task.means, torch.stack([queries.mean(0) for queries in task.queries[:6]])])
    second = solve_rows(present, means, task.queries[6:], USUAL)
    torch.testing.assert_close(torch.cat([first, second]), from_scratch(task, USUAL), atol=1e-9, rtol=1e-9)
    before = present.clone(), means.clone()
    solve_rows(present, means, task.queries[6:], USUAL, passes=2)
    assert torch.equal(present, before[0]) and torch.equal(means, before[1])


def test_deleted_documents_take_no_part() -> None:
    task = random_task(90, 5, 10)
    deleted = torch.zeros(90, dtype=torch.bool)
    deleted[::3] = True
    rows = solve_rows(*task, USUAL, deleted=deleted)
    torch.testing.assert_close(rows, from_scratch(task, USUAL, deleted), atol=1e-9, rtol=1e-9)
    assert not torch.allclose(rows, from_scratch(task, USUAL))
    task.means[deleted], task.rows[deleted] = torch.nan, torch.nan
    torch.testing.assert_close(solve_rows(*task, USUAL, deleted=deleted), rows, atol=0, rtol=0)


def test_a_pass_again_improves_each_document_in_its_turn_and_moves_only_the_newest() -> None:
    task = random_task(100, 8, 12, per_document=2)
    task.queries[1] = task.queries[0] + 0.02
    everything = torch.cat([task.rows, solve_rows(*task, USUAL)])
    means = torch.cat([task.means, torch.stack([queries.mean(0) for queries in task.queries])])

    def losses_of_a_pass(rows: Tensor) -> list[tuple[float, float]]:
        """Before and after of each document; moves `rows` along."""
        pairs = []
        for place, queries in enumerate(task.queries, 100):
            others = torch.arange(len(rows)) != place
            scores = (rows[others] * means[others]).sum(1)
            problem = (queries, (queries @ rows[others].T).amax(1), means[others], scores)
            solution = solve(problem, USUAL, queries[0])
            pairs.append((float(value(rows[place], *problem, USUAL)), solution.loss))
            rows[place] = solution.row
        return pairs

    before = everything.clone()
    first = losses_of_a_pass(everything)
    assert all(after <= earlier + 1e-12 for earlier, after in first) and sum(b for _, b in first) < 0.9 * sum(a for a, _ in first)
    torch.testing.assert_close(solve_rows(*task, USUAL, passes=2), everything[100:], atol=1e-8, rtol=1e-8)
    assert torch.equal(everything[:100], before[:100]) and not torch.allclose(everything[100:], before[100:])


def test_passes_come_to_rest_unless_two_documents_want_the_same_queries() -> None:
    task = random_task(100, 8, 12, per_document=2)
    assert torch.equal(solve_rows(*task, USUAL, passes=7), solve_rows(*task, USUAL, passes=8))
    # There is no joint objective that passes lower: near twins outbid each other by the margin, pass after pass.
    task.queries[1] = task.queries[0] + 0.02
    norms = [solve_rows(*task, USUAL, passes=passes)[:2].norm() for passes in range(2, 10)]
    assert all(later > 1.05 * earlier for earlier, later in pairwise(norms))


def test_an_empty_index_has_nothing_to_beat() -> None:
    nothing, settings = torch.zeros(0, 3), settings_of(0.5, 1, 0, 1e-6)
    rows = solve_rows(nothing, nothing, [torch.eye(3)[:1], torch.eye(3)[1:]], settings)
    assert rows[0].tolist() == [0, 0, 0] and rows.dtype == torch.float32
    assert rows[1].tolist() == pytest.approx([0, 1, 1], abs=1e-5)  # margin_new ahead of the first on both its queries
    assert solve_rows(nothing, nothing, [torch.eye(3)[:1]] * 2, settings, passes=2).shape == (2, 3)
    assert solve_rows(nothing, nothing, [], settings, passes=2).shape == (0, 3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (dataclasses.replace(USUAL, weight=6.0), "0 < weight < 1"),
        (dataclasses.replace(USUAL, weight=0.0), "0 < weight < 1"),
        (dataclasses.replace(USUAL, ridge=0.0), "ridge > 0"),
        (dataclasses.replace(USUAL, margin_old=-1.0), "margins"),
        (dataclasses.replace(USUAL, margin_new=float("nan")), "margins"),
    ],
)
def test_settings_that_make_no_convex_problem_are_refused(settings: ConvexSettings, problem: str) -> None:
    for call in (
        ConvexSettings.check,
        lambda given: solve_rows(torch.eye(2), torch.eye(2), [], given),
        lambda given: solved(random_task(3, 1, 2), given),
    ):
        with pytest.raises(ValueError, match=problem):
            call(settings)
    USUAL.check()


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="each row needs its mean query"):
        solve_rows(torch.eye(3), torch.eye(3)[:2], [], USUAL)
    with pytest.raises(ValueError, match="document 1 of 2 has no query"):
        solve_rows(torch.eye(3), torch.eye(3), [torch.eye(3), torch.zeros(0, 3)], USUAL)
    for broken in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            solve_rows(torch.eye(3), torch.eye(3), [torch.full((1, 3), broken)], USUAL)
        with pytest.raises(ValueError, match="NaN or infinity"):
            solve_rows(torch.eye(3), torch.full((3, 3), broken), [torch.ones(1, 3)], USUAL)
