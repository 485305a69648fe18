"""Anticipated reweighted truncated backprop (Tallec & Ollivier, 2017, 1705.08209)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.differentiation import EpisodeEstimator, backprop
from meta_train.estimators.population import make_sample
from tasks.base import State


@dataclass(frozen=True)
class ARTBP(EpisodeEstimator):
    """Truncates at random and weights what gets through, so that nothing is lost.

    One update goes through several windows, until a coin says to truncate or the
    episode ends. To be unbiased, it must be able to go through all of them.
    """

    one_by_one: ClassVar[bool] = True

    num_windows: float = 4.0
    """Windows between two truncations, on average, in a long episode."""
    tail: float = 2.0
    """How fast long stretches become rare: a power of their length, above 1."""

    def __post_init__(self):
        EpisodeEstimator.__post_init__(self)
        if not self.num_windows > 1 or not self.tail > 1:
            raise ValueError(
                "`num_windows` and `tail` must be above 1, or every window is cut; got "
                f"num_windows={self.num_windows}, tail={self.tail}. "
                "Try num_windows=4, tail=2."
            )

    @property
    @override
    def is_unbiased(self):
        return True

    @property
    @override
    def steps_per_update(self):
        return self.mean_length()

    @override
    def init_member(self, system, data, theta, end, key):
        return self.truncation.init(system, data, theta, end, key)

    @override
    def update_episode(self, system, data, theta, state, key):
        chances = self._chances()
        key_cut, key_windows = jax.random.split(key)
        cuts = jax.random.uniform(key_cut, chances.shape) < chances
        inputs = (jax.random.split(key_windows, len(chances)), cuts, chances)

        def unroll(theta):
            @jax.checkpoint
            def advance(episode, key):
                return self.truncation.advance(system, data, theta, episode, key)

            def stay(episode, key):
                return episode, jnp.zeros(self.truncation.length)

            def window(carry, inputs):
                episode, is_open = carry
                key, cut, chance = inputs
                episode, losses = jax.lax.cond(is_open, advance, stay, episode, key)
                is_open = is_open & ~cut & ~episode.is_new
                weighted = _scale_gradient(episode.state, 1 / (1 - chance))
                return (episode.replace(state=weighted), is_open), losses

            begin = (state, jnp.asarray(True))
            (following, _), losses = jax.lax.scan(window, begin, inputs)
            return following, losses.reshape(-1)

        mean_length = self.mean_length()
        grad, losses, following = backprop(unroll, theta, mean_length)
        sample = make_sample(grad, losses, mean_length)
        return sample, following.restart_if(sample.diverged)

    def mean_length(self) -> float:
        """Returns the expected steps of an update: of an episode, over its updates."""
        chances = self._chances()
        survival = np.cumprod(np.append(1.0, 1 - chances))
        num_windows = survival[:-1] * chances  # P(cut after this many)
        starts = np.ones(len(chances))  # P(an update starts at this window)
        for i in range(1, len(chances)):
            starts[i] = np.dot(num_windows[:i][::-1], starts[:i])
        updates = np.cumsum(starts)
        mean_updates = sum(
            p * updates[steps // self.truncation.length - 1]
            for steps, p in self.truncation.horizon_probabilities().items()
        )
        return float(self.truncation.mean_horizon() / mean_updates)

    def _chances(self) -> np.ndarray:
        """Returns how likely a cut is after each window since the last one."""
        num_windows = self.truncation.horizon // self.truncation.length
        since = np.arange(1, num_windows + 1)
        chances = self.tail / ((self.tail - 1) * self.num_windows + since)
        return chances.astype(np.float32)


def _scale_gradient(state: State, scale: Float[Array, ""]) -> State:
    """Returns `state` as it is; what is backpropagated through it is scaled."""

    def scaled(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x + (scale - 1) * (x - jax.lax.stop_gradient(x))

    return jax.tree.map(scaled, state)
