"""Moving averages of the loss, as inputs of optimizers that follow the run."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

NUM_AVERAGES = 10
FASTEST = 10.0


class LossTrend(NamedTuple):
    """Moving averages of the loss, with time scales from 10 steps to the horizon.

    Attributes:
        means: Bias-corrected averages, fastest first.
        weights: Total weight of the losses in each average, ``1 - decay**count``.
        minima: Running minimum of each average.
    """

    means: Float[Array, " averages"]
    weights: Float[Array, " averages"]
    minima: Float[Array, " averages"]


def init_trend() -> LossTrend:
    """Initialize the averages, before the first loss."""
    return LossTrend(*(jnp.zeros(NUM_AVERAGES, jnp.float32) for _ in range(3)))


def time_scales(slowest: Float[Array, ""]) -> Float[Array, " averages"]:
    """Compute the time scales of the averages, from 10 steps to `slowest`."""
    powers = jnp.linspace(0.0, 1.0, NUM_AVERAGES, dtype=jnp.float32)
    return FASTEST * (slowest / FASTEST) ** powers


def update_trend(
    trend: LossTrend,
    loss: Float[Array, ""],
    rates: Float[Array, " averages"],
    is_first: Bool[Array, ""],
    *,
    is_clipped: bool = False,
) -> LossTrend:
    """Update the averages with the current loss.

    Args:
        trend: Averages of the previous losses.
        loss: Current loss. One that is not finite is ignored, because it would never
            leave the averages.
        rates: ``1 - decay`` of each average.
        is_first: Whether this is the first loss.
        is_clipped: Whether to clip the loss to twice the largest of the averages, with
            the bias correction of the next step.
    """
    weights = trend.weights + rates * (1 - trend.weights)
    if is_clipped:
        largest = jnp.abs(jnp.max(trend.means * trend.weights / weights))
        loss = jnp.where(is_first, loss, jnp.minimum(loss, 2 * largest))
    each = jnp.where(jnp.isfinite(loss), loss, trend.means)
    means = trend.means + rates / weights * (each - trend.means)
    minima = jnp.where(is_first, means, jnp.minimum(trend.minima, means))
    return LossTrend(means, weights, minima)


def trend_features(
    trend: LossTrend, count: Int[Array, ""], relative_floor: float = 0.0
) -> Float[Array, "9"]:
    """Compute the position of each average relative to the next slower one.

    The value is -1 at the running minimum of the average, 0 at the slower average, and
    is clamped to 1 above it. It is 0 at the first two steps.

    Args:
        trend: Averages, with the current loss.
        count: Number of previous steps.
        relative_floor: Differences below this fraction of the loss count as rounding
            errors.
    """
    fast, slow, minima = trend.means[:-1], trend.means[1:], trend.minima[:-1]
    floor = 1e-8 + relative_floor * jnp.abs(slow)
    position = (fast - minima) / jnp.maximum(slow - minima, floor)
    return jnp.where(count < 2, 0.0, jnp.clip(position - 1.0, -1.0, 1.0))
