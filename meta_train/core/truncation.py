"""Truncation of episodes into windows.

Horizons are multiples of the window length. Episodes therefore end between outer
updates, and no masking is needed inside a window.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from meta_train.core.unroll import unroll
from meta_train.devices import sharding
from tasks.base import Data, State, Theta, UnrolledSystem


class Episode(struct.PyTreeNode):
    """State and step counter of an episode.

    Attributes:
        state: State of the system after `age` steps.
        age: Number of steps taken; 0 if the next window starts a new episode.
        end: Age at which the episode ends; 0 if it is not drawn yet.
    """

    state: State
    age: Int[Array, "..."]
    end: Int[Array, "..."]

    @property
    def is_new(self) -> Bool[Array, "..."]:
        """Whether the next window starts a new episode."""
        return self.age == 0

    def restart_if(self, condition: Bool[Array, "..."]) -> "Episode":
        """End the episode where `condition` holds; the next window restarts it."""

        def stop(clock):
            return jnp.where(condition, 0, clock)

        return self.replace(age=stop(self.age), end=stop(self.end))


@dataclass(frozen=True)
class Truncation:
    """Window length and horizon; each window gives one outer update."""

    length: int
    """Number of inner steps per truncation window (K in the PES paper)."""
    horizon: int
    """Number of inner steps per episode (T in the PES paper); the maximum if random."""
    min_horizon: int | None = None
    """Minimum horizon: draw horizons log-uniformly up to `horizon`. None: fixed."""
    staggered: bool = True
    """Stagger the starts of episodes, so that every update covers all ages."""

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(
                f"`length` must be at least 1; got {self.length}. Try length=10."
            )
        for name in ("horizon", "min_horizon"):
            steps = getattr(self, name)
            if steps is not None and (steps < 1 or steps % self.length):
                nearest = self.length * max(1, round(steps / self.length))
                raise ValueError(
                    f"`{name}` must be a multiple of `length`, so that episodes end "
                    f"between outer updates; got {name}={steps}, "
                    f"length={self.length}. Try {name}={nearest}."
                )
        if self.min_horizon is not None and self.min_horizon > self.horizon:
            raise ValueError(
                "`min_horizon` must not exceed `horizon`; got "
                f"min_horizon={self.min_horizon}, horizon={self.horizon}. "
                f"Try min_horizon={self.length}."
            )

    @property
    def is_whole(self) -> bool:
        """Whether every window is a whole episode, so that nothing is truncated."""
        return self.length == (self.min_horizon or self.horizon) == self.horizon

    def horizon_probabilities(self) -> dict[int, float]:
        """Compute the probability of each horizon."""
        if self.min_horizon is None:
            return {self.horizon: 1.0}
        low, high = self.min_horizon // self.length, self.horizon // self.length
        whole = math.log((high + 1) / low)
        return {
            n * self.length: math.log((n + 1) / n) / whole for n in range(low, high + 1)
        }

    def mean_horizon(self) -> float:
        """Compute the expected number of steps in an episode."""
        return sum(steps * p for steps, p in self.horizon_probabilities().items())

    def draw_horizon(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """Draw the horizon of one episode."""
        if self.min_horizon is None:
            return jnp.asarray(self.horizon, jnp.int32)
        low, high = self.min_horizon // self.length, self.horizon // self.length
        log = jax.random.uniform(
            key, (), minval=math.log(low), maxval=math.log(high + 1)
        )
        windows = jnp.clip(jnp.floor(jnp.exp(log)), low, high)
        return self.length * windows.astype(jnp.int32)

    def first_ends(self, num_episodes: int) -> Int[Array, " num_episodes"]:
        """Compute the ends of the first episodes; all 0 (full length) if not staggered.

        Staggered first episodes are cut short. Their ends are quantiles of the
        stationary distribution of the remaining time, so the distribution of ages is
        the same at every update.
        """
        if not self.staggered:
            return jnp.zeros(num_episodes, jnp.int32)
        horizons = self.horizon_probabilities()
        windows = np.arange(1, self.horizon // self.length + 1)
        # P(r windows remain) is proportional to P(an episode has at least r windows).
        at_least = np.array(
            [
                sum(p for h, p in horizons.items() if h >= r * self.length)
                for r in windows
            ]
        )
        quantiles = (np.arange(num_episodes) + 0.5) / num_episodes
        left = np.searchsorted(np.cumsum(at_least / at_least.sum()), quantiles)
        return jnp.asarray(self.length * windows[left], jnp.int32)

    def init(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        end: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Episode:
        """Initialize an episode at age 0 that ends at `end`; 0 if it is drawn later.

        The state only fixes shapes and dtypes, since `advance` initializes it again.
        """
        state = system.init_state(theta, data, jnp.asarray(self.horizon), key)
        return Episode(state=state, age=jnp.zeros((), jnp.int32), end=end)

    def init_partners(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        end: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Episode:
        """Initialize an episode of two partners, the leading axis of the state."""
        episode = self.init(system, data, theta, end, key)

        def both(x):
            return jnp.stack([x, x])

        return episode.replace(state=jax.tree.map(both, episode.state))

    def advance(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        episode: Episode,
        key: PRNGKeyArray,
        *,
        length: int | None = None,
    ) -> tuple[Episode, Float[Array, " length"]]:
        """Unroll one window, after initializing a new episode if the last one ended.

        Args:
            system: System to unroll.
            data: Output of `system.load`.
            theta: Outer parameters.
            episode: Episode to advance.
            key: Random key of this window.
            length: Number of steps, to unroll only part of a window. It must divide the
                window length, which is the default.

        Returns:
            The advanced episode and the losses of the steps.
        """
        length = length or self.length
        key_horizon, key_init, key_unroll = jax.random.split(key, 3)
        horizon = self.draw_horizon(key_horizon)
        end = jnp.where(episode.end == 0, horizon, episode.end)
        # Initializing here, rather than when the last episode ended, makes s_0 depend
        # on the current `theta`. A first episode that is cut short still receives a
        # full horizon, as all other episodes do.
        state = jax.lax.cond(
            episode.is_new,
            lambda: system.init_state(theta, data, jnp.maximum(horizon, end), key_init),
            lambda: episode.state,
        )
        state, losses = unroll(system, data, theta, state, length, key_unroll)
        episode = Episode(state=state, age=episode.age + length, end=end)
        return episode.restart_if(episode.age >= end), losses

    def advance_partners(
        self,
        system: UnrolledSystem,
        data: Data,
        thetas: Theta,
        episode: Episode,
        key: PRNGKeyArray,
        *,
        length: int | None = None,
    ) -> tuple[Episode, Float[Array, "partners length"]]:
        """Advance partners, which have separate `theta` and state but a shared clock.

        All partners use the same key and hence the same inputs (common random numbers),
        so their losses differ only because of `theta`.

        Args:
            system: System to unroll.
            data: Output of `system.load`.
            thetas: Outer parameters, with a leading axis of partners.
            episode: Episode whose state has a leading axis of partners.
            key: Random key of this window.
            length: Number of steps, as in `advance`.

        Returns:
            The advanced episode and the losses of each partner.
        """

        def advance(theta, state):
            own = episode.replace(state=state)
            own, losses = self.advance(system, data, theta, own, key, length=length)
            return own.state, losses, (own.age, own.end)

        if sharding.prefer_one_by_one(episode.state):
            states, losses, clocks = jax.lax.map(
                lambda partner: advance(*partner), (thetas, episode.state)
            )
            age, end = (x[0] for x in clocks)
        else:
            over = jax.vmap(advance, out_axes=(0, 0, None))
            states, losses, (age, end) = over(thetas, episode.state)
        return Episode(state=states, age=age, end=end), losses

    def whole_episode(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        key: PRNGKeyArray,
        *,
        remat: bool = False,
    ) -> Float[Array, " horizon"]:
        """Unroll a whole episode; losses beyond its random horizon are set to zero.

        Divide the sum of the losses by `mean_horizon`, not by the horizon of this
        episode, to weight all steps equally rather than all episodes.

        Args:
            system: System to unroll.
            data: Output of `system.load`.
            theta: Outer parameters.
            key: Random key of this episode.
            remat: Rematerialize states in backpropagation, as in `unroll`.
        """
        key_horizon, key_init, key_unroll = jax.random.split(key, 3)
        horizon = self.draw_horizon(key_horizon)
        state = system.init_state(theta, data, horizon, key_init)
        _, losses = unroll(
            system, data, theta, state, self.horizon, key_unroll, remat=remat
        )
        return jnp.where(jnp.arange(self.horizon) < horizon, losses, 0.0)
