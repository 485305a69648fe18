"""Vectorized episodes of a system, each at its own `theta`, for black-box tuners."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PRNGKeyArray

from meta_train.core.unroll import unroll
from tasks.base import Data, State, Theta, UnrolledSystem


@dataclass(frozen=True)
class OuterProblem:
    """Outer optimization problem: minimize the loss of a system over `theta`.

    The search space is a box around an initial `theta` of the system, or the box
    between `low` and `high`.
    """

    system: UnrolledSystem
    horizon: int
    """Number of steps of an episode."""
    num_windows: int = 10
    """Truncation windows of an episode; a tuner may act after each one."""
    radius: float = 5.0
    """Half the width of the box, in units of `theta`."""
    low: tuple[float, ...] = ()
    """Lower bound of each number of the flattened `theta`; replaces `radius`."""
    high: tuple[float, ...] = ()
    """Upper bounds, as many as `low`."""

    def __post_init__(self):
        if len(self.low) != len(self.high):
            raise ValueError(
                "`low` and `high` must have the same length; got "
                f"{len(self.low)} and {len(self.high)}."
            )
        if self.horizon % self.num_windows:
            raise ValueError(
                "`horizon` must be a multiple of `num_windows`; got "
                f"{self.horizon} and {self.num_windows}."
            )

    @property
    def window(self) -> int:
        """Number of steps in a truncation window."""
        return self.horizon // self.num_windows


class EpisodeBatch:
    """Episodes, possibly at different ages, unrolled together.

    Attributes:
        problem: The outer problem.
        num: Number of slots.
        num_steps: Inner steps so far, summed over slots.
        center: Center of the box, flattened; by default the initial `theta`.
        radii: Half the width of the box in each dimension.
        unravel: Function from a flat vector to the pytree `theta`.
        thetas: Flattened `theta` of each slot, of shape ``(slots, size)``. Tuners
            modify it.
        ages: Windows of each slot's episode so far.
        totals: Sum of the mean losses of these windows.
    """

    def __init__(self, problem: OuterProblem, data: Data, num: int, seed: int):
        """Initialize `num` episodes at the initial `theta` of the system."""
        self.problem, self.num, self.num_steps = problem, num, 0
        self._data, self._count = data, 0
        self._key = jax.random.fold_in(jax.random.key(seed), 2**32 - 5)
        start = problem.system.init_theta(jax.random.key(seed))
        flat, self.unravel = ravel_pytree(start)
        self.center = np.asarray(flat)
        self.radii = np.full_like(self.center, problem.radius)
        if problem.low:
            low, high = np.asarray(problem.low), np.asarray(problem.high)
            self.center = ((low + high) / 2).astype(flat.dtype)
            self.radii = ((high - low) / 2).astype(flat.dtype)
        self.thetas = np.tile(self.center, (num, 1))
        self.ages, self.totals = np.zeros(num, int), np.zeros(num)
        self._states = self._fresh()

    def advance(self) -> Float[np.ndarray, " slots"]:
        """Unroll every slot by one window.

        Returns:
            Mean loss of each slot over the window; infinite if it is NaN.
        """
        keys = jax.random.split(self._next_key(), self.num)
        self._states, losses = _advance(
            *(self.problem.system, self.problem.window, self.unravel),
            *(self._data, jnp.asarray(self.thetas), self._states, keys),
        )
        losses = np.asarray(losses, float)
        losses = np.where(np.isnan(losses), np.inf, losses)
        self.num_steps += self.num * self.problem.window
        self.ages += 1
        self.totals += losses
        return losses

    def restart(self, which: np.ndarray) -> None:
        """Reset some slots to new episodes, at their current `thetas`.

        Args:
            which: Boolean mask of slots.
        """

        def select(new, old):
            return jnp.where(
                jnp.reshape(jnp.asarray(which), (-1,) + (1,) * (new.ndim - 1)), new, old
            )

        self._states = jax.tree.map(select, self._fresh(), self._states)
        self.ages[which], self.totals[which] = 0, 0.0

    def copy(self, source: np.ndarray) -> None:
        """Copy the states and `thetas` of slots, but not their ages and totals.

        Args:
            source: For each slot, the index of the slot to copy from.
        """
        self._states = jax.tree.map(lambda x: x[source], self._states)
        self.thetas = self.thetas[source].copy()

    def clip(self, thetas: np.ndarray) -> np.ndarray:
        """Clamp `thetas` to the box."""
        return np.clip(thetas, self.center - self.radii, self.center + self.radii)

    def theta(self, values: np.ndarray) -> Theta:
        """Unflatten a vector to the pytree `theta`."""
        return self.unravel(jnp.asarray(values, self.center.dtype))

    def _fresh(self) -> State:
        keys = jax.random.split(self._next_key(), self.num)
        return _start(
            *(self.problem.system, self.problem.horizon, self.unravel),
            *(self._data, jnp.asarray(self.thetas), keys),
        )

    def _next_key(self) -> PRNGKeyArray:
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _start(
    system: UnrolledSystem,
    horizon: int,
    unravel: Callable[[Array], Theta],
    data: Data,
    thetas: Float[Array, "slots size"],
    keys: Key[Array, " slots"],
) -> State:
    def begin(theta, key):
        return system.init_state(unravel(theta), data, horizon, key)

    return jax.vmap(begin)(thetas, keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=5)
def _advance(
    system: UnrolledSystem,
    window: int,
    unravel: Callable[[Array], Theta],
    data: Data,
    thetas: Float[Array, "slots size"],
    states: State,
    keys: Key[Array, " slots"],
) -> tuple[State, Float[Array, " slots"]]:
    def one(theta, state, key):
        state, losses = unroll(system, data, unravel(theta), state, window, key)
        return state, losses.mean()

    return jax.vmap(one)(thetas, states, keys)
