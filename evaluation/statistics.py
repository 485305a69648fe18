"""Statistics of loss curves over seeds and tasks, with 95% confidence intervals.

Aggregates over tasks follow Agarwal et al., "Deep Reinforcement Learning at the Edge of
the Statistical Precipice" (2021). Performance profiles follow Dolan and Moré,
"Benchmarking optimization software with performance profiles" (2002).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import signal, stats

_FINAL_SHARE = 0.05  # Fraction of a run that the final loss averages over.
_NUM_RESAMPLES = 2_000
_NUM_ENVELOPES = 500
_SMOOTHING = 0.95  # Decay of the exponential moving average.
_HUGE = 1e30  # Replaces infinity, because 0 * inf is NaN.
LARGEST_TAU = 4.0


class Interval(NamedTuple):
    """A value and its 95% confidence interval.

    `low` and `high` are NaN if there are fewer than two seeds or `value` is not finite.
    """

    value: float
    low: float
    high: float


def mean_losses(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "..."]:
    """Compute the mean loss of each run; infinite if the run diverged."""
    return _mean(curves, curves.shape[-1])


def final_losses(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "..."]:
    """Compute the mean loss over the last 5% of steps; infinite if a run diverged."""
    last = max(1, round(_FINAL_SHARE * curves.shape[-1]))
    return _mean(curves, last)


def is_diverged(curves: Float[np.ndarray, "... steps"]) -> np.ndarray:
    """Whether each run has a non-finite loss at any step, even if it recovered."""
    return np.logical_not(np.isfinite(curves).all(axis=-1))


def _mean(curves: np.ndarray, last: int) -> np.ndarray:
    # A diverged run counts as the worst and is never dropped.
    finite = np.where(np.isfinite(curves), curves, 0.0)
    means = finite[..., -last:].mean(axis=-1, dtype=np.float64)
    return np.where(is_diverged(curves), np.inf, means)


def smooth(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "... steps"]:
    """Compute the exponential moving average of losses, with decay 0.95.

    The average is initialized to the first loss, and is infinite from the first
    non-finite loss on.
    """
    finite = np.where(np.isfinite(curves), curves, 0.0).astype(np.float64)
    start = _SMOOTHING * finite[..., :1]  # Filter state of a constant past.
    smoothed, _ = signal.lfilter(
        [1 - _SMOOTHING], [1.0, -_SMOOTHING], finite, axis=-1, zi=start
    )
    gone = np.cumsum(~np.isfinite(curves), axis=-1) > 0
    return np.where(gone, np.inf, smoothed)


def mean_interval(values: Float[np.ndarray, " seeds"]) -> Interval:
    """Compute the mean over seeds with Student's t interval."""
    mean = float(np.mean(values))
    if len(values) < 2 or not np.isfinite(mean):
        return Interval(mean, float("nan"), float("nan"))
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return Interval(mean, mean - float(half), mean + float(half))


def ratio_interval(
    ours: Float[np.ndarray, " seeds"], theirs: Float[np.ndarray, " seeds"]
) -> Interval:
    """Compute the ratio of means with a bootstrap interval over paired seeds."""
    return _bootstrap(
        lambda rows: ours[rows].mean(axis=-1) / theirs[rows].mean(axis=-1),
        [len(ours)],
    )


def interquartile_mean(values: Float[np.ndarray, "... n"]) -> Float[np.ndarray, "..."]:
    """Compute the mean of the middle half of the values, over the last axis."""
    # Infinite values sort last: up to a quarter of them does not affect the mean.
    ordered = np.sort(values, axis=-1)
    cut = values.shape[-1] // 4
    return np.asarray(ordered[..., cut : values.shape[-1] - cut].mean(axis=-1))


def pooled_interquartile_mean(scores: Sequence[np.ndarray]) -> Interval:
    """Compute the interquartile mean over all runs of all tasks.

    The interval is by stratified bootstrap: runs are resampled within each task.

    Args:
        scores: For each task, an array of one score for each run.
    """
    return _bootstrap(
        lambda *rows: interquartile_mean(
            np.concatenate([s[r] for s, r in zip(scores, rows, strict=True)], axis=-1)
        ),
        [len(s) for s in scores],
    )


def probability_of_improvement(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]
) -> Interval:
    """Estimate the probability that a run of ours scores lower than one of theirs.

    The probability is averaged over tasks, and a tie counts half. The interval is by
    stratified bootstrap.

    Args:
        ours: For each task, an array of one score for each run.
        theirs: The corresponding scores to compare with.
    """

    def mean(*rows):
        half = len(ours)
        each = [
            _chance_lower(x[r], y[s])
            for x, y, r, s in zip(ours, theirs, rows[:half], rows[half:], strict=True)
        ]
        return np.mean(each, axis=0)

    return _bootstrap(mean, [len(x) for x in (*ours, *theirs)])


