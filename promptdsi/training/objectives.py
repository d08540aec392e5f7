"""Cross-entropy over rows of which most are frozen, and the norms that new rows should have.

The softmax runs over all seen rows in pieces, twice, so memory is bounded at millions of rows; no gradient is ever formed for a
frozen row, and none for the query vectors where those are constants.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from promptdsi.model.path import EPS, unit
from promptdsi.model.rows import QUERIES_AT_ONCE, OldRows, Rows, mask_deleted, small_pieces
from promptdsi.training.distributed import World

Masked = tuple[Tensor, Tensor]  # (S,), (S,): pairs of query and row that are left out of the softmax


def cross_entropy(
    vectors: Tensor, rows: Rows, targets: Tensor, *, scale: float = 1.0, scope: str = "all_seen", masked: Masked | None = None
) -> Tensor:
    """−log softmax(scale · vectors · rowsᵀ)[target] of each query: (B, D), (B,) → (B,).

    `scope="new_only"` leaves the frozen rows out of the softmax; the targets must then be new rows.
    """
    pieces: Iterable[tuple[int, Tensor]] = rows.pieces()
    if scope == "new_only":
        first_new = len(rows) - len(rows.blocks[-1])
        pieces = ((first, piece) for first, piece in pieces if first >= first_new)
        if bool((targets < first_new).any()):
            raise ValueError("softmax scope new_only cannot score frozen target rows")
    deleted = rows.deleted_rows(vectors.device)
    learning = rows.learning if rows.learning is not None else vectors.new_zeros(0, vectors.shape[1])
    with torch.autocast(vectors.device.type, enabled=False):  # sums over many rows want float32
        split = list(small_pieces(pieces, len(vectors)))
        return _RowCrossEntropy.apply(vectors.float(), learning, split, targets, scale, deleted, masked, World())  # type: ignore[no-any-return, no-untyped-call]


def sharded_cross_entropy(
    vectors: Tensor, share: Tensor, first: int, targets: Tensor, *, scale: float, masked: Masked | None, world: World
) -> Tensor:
    """The same over rows of which each process has a share, from row number `first` on; all processes have all vectors."""
    pieces = list(small_pieces([(first, share)], len(vectors)))
    none = torch.empty(0, dtype=torch.long, device=vectors.device)
    with torch.autocast(vectors.device.type, enabled=False):
        return _RowCrossEntropy.apply(vectors.float(), share, pieces, targets, scale, none, masked, world)  # type: ignore[no-any-return, no-untyped-call]


def cross_entropy_given_old(
    vectors: Tensor,
    new: Tensor,
    old_log_sum: Tensor,
    targets: Tensor,
    *,
    scale: float = 1.0,
    deleted: Tensor | None = None,
    masked: Masked | None = None,
) -> Tensor:
    """The same for constant query vectors whose log-sum-exp over all old rows is known: one product with the new rows only.

    `targets`, `deleted` and `masked` count from the first new row.
    """
    fresh = scale * vectors @ new.T  # (B, n)
    if masked is not None:
        fresh[masked] = -torch.inf
    if deleted is not None and len(deleted):
        fresh[:, deleted] = -torch.inf
    total = torch.logaddexp(old_log_sum, torch.logsumexp(fresh, 1))  # the old rows act as one
    return total - fresh.gather(1, targets[:, None])[:, 0]


@torch.no_grad()
def log_sum_over_old(vectors: Tensor, rows: Rows, *, scale: float = 1.0) -> Tensor:
    """log Σ exp(score) over the live rows of all blocks but the newest: (B, D) → (B,), in slices of bounded memory."""
    end = len(rows) - len(rows.blocks[-1])
    deleted = rows.deleted_rows(vectors.device)
    totals = []
    for part in vectors.split(QUERIES_AT_ONCE):
        total = part.new_full((len(part),), -torch.inf)
        for first, piece in small_pieces(rows.pieces(), len(part)):
            if first < end:
                total = torch.logaddexp(total, torch.logsumexp(mask_deleted(scale * (part @ piece.T), first, deleted), 1))
        totals.append(total)
    log_sums = torch.cat(totals) if totals else vectors.new_empty(0)
    return log_sums if rows.elsewhere is None else torch.logaddexp(log_sums, rows.elsewhere.log_sum_exp(vectors, scale))


def _scores(vectors: Tensor, first: int, piece: Tensor, scale: float, deleted: Tensor, masked: Masked | None) -> Tensor:
    scores = mask_deleted((vectors @ piece.T).mul_(scale), first, deleted)  # (B, n)
    if masked is not None:
        queries, rows = masked
        inside = (rows >= first) & (rows < first + len(piece))
        scores[queries[inside], rows[inside] - first] = -torch.inf
    return scores


class _RowCrossEntropy(torch.autograd.Function):
    """Two passes over the pieces: log-sum-exp, then probabilities. Gradients: vectors (if they need one), trained rows.

    Several processes have a piece each: what is summed over rows is summed over processes too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        learning: Tensor,
        pieces: list[tuple[int, Tensor]],
        targets: Tensor,
        scale: float,
        deleted: Tensor,
        masked: Masked | None,
        world: World,
    ) -> Tensor:
        total = vectors.new_full((len(vectors),), -torch.inf)
        target_scores = vectors.new_full((len(vectors),), -torch.inf)
        for first, piece in pieces:
            scores = _scores(vectors, first, piece, scale, deleted, masked)
            total = torch.logaddexp(total, torch.logsumexp(scores, 1))
            inside = (targets >= first) & (targets < first + len(piece))
            target_scores[inside] = scores[inside, targets[inside] - first]
        if world.size > 1:
            largest = world.max(total.clone())
            total = largest + torch.log(world.sum(torch.exp(total - largest)))
            target_scores = world.max(target_scores)  # −inf in the processes that do not have the row
        ctx.save_for_backward(vectors, learning, targets, total, deleted)
        ctx.pieces, ctx.scale, ctx.masked, ctx.world = pieces, scale, masked, world
        return total - target_scores

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None, None]:
        vectors, learning, targets, total, deleted = ctx.saved_tensors
        wants_vectors, wants_rows = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        to_vectors = torch.zeros_like(vectors) if wants_vectors else None
        to_rows = torch.zeros_like(learning) if wants_rows else None
        first_learning = ctx.pieces[-1][0] + len(ctx.pieces[-1][1]) - len(learning)
        for first, piece in ctx.pieces:
            learns = wants_rows and first >= first_learning
            if not learns and to_vectors is None:
                continue  # neither side of this product is trained
            share = _scores(vectors, first, piece, ctx.scale, deleted, ctx.masked).sub_(total[:, None]).exp_()  # (B, n) probabilities
            inside = (targets >= first) & (targets < first + len(piece))
            share[inside, targets[inside] - first] -= 1
            share *= (ctx.scale * gradient)[:, None]
            if to_vectors is not None:
                to_vectors += share @ piece
            if learns and to_rows is not None:
                to_rows[first - first_learning : first - first_learning + len(piece)] = share.T @ vectors
        to_vectors = None if to_vectors is None else ctx.world.sum(to_vectors)
        return to_vectors, to_rows, None, None, None, None, None, None


