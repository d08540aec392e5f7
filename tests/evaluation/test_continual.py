"""P[t][i] and what is computed from it, on matrices small enough to do by hand."""

from __future__ import annotations

import numpy as np
import pytest

from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.continual import Matrix, compare, estimate, sign_flip
from promptdsi.evaluation.evaluate import QueryRanks


def queries(*ranks: int) -> list[QueryRanks]:
    return [QueryRanks([rank], [1.0]) for rank in ranks]


# Hits@1: P[0] = .5; P[1] = .25, 1; P[2] = .75, .5, 0
RUN = Matrix(
    {
        0: [queries(1, 1, 2, 11)],
        1: [queries(1, 2, 2, 2), queries(1, 1)],
        2: [queries(1, 1, 1, 50), queries(1, 3), queries(2, 11)],
    }
)


def value(figures: np.ndarray) -> float:
    return float(figures[0])


def test_average_leaves_d0_out_and_counts_each_corpus_the_same() -> None:
    assert value(RUN.average("Hits@1")) == pytest.approx((0.5 + 0) / 2)
    assert value(RUN.average("Hits@1", 1)) == 1.0
    assert value(RUN.average("Hits@10")) == pytest.approx((1 + 0.5) / 2)
    assert value(RUN.average("MRR@10")) == pytest.approx((np.mean([1, 1 / 3]) + np.mean([1 / 2, 0])) / 2)
    assert value(RUN.on_d0("Hits@1")) == 0.75


def test_learning_looks_at_each_corpus_just_after_it_was_learned() -> None:
    assert value(RUN.learning("Hits@1")) == pytest.approx((1 + 0) / 2)
    assert value(RUN.learning("Hits@1", 1)) == 1.0


def test_forgetting_is_the_fall_from_the_best_earlier_step_and_may_be_negative() -> None:
    # D0: best of P[0][0] = .5 and P[1][0] = .25, now .75; D1: 1 then .5. P[0][1] does not exist and is not asked for.
    assert value(RUN.forgetting("Hits@1")) == pytest.approx(((0.5 - 0.75) + (1 - 0.5)) / 2)
    assert value(RUN.forgetting("Hits@1", 1)) == pytest.approx(0.5 - 0.25)
    assert value(RUN.d0_forgetting("Hits@1")) == pytest.approx(0.5 - 0.75)
    fell = Matrix({0: [queries(1, 1, 2, 11)], 1: [queries(1, 2, 2, 2), queries(1)]})
    assert value(fell.d0_forgetting("Hits@1")) == 0.5 - 0.25


def test_a_run_that_learned_all_at_once_has_its_first_and_last_step() -> None:
    run = Matrix({0: [queries(1, 2)], 2: [queries(3, 1), queries(1), queries(20)]})
    assert value(run.average("Hits@10")) == 0.5
    assert value(run.d0_forgetting("Hits@1")) == 0.0
    with pytest.raises(KeyError):
        run.learning("Hits@1")
    with pytest.raises(ValueError, match="step 1 has 1 corpora, expected D0 to D1"):
        Matrix({1: [queries(1)]})


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        hits = rng.random(150) < 0.7
        interval = estimate(Matrix({0: [queries(*np.where(hits, 1, 99).tolist())]}).entry("Hits@1", 0, 0))
        covered += interval.low <= 0.7 <= interval.high
    assert 88 <= covered <= 100


