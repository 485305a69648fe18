"""Meta-objective surfaces: the meta-loss on a grid of theta, in one program."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from meta_train.core.unroll import unroll
from tasks.base import Data, Theta, UnrolledSystem

_AT_ONCE = 64  # points that are unrolled in parallel


def meta_surface(
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    axes: Sequence[Float[np.ndarray, " n"]],
    horizon: int,
    num_runs: int,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "..."]:
    """Compute the mean loss of whole episodes at every point of a grid of theta.

    All points use the same episodes (common random numbers).

    Args:
        system: System to unroll.
        data: Output of `system.load`.
        theta: Outer parameters that define the structure of theta.
        axes: Values of each number of the flattened theta.
        horizon: Number of steps in each episode.
        num_runs: Number of episodes per point.
        key: Random key of the episodes.

    Returns:
        Mean losses, with one axis for each of `axes`; infinite instead of NaN.
    """
    flat, unravel = ravel_pytree(theta)
    if len(axes) != flat.size:
        raise ValueError(
            f"`axes` must have one entry for each of the {flat.size} numbers of theta; "
            f"got {len(axes)}."
        )
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).astype(np.float32)
    points = jnp.asarray(grid.reshape(-1, flat.size))
    keys = jax.random.split(key, num_runs)
    losses = np.asarray(_mean_losses(system, unravel, horizon, data, points, keys))
    return np.where(np.isnan(losses), np.inf, losses).reshape(grid.shape[:-1])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _mean_losses(
    system: UnrolledSystem,
    unravel: Callable[[Array], Theta],
    horizon: int,
    data: Data,
    points: Float[Array, "points size"],
    keys: PRNGKeyArray,
) -> Float[Array, " points"]:
    def at(point):
        theta = unravel(point)

        def episode(key):
            key_init, key_steps = jax.random.split(key)
            state = system.init_state(theta, data, jnp.asarray(horizon), key_init)
            return unroll(system, data, theta, state, horizon, key_steps)[1].mean()

        return jax.lax.map(episode, keys).mean()

    return jax.lax.map(at, points, batch_size=min(_AT_ONCE, len(points)))
