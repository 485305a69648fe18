"""Episodes of a system side by side, at thetas of their own: what tuners work with."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PRNGKeyArray

from meta_train.unroll import unroll
from tasks.base import Data, State, Theta, UnrolledSystem


@dataclass(frozen=True)
class Problem:
    """A system whose theta is to be found.

    Theta lies in a box around where meta-training would start.
    """

    system: UnrolledSystem
    horizon: int
    """Steps of an episode."""
    num_windows: int = 10
    """Of an episode, after each of which a tuner may decide."""
    radius: float = 5.0
    """Half the width of the box, in the units of theta."""

    def __post_init__(self):
        if self.horizon % self.num_windows:
            raise ValueError(
                "`horizon` must be a multiple of `num_windows`; got "
                f"{self.horizon} and {self.num_windows}."
            )

    @property
    def window(self) -> int:
        """Steps that a slot is unrolled at once."""
        return self.horizon // self.num_windows


class Slots:
    """Episodes at different ages, unrolled side by side."""

    def __init__(self, problem: Problem, data: Data, num: int, seed: int):
        """Begins `num` episodes at the theta that meta-training would start from."""
        self.problem, self.num, self.num_steps = problem, num, 0
        self._data, self._count = data, 0
        self._key = jax.random.fold_in(jax.random.key(seed), 2**32 - 5)
        start = problem.system.init_theta(jax.random.key(seed))
        self.center, self.unravel = ravel_pytree(start)
        self.thetas = np.tile(np.asarray(self.center), (num, 1))
        self.ages, self.totals = np.zeros(num, int), np.zeros(num)
        self._states = self._fresh()

    def advance(self) -> Float[np.ndarray, " slots"]:
        """Unrolls a window of every slot; returns each one's mean loss in it."""
        keys = jax.random.split(self._next_key(), self.num)
        self._states, losses = _advance(
            *(self.problem.system, self.problem.window, self.unravel),
            *(self._data, jnp.asarray(self.thetas), self._states, keys),
        )
        losses = np.nan_to_num(np.asarray(losses, float), nan=np.inf)
        self.num_steps += self.num * self.problem.window
        self.ages += 1
        self.totals += losses
        return losses

    def restart(self, which: np.ndarray) -> None:
        """Begins new episodes in some slots, at the theta that they have now."""
        choose = lambda new, old: jnp.where(
            jnp.reshape(jnp.asarray(which), (-1,) + (1,) * (new.ndim - 1)), new, old
        )
        self._states = jax.tree.map(choose, self._fresh(), self._states)
        self.ages[which], self.totals[which] = 0, 0.0

    def copy(self, source: np.ndarray) -> None:
        """Lets every slot go on from where the slot that `source` names is."""
        self._states = jax.tree.map(lambda x: x[source], self._states)
        self.thetas = self.thetas[source].copy()

    def clip(self, thetas: np.ndarray) -> np.ndarray:
        """Moves thetas into the box."""
        center, radius = np.asarray(self.center), self.problem.radius
        return np.clip(thetas, center - radius, center + radius)

    def theta(self, values: np.ndarray) -> Theta:
        """Returns a vector in the shape of theta."""
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
    begin = lambda theta, key: system.init_state(unravel(theta), data, horizon, key)
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
