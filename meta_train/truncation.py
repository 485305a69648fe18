"""Truncation: an episode of many steps is unrolled one window at a time.

Windows tile episodes: horizons are multiples of the window length, so an episode
ends between outer updates and nothing inside a window needs a mask.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from meta_train import sharding
from meta_train.unroll import unroll
from tasks.base import Data, State, Theta, UnrolledSystem


class Episode(struct.PyTreeNode):
    """A system's state and its clock.

    Attributes:
        state: The system's state, after `age` steps.
        age: Steps taken; 0 if the next window starts a new episode.
        end: The age at which the episode ends; 0 if that is still to be drawn.
    """

    state: State
    age: Int[Array, "..."]
    end: Int[Array, "..."]

    @property
    def is_new(self) -> Bool[Array, "..."]:
        """Whether the next window starts a new episode."""
        return self.age == 0

    def restart_if(self, condition: Bool[Array, "..."]) -> "Episode":
        """Returns the episode, over at once where `condition` holds."""
        stop = lambda clock: jnp.where(condition, 0, clock)
        return self.replace(age=stop(self.age), end=stop(self.end))


@dataclass(frozen=True)
class Truncation:
    """Cuts episodes into windows; each window gives one outer update."""

    length: int
    """Steps in a window (K in the PES paper)."""
    horizon: int
    """Steps in an episode (T in the PES paper), the longest if they are random."""
    min_horizon: int | None = None
    """If given, horizons are random: log-uniform between this and `horizon`."""
    staggered: bool = True
    """Whether episodes start at different times, so that updates see all ages."""

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
        """Whether a window is a whole episode, so that truncating it cuts nothing."""
        return self.length == (self.min_horizon or self.horizon) == self.horizon

    def horizon_probabilities(self) -> dict[int, float]:
        """Returns how likely each horizon is."""
        if self.min_horizon is None:
            return {self.horizon: 1.0}
        low, high = self.min_horizon // self.length, self.horizon // self.length
        whole = math.log((high + 1) / low)
        return {
            n * self.length: math.log((n + 1) / n) / whole for n in range(low, high + 1)
        }

    def mean_horizon(self) -> float:
        """Returns the expected number of steps in an episode."""
        return sum(steps * p for steps, p in self.horizon_probabilities().items())

    def draw_horizon(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """Draws the length of one episode."""
        if self.min_horizon is None:
            return jnp.asarray(self.horizon, jnp.int32)
        low, high = self.min_horizon // self.length, self.horizon // self.length
        log = jax.random.uniform(
            key, (), minval=math.log(low), maxval=math.log(high + 1)
        )
        windows = jnp.clip(jnp.floor(jnp.exp(log)), low, high)
        return self.length * windows.astype(jnp.int32)

    def first_ends(self, num_episodes: int) -> Int[Array, " num_episodes"]:
        """Returns when each of the first episodes ends; 0 for a whole one.

        Staggered ones are cut short so that later episodes are spread evenly: their
        ends are the quantiles of the time left in a running population, which from
        then on looks the same at every update.
        """
        if not self.staggered:
            return jnp.zeros(num_episodes, jnp.int32)
        horizons = self.horizon_probabilities()
        windows = np.arange(1, self.horizon // self.length + 1)
        # P(r windows are left) is proportional to P(an episode has at least r).
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
        """Returns an episode that has not started and will end at `end`."""
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
        """Returns the same for two partners, along a leading axis of the state."""
        episode = self.init(system, data, theta, end, key)
        both = lambda x: jnp.stack([x, x])
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
        """Unrolls one window, starting a new episode first if the last one is over.

        A part of a window, if `length` is given: it must divide the window's.
        """
        length = length or self.length
        key_horizon, key_init, key_unroll = jax.random.split(key, 3)
        horizon = self.draw_horizon(key_horizon)
        end = jnp.where(episode.end == 0, horizon, episode.end)
        # Starting here, not when the last episode ended, lets s_0 see this `theta`.
        # An episode that is cut short is told the whole horizon, as all others are.
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
        """Advances partners, which have a theta and a state each and share one clock.

        One key: they see the same data, so their difference is theta's alone.
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
        """Unrolls an episode from start to end; losses past its end are zero.

        Their sum is to be divided by the mean horizon, which weights every step
        alike, not every episode.
        """
        key_horizon, key_init, key_unroll = jax.random.split(key, 3)
        horizon = self.draw_horizon(key_horizon)
        state = system.init_state(theta, data, horizon, key_init)
        _, losses = unroll(
            system, data, theta, state, self.horizon, key_unroll, remat=remat
        )
        return jnp.where(jnp.arange(self.horizon) < horizon, losses, 0.0)