def distance_from(start: Tensor, rows: Tensor) -> Tensor:
    """The mean squared distance of the rows' directions from unit vectors `start`: (n, D), (n, D) → ()."""
    return _Distance.apply(rows, start)  # type: ignore[no-any-return, no-untyped-call]


class _Distance(torch.autograd.Function):
    """Of unit vectors |u − s|² = 2 − 2 u·s: two passes over the rows here, where autograd's own gradient takes a dozen."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, start: Tensor) -> Tensor:
        norms = rows.norm(dim=1, keepdim=True).clamp(min=EPS)  # (n, 1)
        cosines = torch.linalg.vecdot(rows, start)[:, None] / norms
        ctx.save_for_backward(rows, start, norms, cosines)
        return (2 - 2 * cosines).mean()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows, start, norms, cosines = ctx.saved_tensors
        factor = 2 * gradient / len(rows) / norms
        return torch.addcmul(rows * (factor * cosines / norms), start, -factor), None


NEIGHBORS = 5
MOST_ROWS = 2048  # rows of D0 the rule is fitted on: three coefficients need no more
SMALLEST, LARGEST = 0.5, 2.0  # times the mean: bounds a rule that was fitted on few rows


@torch.no_grad()
def fitted_norms(rows: Rows | OldRows, count: int, new: Tensor, *, default: float) -> Tensor:
    """The norm that those of the first rows which are placed like each new one (n, D) have: (n, 1); `default` where too few are left.

    A row of large norm scores high with everything. Training gives rows that lie close to others a smaller norm, because they
    would otherwise take their neighbors' queries; a new row of mean norm takes more than its share where it lies close. So norms
    are predicted from how close the neighbors are, by least squares over the rows of D0, the first `count`. No query is needed.
    """
    norms = rows.norms(count)  # (N,) in float64, as all that the rule is fitted to
    present = norms.nonzero()[:, 0]  # purged rows are zero
    if len(present) <= 2 * NEIGHBORS:
        return new.new_full((len(new), 1), default)
    mean = float(norms[present].mean())
    sample = present[torch.linspace(0, len(present) - 1, min(MOST_ROWS, len(present)), device=present.device).long()]
    nearest = rows.closest(unit(rows.vectors(sample)), NEIGHBORS, count, without=sample)  # a row is not its own neighbor
    rule = torch.linalg.lstsq(_closeness(nearest), norms[sample][:, None]).solution  # (3, 1)
    predicted: Tensor = _closeness(rows.closest(unit(new), NEIGHBORS, count)) @ rule.to(new.device)  # (n, 1)
    return predicted.clamp(SMALLEST * mean, LARGEST * mean).to(new)


def _closeness(nearest: Tensor) -> Tensor:
    """The predictors of each row's norm from the cosines of its neighbors (n, k): a constant, their mean and the highest: (n, 3)."""
    return torch.stack([torch.ones_like(nearest[:, 0]), nearest.mean(1), nearest[:, 0]], 1)