def test_a_comparison_is_paired() -> None:
    """Two runs that differ on three of 400 queries, always one way: far within the interval of each, and still told apart."""
    rng = np.random.default_rng(0)
    ranks = np.where(rng.random(400) < 0.5, 1, 99)
    better = ranks.copy()
    better[np.flatnonzero(ranks == 99)[:8]] = 1
    first, second = (Matrix({0: [queries(1)], 1: [queries(1), queries(*each.tolist())]}) for each in (better, ranks))
    comparison = compare([first], [second], Matrix.average, "Hits@1", corpora=[1])
    assert comparison.difference.value == pytest.approx(8 / 400)
    assert comparison.difference.low > 0 and comparison.p < 0.02 and comparison.verdict == "better"
    assert compare([second], [first], Matrix.average, "Hits@1", corpora=[1]).verdict == "worse"
    same = compare([first], [first], Matrix.average, "Hits@1", corpora=[1])
    assert same.difference == (0, 0, 0) and same.p == 1.0 and same.verdict == "no difference shown"
    alone = estimate(first.average("Hits@1"))
    assert alone.low < value(second.average("Hits@1")) < alone.high


def test_seeds_are_averaged_before_they_are_compared() -> None:
    first = [Matrix({0: [queries(1)], 1: [queries(1), queries(*ranks)]}) for ranks in ([1, 1, 2, 2], [1, 2, 2, 2])]
    second = [Matrix({0: [queries(1)], 1: [queries(1), queries(2, 2, 2, 2)]})]
    assert compare(first, second, Matrix.average, "Hits@1", corpora=[1]).difference.value == pytest.approx(0.375)


def test_an_interval_knows_that_other_seeds_would_differ() -> None:
    """Two systems drawn from one urn: their seeds differ by more than their queries say, and that must not make one better."""
    rng = np.random.default_rng(1)

    def runs(shares: list[float]) -> list[Matrix]:
        ranks = [np.where(rng.permutation(300) < 300 * share, 1, 99).tolist() for share in shares]
        return [Matrix({0: [queries(1)], 1: [queries(1), queries(*each)]}) for each in ranks]

    first, second = runs([0.50, 0.60, 0.70]), runs([0.48, 0.70, 0.44])
    apart = compare(first, second, Matrix.average, "Hits@1", corpora=[1]).difference
    assert apart.value == pytest.approx(0.06) and apart.low < 0 < apart.high
    alone = compare(first[1:2], second[2:], Matrix.average, "Hits@1", corpora=[1]).difference
    assert alone.low > 0  # one seed each: the interval is about these two runs
    steady = compare(runs([0.7, 0.7, 0.7]), runs([0.5, 0.5, 0.5]), Matrix.average, "Hits@1", corpora=[1]).difference
    assert steady.low > 0


def test_a_difference_that_is_zero_on_paper_makes_no_verdict() -> None:
    from promptdsi.evaluation.continual import Compared, Estimate

    assert Compared(Estimate(-0.005, -0.01, -6e-17), 0.07).verdict == "no difference shown"
    # hits are counted in whole numbers: a resample that draws as many of each is exactly equal
    first, second = (Matrix({0: [queries(*ranks)]}) for ranks in ([1, 99] * 150, [99, 1] * 150))
    assert (np.abs(first.entry("Hits@1", 0, 0) + second.entry("Hits@1", 0, 0) - 1) < 1e-15).all()


def test_sign_flips_agree_with_counting_all_of_them() -> None:
    from itertools import product

    differences = np.array([1.0, 1, 1, -1, 0, 1])
    flips = [abs(np.dot(signs, differences)) for signs in product([1, -1], repeat=6)]
    exact = np.mean([flip >= abs(differences.sum()) for flip in flips])
    assert sign_flip([differences], draws=20000) == pytest.approx(exact, abs=0.02)


def test_a_corpus_without_queries_is_left_out_of_means() -> None:
    two = queries(1, 20)
    run = Matrix({0: [two], 1: [two, []], 2: [two, [], queries(1)]})
    assert value(run.average("Hits@10")) == value(run.learning("Hits@10")) == 1.0 and value(run.forgetting("Hits@10")) == 0.0
    assert np.isnan(run.entry("Hits@10", 2, 1)).all()
    assert compare([run], [run], Matrix.average, "Hits@10", [1, 2]).p == 1.0
    with pytest.raises(PromptDSIError, match="no new corpus has a query"):
        Matrix({0: [two], 1: [two, []]}).average("Hits@10")
