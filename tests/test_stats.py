"""Statistics against worked examples and by coverage."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from scope_lite.stats import (
    auc,
    iqm,
    paired_improvement,
    paired_interval,
    probability_of_improvement,
    share_interval,
    summarise,
    t_interval,
)


def test_t_interval_matches_a_worked_example():
    # mean 2, sd 1, n 3: 2 +- 4.3027 / sqrt(3)
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.mean == 2
    assert interval.high - 2 == pytest.approx(4.30265 / np.sqrt(3), rel=1e-5)
    assert 2 - interval.low == pytest.approx(interval.high - 2)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_intervals_cover_as_they_claim(n):
    rng = np.random.default_rng(n)
    covered = [i.low <= 0 <= i.high for i in (t_interval(rng.normal(size=n)) for _ in range(4000))]
    assert 0.93 < np.mean(covered) < 0.97


def test_paired_interval_uses_the_seeds_that_both_have():
    a, b = pd.Series({0: 1.0, 1: 2.0, 2: 4.0}), pd.Series({1: 1.0, 2: 2.0, 3: 9.0})
    interval = paired_interval(a, b)
    assert interval.n == 2 and interval.mean == 1.5


def test_pairing_by_seed_removes_what_seeds_share():
    luck = pd.Series(np.random.default_rng(0).normal(size=10) * 5)
    interval = paired_interval(luck + 1, luck)
    assert interval.low == pytest.approx(1) and interval.high == pytest.approx(1)


def test_auc_is_the_mean_height_of_the_curve():
    assert auc(np.array([0.0, 5.0, 10.0]), np.array([0.0, 1.0, 0.0])) == pytest.approx(0.5)


def test_auc_leaves_out_steps_without_a_value():
    assert auc(np.array([0.0, 5.0, 10.0]), np.array([np.nan, 1.0, 3.0])) == pytest.approx(2.0)
    assert np.isnan(auc(np.array([0.0]), np.array([np.nan])))


def test_summary_reads_end_auc_and_best_off_one_checkpoint():
    table = pd.DataFrame({"seed": 0, "step": [0, 5, 10], "unseen": [0.1, 0.6, 0.2], "real": [0.3, 0.2, 0.1]})
    summary = summarise(table, ["seed"], ["unseen", "real"], select="unseen").set_index("summary")
    assert summary.loc["end", "unseen"] == 0.2
    assert summary.loc["best", "real"] == 0.2 and summary.loc["best", "at_step"] == 5
    assert summary.loc["auc", "unseen"] == pytest.approx(0.375)


def test_share_interval_matches_a_worked_example():
    # 0 of 10: the rule of (alpha / 2)^(1 / n); and 10 of 10 is its mirror image
    none, all_of_them = share_interval(0, 10), share_interval(10, 10)
    assert none.low == 0 and none.high == pytest.approx(1 - 0.025**0.1)
    assert all_of_them.high == 1 and all_of_them.low == pytest.approx(0.025**0.1)


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm(np.array([0.0, 1.0, 2.0, 99.0])) == 1.5
    # runs and tasks are pooled: of 1 .. 8 the middle half is 3, 4, 5, 6
    assert iqm(np.array([[8.0, 1.0], [7.0, 2.0], [6.0, 3.0], [5.0, 4.0]])) == 4.5


def test_probability_of_improvement_by_hand():
    # 3 beats 1 and ties with 3; 1 ties with 1 and loses to 3: (1 + .5 + .5 + 0) / 4
    assert probability_of_improvement(np.array([3.0, 1.0]), np.array([1.0, 3.0])) == 0.5
    # one task won by every pair, one lost by every pair but a tie
    a, b = np.array([[2.0, 0.0], [3.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 2.0]])
    assert probability_of_improvement(a, b) == (1.0 + 0.125) / 2


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 7).astype(float), rng.integers(0, 5, 9).astype(float)
    assert probability_of_improvement(a, b) == pytest.approx(mannwhitneyu(a, b).statistic / (7 * 9))


def test_runs_on_different_tasks_cannot_be_compared():
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement(np.zeros((2, 1)), np.zeros((2, 2)))


def test_paired_improvement_looks_at_each_seed_alone():
    a, b = pd.Series({0: 1.0, 1: 2.0, 2: 3.0, 3: 0.0}), pd.Series({0: 0.5, 1: 2.0, 2: 9.0, 4: 0.0})
    assert paired_improvement(a, b) == 0.5
    with pytest.raises(ValueError, match="no seed"):
        paired_improvement(a, pd.Series({7: 1.0}))
