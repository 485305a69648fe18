import numpy as np
from scipy import stats

from evaluation.statistics import (
    final_losses,
    mean_interval,
    mean_losses,
    ratio_interval,
)


def test_mean_and_final_losses_of_a_run():
    curves = np.arange(40.0)[None].repeat(2, axis=0)
    np.testing.assert_allclose(mean_losses(curves), [19.5, 19.5])
    np.testing.assert_allclose(final_losses(curves), [38.5, 38.5])


def test_a_diverged_run_counts_as_the_worst():
    curves = np.ones((2, 10))
    curves[1, 4] = np.nan  # even if it recovers
    np.testing.assert_array_equal(mean_losses(curves), [1.0, np.inf])
    np.testing.assert_array_equal(final_losses(curves), [1.0, np.inf])
    assert mean_interval(mean_losses(curves)).value == np.inf
    assert np.isnan(mean_interval(mean_losses(curves)).high)


def test_the_interval_of_the_mean_is_students():
    values = np.random.default_rng(0).normal(3, 1, size=20)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = mean_interval(values)
    np.testing.assert_allclose(interval, (values.mean(), expected.low, expected.high))


def test_the_interval_of_a_ratio_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        theirs = rng.normal(2.0, 0.3, size=20)
        ours = 0.5 * theirs + rng.normal(0, 0.05, size=20)
        low, high = ratio_interval(ours, theirs)[1:]
        covered += low < 0.5 < high
    # 95 % of 200, less four standard errors and the bootstrap's known shortfall.
    assert covered > 170


def test_one_seed_has_a_value_and_no_interval():
    interval = mean_interval(np.array([2.0]))
    assert interval.value == 2.0
    assert np.isnan(interval.low)
    assert np.isnan(ratio_interval(np.array([2.0]), np.array([3.0])).high)
