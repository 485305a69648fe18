"""Statistics against independent computations."""

import numpy as np
import pytest
from scipy import integrate, stats

from evaluation.statistics import (
    average_ranks,
    envelope,
    final_losses,
    interquartile_mean,
    is_diverged,
    mean_interval,
    mean_losses,
    performance_profile,
    performance_ratios,
    pooled_interquartile_mean,
    probability_of_improvement,
    profile_scores,
    ratio_interval,
    smooth,
    speed_up,
    steps_to,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_mean_and_final_losses_of_a_run():
    curves = np.arange(40.0)[None].repeat(2, axis=0)
    np.testing.assert_allclose(mean_losses(curves), [19.5, 19.5])
    np.testing.assert_allclose(final_losses(curves), [38.5, 38.5])


def test_a_diverged_run_counts_as_the_worst():
    curves = np.ones((2, 10))
    curves[1, 4] = np.nan  # diverged, even if it recovers
    np.testing.assert_array_equal(is_diverged(curves), [False, True])
    np.testing.assert_array_equal(mean_losses(curves), [1.0, np.inf])
    np.testing.assert_array_equal(final_losses(curves), [1.0, np.inf])
    assert mean_interval(mean_losses(curves)).value == np.inf
    assert np.isnan(mean_interval(mean_losses(curves)).high)


def test_smoothing_is_the_moving_average_one_writes_down(rng):
    curves = rng.normal(size=(3, 50))
    expected = curves.copy()
    for t in range(1, 50):
        expected[:, t] = 0.95 * expected[:, t - 1] + 0.05 * curves[:, t]
    np.testing.assert_allclose(smooth(curves), expected)
    curves[1, 20] = np.nan
    np.testing.assert_allclose(smooth(curves)[[0, 2]], expected[[0, 2]])
    np.testing.assert_allclose(smooth(curves)[1, :20], expected[1, :20])
    assert (smooth(curves)[1, 20:] == np.inf).all()


def test_the_interval_of_the_mean_is_students(rng):
    values = rng.normal(3, 1, size=20)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = mean_interval(values)
    np.testing.assert_allclose(interval, (values.mean(), expected.low, expected.high))


def test_ratio_interval_has_its_nominal_coverage(rng):
    covered = 0
    for _ in range(200):
        theirs = rng.normal(2.0, 0.3, size=20)
        ours = 0.5 * theirs + rng.normal(0, 0.05, size=20)
        low, high = ratio_interval(ours, theirs)[1:]
        covered += low < 0.5 < high
    # 95 % of 200, less four standard errors and the known undercoverage of bootstraps.
    assert covered > 170


@pytest.mark.parametrize("num", [1, 3, 4, 20, 23])
def test_the_interquartile_mean_is_scipys_trimmed_mean(rng, num):
    values = rng.normal(size=(2, num))
    expected = stats.trim_mean(values, 0.25, axis=1)
    np.testing.assert_allclose(interquartile_mean(values), expected)


def test_a_few_diverged_runs_do_not_reach_the_interquartile_mean():
    values = np.array([1.0, 2.0, 3.0, np.inf])
    assert interquartile_mean(values) == 2.5
    assert interquartile_mean(np.array([1.0, np.inf, np.inf, np.inf])) == np.inf


def test_runs_are_resampled_within_their_task(rng):
    # Neither task has any variance, so the pooled mean has none either.
    scores = [np.full(10, 1.0), np.full(10, 5.0)]
    np.testing.assert_allclose(pooled_interquartile_mean(scores), (3.0, 3.0, 3.0))
    noisy = [rng.normal(1, 0.1, 30), rng.normal(5, 0.1, 30)]
    found = pooled_interquartile_mean(noisy)
    means = []
    for _ in range(2_000):
        drawn = [rng.choice(scores, len(scores)) for scores in noisy]
        means.append(stats.trim_mean(np.concatenate(drawn), 0.25))
    expected = np.quantile(means, [0.025, 0.975])
    np.testing.assert_allclose(found[1:], expected, atol=0.1)


def test_the_probability_of_improvement_is_mann_whitneys(rng):
    ours = [rng.normal(size=12), rng.integers(0, 3, size=15).astype(float)]
    theirs = [rng.normal(1, size=10), rng.integers(0, 3, size=15).astype(float)]
    each = [
        stats.mannwhitneyu(y, x).statistic / (len(x) * len(y))
        for x, y in zip(ours, theirs, strict=True)
    ]
    found = probability_of_improvement(ours, theirs)
    np.testing.assert_allclose(found.value, np.mean(each))
    assert found.low < found.value < found.high


def test_ties_and_divergence_in_the_probability_of_improvement():
    same = [np.array([1.0, 2.0, np.inf])]
    assert probability_of_improvement(same, same).value == 0.5
    worst, good = [np.full(3, np.inf)], [np.ones(3)]
    assert probability_of_improvement(worst, good).value == 0.0
    assert probability_of_improvement(good, worst).value == 1.0


def test_speed_up_of_a_hand_worked_case():
    # Adam's loss falls by one per step at one learning rate and is flat at the other.
    steps = np.arange(400.0)
    adam = np.stack([np.tile(400 - steps, (3, 1)), np.full((3, 400), 400.0)])
    smoothed = smooth(adam)[0, 0]
    for ours, expected in ((smoothed[149], 1.5), (smoothed[49], 0.5), (-1e6, 4.0)):
        curves = np.full((5, 100), ours)  # constant, so smoothing has no effect
        found = speed_up(curves, envelope(adam))
        np.testing.assert_allclose(found, (expected, expected, expected))


def test_the_envelope_takes_the_best_rate_of_every_moment_and_never_rises():
    steps = np.arange(200.0)
    quick = 1.0 + np.exp(-steps / 5)  # converges to 1
    slow = 2.0 * np.exp(-steps / 100)
    rising = np.concatenate([np.full(10, 0.5), np.full(190, 50.0)])
    curves = np.stack([quick, slow, rising])[:, None]
    found = envelope(curves).losses
    best = np.minimum.accumulate(smooth(curves[:, 0]).min(axis=0))
    np.testing.assert_allclose(found, best)
    assert (np.diff(found) <= 0).all()


def test_a_learning_rate_that_diverges_does_not_spoil_the_envelope():
    curves = np.ones((2, 3, 50))
    curves[1, 0, 10:] = np.inf
    np.testing.assert_allclose(envelope(curves).losses, 1.0)
    assert np.isfinite(envelope(curves).resampled).all()
    gone = np.full((4, 20), np.nan)
    assert speed_up(gone, envelope(curves)).value == 1 / 20  # after one step of Adam


def test_steps_to_a_target():
    curves = np.tile(np.array([3.0, 2.0, 1.0]), (2, 1))
    reached = smooth(curves)[0]
    assert steps_to(reached[1], curves) == 2
    assert steps_to(0.0, curves) == np.inf


def test_the_performance_profile_of_a_hand_worked_case():
    times = np.array([[100.0, 300.0, np.inf], [200.0, 100.0, np.inf]])
    ratios = performance_ratios(times)
    np.testing.assert_array_equal(ratios, [[1, 3, np.inf], [2, 1, np.inf]])
    taus = np.array([1.0, 2.0, 3.0])
    expected = np.array([[1, 1, 2], [1, 2, 2]]) / 3
    np.testing.assert_allclose(performance_profile(ratios, taus), expected)
    fine = np.linspace(1, 4, 30_001)
    areas = integrate.trapezoid(performance_profile(ratios, fine), fine) / 3
    np.testing.assert_allclose(profile_scores(ratios), areas, atol=1e-3)


def test_average_ranks_share_ties():
    losses = np.array([[1.0, 2.0], [1.0, np.inf], [3.0, 1.0]])
    np.testing.assert_allclose(average_ranks(losses), [1.75, 2.25, 2.0])


def test_one_seed_and_one_task_have_values_and_no_intervals():
    one = np.array([2.0])
    for interval in (
        mean_interval(one),
        ratio_interval(one, np.array([4.0])),
        pooled_interquartile_mean([one]),
        probability_of_improvement([one], [np.array([3.0])]),
        speed_up(np.full((1, 10), 2.0), envelope(np.ones((2, 1, 40)))),
    ):
        assert np.isfinite(interval.value)
        assert np.isnan(interval.low)
        assert np.isnan(interval.high)
