"""Holm's correction, against examples of textbooks, and p-values from resamples."""

from __future__ import annotations

import numpy as np
import pytest

from promptdsi.evaluation.corrections import holm, p_value


def test_holm_gives_the_textbook_adjustments() -> None:
    """Of 0.01, 0.04, 0.03 and 0.005 the step-down procedure at 0.05 rejects the fourth and the first, and stops at 0.03 > 0.05 / 2."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])  # as R's p.adjust gives them
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_holm_is_between_no_correction_and_bonferroni() -> None:
    p_values = np.random.default_rng(0).uniform(0, 0.1, 30).tolist()
    adjusted = holm(p_values)
    assert all(p <= each <= min(1.0, len(p_values) * p) for p, each in zip(p_values, adjusted, strict=True))
    assert np.argsort(adjusted, kind="stable")[0] == np.argsort(p_values)[0]


def test_a_p_value_is_small_where_resamples_stay_away_from_the_bound() -> None:
    resamples = np.random.default_rng(0).normal(0.03, 0.01, 1000)
    figures = np.concatenate([[0.03], resamples])
    assert p_value(figures) == pytest.approx(0.0027, abs=0.001)  # three standard errors
    assert p_value(figures, 0.03) == 1.0 and p_value(figures, 0.02) > 0.2
