"""Statistics against worked examples and by coverage."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from scope_lite.measure.stats import (
    iqm,
    paired_gaps,
    paired_improvement,
    paired_interval,
    probability_of_improvement,
    resampled_interval,
    share_interval,
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


# what the numbers vary with: seeds and simulators, seeds only, simulators only
@pytest.mark.parametrize("by_seed, by_simulator", [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("shape", [(3, 5), (10, 6)])
def test_intervals_over_seeds_and_simulators_cover_at_least_as_they_say(shape, by_seed, by_simulator):
    rng, (n, m) = np.random.default_rng(0), shape
    covered = []
    for _ in range(300):
        x = by_seed * rng.normal(size=(n, 1)) + by_simulator * rng.normal(size=(1, m)) + 0.5 * rng.normal(size=(n, m))
        interval = resampled_interval(x)
        covered.append(interval.low <= 0 <= interval.high)
    assert np.mean(covered) > 0.9


def test_resampling_both_ways_matches_a_worked_example():
    # seeds 0 and 2, simulators alike: a resampled mean is 0, 1 or 2 with 1/4, 1/2, 1/4, so its sd is sqrt(1/2)
    interval = resampled_interval(np.array([[0.0, 0.0], [2.0, 2.0]]))
    assert interval.mean == 1 and interval.n == 2
    assert interval.high - 1 == pytest.approx(12.7062 * np.sqrt(0.5), rel=0.05)
    # what simulators differ in widens it, though seeds agree
    assert resampled_interval(np.array([[0.0, 2.0], [0.0, 2.0]])).high - 1 == pytest.approx(interval.high - 1, rel=0.05)
    with pytest.raises(ValueError, match="two simulators"):
        resampled_interval(np.ones((3, 1)))


def test_paired_interval_uses_the_seeds_that_both_have():
    a, b = pd.Series({0: 1.0, 1: 2.0, 2: 4.0}), pd.Series({1: 1.0, 2: 2.0, 3: 9.0})
    interval = paired_interval(a, b)
    assert interval.n == 2 and interval.mean == 1.5


@pytest.mark.parametrize("function", [paired_gaps, paired_interval, paired_improvement])
def test_a_seed_that_stands_twice_is_refused_in_one_line(function):
    once, twice = pd.Series([1.0, 2.0], index=[0, 1]), pd.Series([1.0, 2.0, 3.0], index=[0, 0, 1])
    for a, b in [(once, twice), (twice, once), (twice, twice)]:
        with pytest.raises(ValueError, match="0 stands twice in the index") as told:
            function(a, b)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, None, "high"])
def test_what_is_no_number_is_refused_by_whatever_averages(bad):
    values = [0.5, bad, 0.6, 0.1, 0.2]
    a, b = pd.Series(values), pd.Series(np.ones(5))
    grid = np.array([values, [1.0] * 5], dtype=object)
    for call in [
        lambda: t_interval(values),
        lambda: iqm(values),
        lambda: paired_interval(a.astype(object), b.astype(object)),
        lambda: resampled_interval(grid),
        lambda: probability_of_improvement(values, [1.0, 2.0]),
    ]:
        with pytest.raises(ValueError, match=r"NaN or infinite|no number|could not convert string"):
            call()


def test_different_seeds_and_single_values_are_what_is_left_of_them():
    a, b = pd.Series({0: 1.0, 1: np.nan}), pd.Series({0: 0.5, 2: np.nan})
    assert str(paired_interval(a, b)) == "0.50", "what the other has not is no part of it, whatever it is"
    with pytest.raises(ValueError, match="no seed is shared"):
        paired_interval(a, pd.Series({"0": 1.0}))
    assert t_interval([0.5]).n == 1 and np.isnan(t_interval([0.5]).low)


def test_pairing_by_seed_removes_what_seeds_share():
    luck = pd.Series(np.random.default_rng(0).normal(size=10) * 5)
    interval = paired_interval(luck + 1, luck)
    assert interval.low == pytest.approx(1) and interval.high == pytest.approx(1)


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
    with pytest.raises(ValueError, match="no seed is shared"):
        paired_improvement(a, pd.Series({7: 1.0}))
