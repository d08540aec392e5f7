"""Rows: growth, exact ranking with the tie rule, deletion; and the cross-entropy over them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from promptdsi.engine.row_table import RowTable
from promptdsi.model import rows as rows_module
from promptdsi.model.rows import Rows
from promptdsi.training import objectives
from promptdsi.training.encoding import mean_by_position
from promptdsi.training.objectives import cross_entropy, cross_entropy_given_old, log_sum_over_old


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def random_rows(*sizes: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32) -> Rows:
    """Rows in blocks of the given sizes; docids descend, so that row order and docid order differ."""
    generator = torch.Generator().manual_seed(seed)
    rows = Rows(width)
    total = sum(sizes)
    for size in sizes:
        first = len(rows)
        start = torch.randn(size, width, generator=generator, dtype=torch.float64).to(dtype)
        rows.grow([f"doc{total - number:04d}" for number in range(first, first + size)], start)
    return rows


@given(st.data())
def test_top_and_ranks_agree_with_a_plain_sort_ties_and_deletions_included(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    k = data.draw(st.integers(1, 12))
    rows = Rows(2)
    names = data.draw(st.permutations([f"d{number:02d}" for number in range(sum(sizes))]))
    values = st.sampled_from([0.0, 1.0, -1.0])  # few values: many ties
    for size in sizes:
        start = torch.tensor([[data.draw(values), data.draw(values)] for _ in range(size)])
        rows.grow(names[len(rows) : len(rows) + size], start)
    deleted = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    rows.delete(sorted(deleted))
    queries = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, -1.0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "CHUNK", data.draw(st.integers(1, 5)))  # pieces smaller than blocks
        top = RowTable.from_rows(rows).top(queries.numpy(), k)
        everything = torch.cat(list(rows.blocks)).detach()
        for query, top_rows, top_scores in zip(queries, top.rows, top.scores, strict=True):
            live = [(-float(query @ everything[n]), name, n) for n, name in enumerate(names) if name not in deleted]
            expected = sorted(live)
            assert top_rows.tolist() == [n for _, _, n in expected[:k]]
            assert top_scores.tolist() == [-score for score, _, _ in expected[:k]]
            for place, (_, _, number) in enumerate(expected, 1):
                assert rows.ranks(query[None], torch.tensor([number])).tolist() == [place]


def test_a_constant_scorer_scores_at_chance() -> None:
    rows = Rows(3)
    rows.grow([f"{number:03d}" for number in torch.randperm(100).tolist()], torch.ones(100, 3))
    ranks = rows.ranks(torch.ones(100, 3), torch.arange(100))
    assert sorted(ranks.tolist()) == list(range(1, 101))


def test_growing_freezes_what_was_there_and_a_dead_docid_may_come_again() -> None:
    rows = random_rows(3, 2)
    assert [block.requires_grad for block in rows.blocks] == [False, True]
    assert rows.learning is rows.blocks[1] and not rows.blocks[0].requires_grad
    with pytest.raises(ValueError, match="'doc0005' is there already"):
        rows.grow(["doc0005"], torch.zeros(1, 4))
    rows.delete(["doc0005"])
    rows.grow(["doc0005"], torch.ones(1, 4))
    assert rows.numbers(["doc0005"]).tolist() == [5]
    assert 0 not in RowTable.from_rows(rows).top(torch.randn(5, 4).numpy(), 10).rows
    with pytest.raises(ValueError, match="need"):
        rows.grow(["x"], torch.zeros(2, 4))


def test_deleting_changes_no_other_score() -> None:
    rows = random_rows(6)
    query = torch.randn(2, 4)
    before = rows.scores(query)
    rows.delete([rows.docids[2]])
    after = rows.scores(query)
    assert torch.isneginf(after[:, 2]).all() and torch.equal(after[:, [0, 1, 3, 4, 5]], before[:, [0, 1, 3, 4, 5]])


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("cached", [1, 12, 1 << 20])
@pytest.mark.parametrize("deleted", [False, True])
def test_chunked_softmax_equals_plain_softmax_in_value_and_gradient(
    chunk: int, cached: int, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    monkeypatch.setattr(rows_module, "CACHED_SCORES", cached)
    rows = random_rows(5, 3, 4)
    if deleted:
        rows.delete([rows.docids[1], rows.docids[9]])
    vectors = torch.randn(6, 4, requires_grad=True)
    targets = torch.tensor([8, 11, 10, 8, 2, 0])  # new and old targets
    weights = torch.rand(6)
    (cross_entropy(vectors, rows, targets, scale=3.0) * weights).sum().backward()
    new = rows.blocks[-1]
    assert vectors.grad is not None and new.grad is not None and all(block.grad is None for block in rows.blocks[:-1])
    results = (cross_entropy(vectors, rows, targets, scale=3.0).detach(), vectors.grad.clone(), new.grad.clone())
    plain_vectors, plain_new = vectors.detach().clone().requires_grad_(), new.detach().clone().requires_grad_()
    scores = 3.0 * plain_vectors @ torch.cat([*(block.detach() for block in rows.blocks[:-1]), plain_new]).T
    if deleted:
        scores = scores.index_fill(1, torch.tensor([1, 9]), -torch.inf)
    loss = nn.functional.cross_entropy(scores, targets, reduction="none")
    (loss * weights).sum().backward()
    for ours, plain in zip(results, (loss.detach(), plain_vectors.grad, plain_new.grad), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


def test_gradients_match_finite_differences() -> None:
    rows = random_rows(4, 3, dtype=torch.float64)
    vectors = torch.randn(3, 4, dtype=torch.float64)
    targets = torch.tensor([4, 6, 5])
    cross = cross_entropy(vectors.float(), rows.float(), targets)
    assert cross.shape == (3,)
    rows = random_rows(4, 3)
    cross_entropy(vectors.float(), rows, targets).sum().backward()
    new = rows.blocks[-1]
    assert new.grad is not None
    for row in range(3):
        for column in range(4):
            values = []
            for move in (1e-2, -1e-2):
                with torch.no_grad():
                    new[row, column] += move
                    values.append(float(cross_entropy(vectors.float(), rows, targets).sum()))
                    new[row, column] -= move
            assert float(new.grad[row, column]) == pytest.approx((values[0] - values[1]) / 2e-2, abs=2e-3)


def test_frozen_rows_never_get_a_gradient_and_constant_vectors_cost_nothing() -> None:
    rows = random_rows(50, 2)
    cross_entropy(torch.randn(3, 4), rows, torch.tensor([50, 51, 50])).sum().backward()
    assert rows.blocks[0].grad is None and rows.blocks[1].grad is not None


def test_many_small_blocks_are_scored_like_one() -> None:
    single = random_rows(300, width=4)
    many = Rows(4)
    for start in range(0, 300, 3):
        many.grow(single.docids[start : start + 3], single.blocks[0].detach()[start : start + 3].clone())
    many.freeze()
    assert len(list(many.pieces())) == 1
    queries = torch.randn(7, 4)
    for row in (0, 150, 299):
        targets = torch.full((7,), row)
        assert torch.equal(many.ranks(queries, targets), single.ranks(queries, targets))
    many.grow(["new"], torch.ones(1, 4))
    assert [first for first, _ in many.pieces()] == [0, 300] and many.scores(queries).shape == (7, 301)


def test_the_newest_block_can_be_taken_away_again() -> None:
    rows = random_rows(4, 2)
    docids, before = list(rows.docids[:4]), random_rows(4).scores(torch.eye(4))
    rows.delete([rows.docids[1]])
    rows.grow([rows.docids[1]], torch.ones(1, 4))
    rows.drop_last()
    rows.drop_last()
    rows.deleted.clear()
    assert rows.docids == docids and rows.row_of == {docid: number for number, docid in enumerate(docids)}
    assert torch.equal(rows.scores(torch.eye(4)), before)
    with pytest.raises(ValueError, match="'x' is there already"):
        rows.grow(["x", "y", "x"], torch.zeros(3, 4))
    assert len(rows.docids) == len(rows.row_of) == 4


def test_new_only_scope_leaves_old_rows_out() -> None:
    rows = random_rows(5, 3)
    vectors = torch.randn(4, 4)
    targets = torch.tensor([5, 6, 7, 5])
    expected = nn.functional.cross_entropy(vectors @ rows.blocks[1].T, targets - 5, reduction="none")
    torch.testing.assert_close(cross_entropy(vectors, rows, targets, scope="new_only"), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="frozen target rows"):
        cross_entropy(vectors, rows, torch.tensor([1, 5, 6, 7]), scope="new_only")


def test_old_rows_as_one_number_give_the_same_loss_and_gradient() -> None:
    rows = random_rows(5, 3, 4)
    rows.delete([rows.docids[2]])
    vectors, targets = torch.randn(6, 4), torch.tensor([8, 9, 10, 11, 8, 9])
    loss = cross_entropy(vectors, rows, targets, scale=2.0)
    new = rows.blocks[-1]
    (expected,) = torch.autograd.grad(loss.sum(), new)
    old = log_sum_over_old(vectors, rows, scale=2.0)
    quick = cross_entropy_given_old(vectors, new, old, targets - 8, scale=2.0)
    torch.testing.assert_close(quick, loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(quick.sum(), new)[0], expected, atol=1e-5, rtol=1e-5)


def test_memory_is_bounded_by_the_piece_not_by_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor the softmax makes has CACHED_SCORES scores, for few queries as for many."""
    cached = 20 * rows_module.QUERIES_AT_ONCE
    monkeypatch.setattr(rows_module, "CACHED_SCORES", cached)
    largest = 0
    mask_deleted = objectives.mask_deleted

    def watch(scores: torch.Tensor, first: int, deleted: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, scores.numel())
        return mask_deleted(scores, first, deleted)

    monkeypatch.setattr(objectives, "mask_deleted", watch)
    rows = random_rows(20_000, 10)
    vectors = torch.randn(8, 4, requires_grad=True)
    cross_entropy(vectors, rows, torch.full((8,), 20_003)).sum().backward()
    assert largest == cached
    largest = 0
    log_sum_over_old(torch.randn(5000, 4), rows)
    assert largest == cached


def test_mean_by_position() -> None:
    vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    assert mean_by_position(vectors, torch.tensor([0, 0, 1]), 3).tolist() == [[2.0, 0.0], [0.0, 5.0], [0.0, 0.0]]


def test_counts_in_pieces_are_those_of_all_scores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small whole numbers: products of any shape are the same to the last bit.
    monkeypatch.setattr(rows_module, "CHUNK", 16)
    monkeypatch.setattr(rows_module, "QUERIES_AT_ONCE", 3)
    monkeypatch.setattr(rows_module, "CACHED_SCORES", 7)
    rows = Rows(4)
    generator = torch.Generator().manual_seed(0)
    for block in range(3):
        rows.grow([f"{block}-{number}" for number in range(20)], torch.randint(-3, 4, (20, 4), generator=generator).float())
    rows.freeze()
    rows.delete(["1-3"])
    queries, targets = torch.randint(-3, 4, (7, 4), generator=generator).float(), torch.arange(0, 56, 8)
    targets_scores = rows.target_scores(queries, targets)
    scores = rows.scores(queries)
    assert torch.equal(targets_scores, scores.gather(1, targets[:, None]))
    assert torch.equal(rows.count_above(queries, targets_scores), (scores > targets_scores).sum(1))
