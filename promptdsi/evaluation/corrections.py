"""Many comparisons at once: p-values from bootstrap resamples, and Holm's correction for how many there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from promptdsi.evaluation.continual import ROUNDING, Figures

LEVEL = 0.05  # of the chance that any of a family of comparisons is wrongly called a difference


def p_value(figures: Figures, bound: float = 0.0) -> float:
    """Two-sided p-value of a figure against a bound: their distance in bootstrap standard errors, on the normal scale.

    Shares of resamples would end at one in a thousand, which no correction for a hundred comparisons leaves below 0.05.

    Examples
    --------
    >>> round(p_value(np.array([1.96, -1.0, 1.0])), 3), p_value(np.array([0.5, 0.5, 0.5])), p_value(np.zeros(3))
    (0.05, 0.0, 1.0)
    """
    distance, error = abs(float(figures[0]) - bound), float(np.std(figures[1:]))
    if distance <= ROUNDING:
        return 1.0
    return math.erfc(distance / error / math.sqrt(2)) if error > ROUNDING else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: at or below the level where the step-down procedure rejects.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