def _chance_lower(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = x[..., :, None], y[..., None, :]
    return np.asarray(((x < y) + 0.5 * (x == y)).mean(axis=(-2, -1)))


class Envelope(NamedTuple):
    """Lowest loss that a baseline has reached by each step, at any learning rate.

    Attributes:
        losses: Envelope of the mean over seeds.
        resampled: Envelopes of means over resampled seeds, for intervals.
    """

    losses: Float[np.ndarray, " steps"]
    resampled: Float[np.ndarray, "resamples steps"]


def envelope(curves: Float[np.ndarray, "rates seeds steps"]) -> Envelope:
    """Compute the envelope of a baseline from its smoothed curves.

    The envelope is an oracle: it uses the best learning rate for every step.
    """
    rates, seeds, steps = curves.shape
    smoothed = np.nan_to_num(smooth(curves), posinf=_HUGE)

    def lowest(weights: Float[np.ndarray, "n seeds"]) -> Float[np.ndarray, "n steps"]:
        flat = smoothed.swapaxes(0, 1).reshape(seeds, -1)
        means = (weights @ flat).reshape(-1, rates, steps)
        return np.minimum.accumulate(means.min(axis=1), axis=1)

    generator = np.random.default_rng(0)
    chosen = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _NUM_ENVELOPES)
    losses = lowest(np.full((1, seeds), 1 / seeds))[0]
    return Envelope(losses, lowest(chosen / seeds))


def speed_up(curves: Float[np.ndarray, "seeds steps"], baseline: Envelope) -> Interval:
    """Compute the speed-up over a baseline, in steps.

    This is the number of steps in which the envelope of the baseline reaches the final
    smoothed loss, divided by the number of steps of `curves`. It is at most the ratio
    of the lengths of the baseline's runs and `curves`.

    Args:
        curves: Losses of the optimizer.
        baseline: Envelope of the baseline, usually from longer runs.
    """
    num_seeds, num_steps = curves.shape
    finals = np.nan_to_num(smooth(curves)[:, -1], posinf=_HUGE)

    def ratio(lowest: np.ndarray, final: np.ndarray) -> np.ndarray:
        above = (lowest > final[:, None]).sum(axis=1)
        return np.minimum(above + 1, lowest.shape[1]) / num_steps

    value = float(ratio(baseline.losses[None], finals.mean(keepdims=True))[0])
    if num_seeds < 2:
        return Interval(value, float("nan"), float("nan"))
    rows = np.random.default_rng(1).integers(
        num_seeds, size=(len(baseline.resampled), num_seeds)
    )
    ratios = ratio(baseline.resampled, finals[rows].mean(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def steps_to(target: float, curves: Float[np.ndarray, "seeds steps"]) -> float:
    """Find the first step at which the mean smoothed curve is at most `target`.

    Steps count from 1. The result is infinite if `target` is never reached.
    """
    reached = np.flatnonzero(smooth(curves).mean(axis=0) <= target)
    return float(reached[0] + 1) if len(reached) else float("inf")


def performance_ratios(
    times: Float[np.ndarray, "methods tasks"],
) -> Float[np.ndarray, "methods tasks"]:
    """Divide times by the best time of each task; infinite times stay infinite."""
    best = times.min(axis=0, keepdims=True)
    missed = ~np.isfinite(times)
    return np.where(missed, np.inf, times / np.where(np.isfinite(best), best, 1.0))


def performance_profile(
    ratios: Float[np.ndarray, "methods tasks"], taus: Float[np.ndarray, " taus"]
) -> Float[np.ndarray, "methods taus"]:
    """Compute the fraction of tasks on which the ratio of a method is at most tau."""
    return (ratios[:, :, None] <= taus).mean(axis=1)


def profile_scores(
    ratios: Float[np.ndarray, "methods tasks"],
) -> Float[np.ndarray, " methods"]:
    """Compute the normalized area under each performance profile, from 1 to 4.

    This is the score of AlgoPerf (Dahl et al., "Benchmarking Neural Network Training
    Algorithms", 2023).
    """
    # The profile steps up at each ratio, so a task contributes the width above it.
    left = np.clip(LARGEST_TAU - ratios, 0.0, None)
    return left.mean(axis=1) / (LARGEST_TAU - 1)


def average_ranks(
    losses: Float[np.ndarray, "methods tasks"],
) -> Float[np.ndarray, " methods"]:
    """Compute the mean rank of each method over tasks; ties get their average rank."""
    return stats.rankdata(losses, axis=0).mean(axis=1)


def _bootstrap(
    statistic: Callable[..., np.ndarray],
    sizes: Sequence[int],
    num: int = _NUM_RESAMPLES,
) -> Interval:
    """Compute a statistic with its percentile bootstrap interval.

    Args:
        statistic: Function of one array of row indices for each sample, of shape
            ``(..., n)``, vectorized over leading axes.
        sizes: Number of rows of each sample. Samples are resampled independently.
        num: Number of resamples.
    """
    every = [np.arange(size) for size in sizes]
    value = float(statistic(*every))
    if min(sizes) < 2 or not np.isfinite(value):
        return Interval(value, float("nan"), float("nan"))
    found = stats.bootstrap(
        every,
        lambda *rows, axis: statistic(*rows),
        vectorized=True,
        n_resamples=num,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return Interval(value, *map(float, found.confidence_interval))
