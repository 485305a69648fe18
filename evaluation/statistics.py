"""Numbers with intervals, from the loss curves of several seeds."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

_FINAL_SHARE = 0.05
_NUM_RESAMPLES = 2_000


class Interval(NamedTuple):
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def mean_losses(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "..."]:
    """Returns each run's mean loss; infinite if the run diverged."""
    return _worst_if_diverged(curves, curves.mean(axis=-1))


def final_losses(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "..."]:
    """Returns each run's mean loss over its last 5 % of steps; infinite if diverged."""
    last = max(1, round(_FINAL_SHARE * curves.shape[-1]))
    return _worst_if_diverged(curves, curves[..., -last:].mean(axis=-1))


def _worst_if_diverged(curves: np.ndarray, values: np.ndarray) -> np.ndarray:
    # A diverged run counts as the worst; it is never dropped.
    return np.where(np.isfinite(curves).all(axis=-1), values, np.inf)


def mean_interval(values: Float[np.ndarray, " seeds"]) -> Interval:
    """Returns the mean over seeds with Student's interval."""
    mean = float(np.mean(values))
    if len(values) < 2 or not np.isfinite(mean):
        return Interval(mean, float("nan"), float("nan"))
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return Interval(mean, mean - float(half), mean + float(half))


def ratio_interval(
    ours: Float[np.ndarray, " seeds"], theirs: Float[np.ndarray, " seeds"]
) -> Interval:
    """Returns the ratio of means with a bootstrap interval over paired seeds."""
    value = float(np.mean(ours) / np.mean(theirs))
    if len(ours) < 2 or not np.isfinite(value):
        return Interval(value, float("nan"), float("nan"))
    rows = np.random.default_rng(0).integers(
        len(ours), size=(_NUM_RESAMPLES, len(ours))
    )
    ratios = ours[rows].mean(axis=1) / theirs[rows].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(value, float(low), float(high))
