"""Array functions that the model and the query engine share: written against the array API, so they take torch tensors and numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ArrayT = TypeVar("ArrayT")  # numpy array or torch tensor
EPS = 1e-6  # least length that vectors are divided by


def array_namespace(array: Any) -> Any:
    """The array API functions for an array's library."""
    if isinstance(array, np.ndarray):  # numpy has them itself; the compatible namespace would import 200 modules before the first answer
        return np
    from array_api_compat import torch as namespace

    return namespace


def unit(vectors: ArrayT) -> ArrayT:
    """Vectors scaled to length 1, along the last axis."""
    xp = array_namespace(vectors)
    return vectors / xp.clip(xp.linalg.vector_norm(vectors, axis=-1, keepdims=True), EPS, None)  # type: ignore[no-any-return]


def cosine(left: ArrayT, right: ArrayT) -> ArrayT:
    """Cosine of every row with every row: (B, D), (M, D) → (B, M)."""
    return unit(left) @ unit(right).T  # type: ignore[attr-defined, no-any-return]


def concat(blocks: Sequence[Any]) -> Any:
    """Blocks as one array along the first axis; a single block is not copied."""
    return blocks[0] if len(blocks) == 1 else array_namespace(blocks[0]).concat(list(blocks))


def mean_over_tokens(states: Any, mask: Any | None) -> Any:
    """The mean over real tokens, special ones included: (B, T, D) → (B, D)."""
    xp = array_namespace(states)
    if mask is None:
        return xp.mean(states, axis=1)
    weight = xp.astype(mask, states.dtype)[:, :, None]  # (B, T, 1)
    return xp.sum(states * weight, axis=1) / xp.sum(weight, axis=1)


@cache
def relative_buckets(count: int, buckets: int, max_distance: int = 128) -> NDArray[np.int64]:
    """T5's position buckets (T, T), as MPNet uses them: half for each direction, half of those exact, the rest logarithmic."""
    position = np.arange(count)
    distance = position[:, None] - position[None, :]  # (T, T), query minus key
    half = buckets // 2
    exact = half // 2
    size = np.abs(distance)
    # In float32 and in this order, as the backbones were trained: another rounding would move distances to other buckets.
    logarithm = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    far = np.minimum(exact + (logarithm * np.float32(half - exact)).astype(np.int64), half - 1)
    return np.asarray((distance < 0) * half + np.where(size < exact, size, far), np.int64)


def attention_bias(
    like: Any, count: int, mask: Any | None, relative: Any | None, prefix_rows: int = 0, hidden: Any | None = None
) -> Any | None:
    """What is added to attention scores: −inf for padding, relative positions, 0 for prefix columns; None where that is nothing.

    `like` gives library, dtype and device, `count` is T; `mask` (B, T) is True for real tokens, `relative` is (1, H, T, T). Queries that
    `hidden` (B,) marks do not see their prefix, so they pass as if there were none.
    """
    xp = array_namespace(like)

    def minus_infinity(where: Any) -> Any:
        bias = xp.zeros(where.shape, dtype=like.dtype, device=like.device)
        bias[where] = -math.inf
        return bias[:, None, None, :]  # (B, 1, 1, columns)

    bias = relative
    if mask is not None:
        padding = minus_infinity(~mask)
        bias = padding if bias is None else bias + padding
    if not prefix_rows or (bias is None and hidden is None):
        return bias
    if bias is None:
        bias = xp.zeros((1, 1, 1, count), dtype=like.dtype, device=like.device)
    if hidden is None:
        prefix = xp.zeros((1, 1, 1, prefix_rows), dtype=like.dtype, device=like.device)
    else:
        prefix = minus_infinity(xp.broadcast_to(hidden[:, None], (len(hidden), prefix_rows)))
    shape = np.broadcast_shapes(tuple(bias.shape[:3]), tuple(prefix.shape[:3]))
    return xp.concat([xp.broadcast_to(part, (*shape, part.shape[3])) for part in (prefix, bias)], axis=3)
