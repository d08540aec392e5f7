"""Batches: examples bucketed by length after a seeded shuffle, so that little is padded.

A batch is an array of example numbers; the caller looks up ids, cached states, vectors and targets by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WINDOW = 64  # batches per shuffled window that is sorted by length: large enough to pad little, small enough to stay random

Numbers = NDArray[np.int64]


def bucketed(lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int) -> list[Numbers]:
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


def by_length(lengths: Sequence[int], tokens: int) -> list[Numbers]:
    """All examples once, longest first, about `tokens` tokens a batch: for encoding, where order does not matter."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches
