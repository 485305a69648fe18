"""Variance of gradient estimates that are accumulated over whole episodes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PRNGKeyArray

from meta_train.estimators import GradientEstimator
from tasks.base import Data, Theta, UnrolledSystem


def episode_estimates(
    estimator: GradientEstimator,
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    num_repeats: int,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "repeats size"]:
    """Estimate the gradient over whole episodes, at a fixed theta.

    Each estimate is the mean over the windows of an episode, in which all members of a
    new population start together.

    Args:
        estimator: Estimator whose episodes are not staggered.
        system: System to unroll.
        data: Output of `system.load`.
        theta: Outer parameters.
        num_repeats: Number of independent populations.
        key: Random key.
    """
    if estimator.truncation.staggered:
        raise ValueError(
            "`estimator` must not stagger episodes, so that they end together. Try "
            "Truncation(..., staggered=False)."
        )
    keys = jax.random.split(key, num_repeats)
    return np.asarray(_estimates(estimator, system, data, theta, keys), np.float64)


def member_variance(
    estimates: Float[np.ndarray, "repeats size"], num_members: int
) -> float:
    """Compute the total variance of the estimate of one member of the population."""
    return float(num_members * estimates.var(axis=0, ddof=1).sum())


@functools.partial(jax.jit, static_argnums=(0, 1))
def _estimates(
    estimator: GradientEstimator,
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    keys: Key[Array, " repeats"],
) -> Float[Array, "repeats size"]:
    num_updates = math.ceil(estimator.truncation.horizon / estimator.steps_per_update)

    def episode(key):
        key_init, key_updates = jax.random.split(key)
        state = estimator.init(system, data, theta, key_init)

        def update(carry, key):
            state, total = carry
            estimate, state = estimator.update(system, data, theta, state, key)
            return (state, total + ravel_pytree(estimate.grad)[0]), None

        total = jnp.zeros_like(ravel_pytree(theta)[0])
        updates = jax.random.split(key_updates, num_updates)
        (_, total), _ = jax.lax.scan(update, (state, total), updates)
        return total / num_updates

    return jax.lax.map(episode, keys)
