"""Anticipated reweighted truncated backprop (Tallec & Ollivier, 2017, 1705.08209)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.episodic import EpisodeEstimator, backprop
from meta_train.estimators.population import make_sample
from tasks.base import State


@dataclass(frozen=True)
class ARTBP(EpisodeEstimator):
    """Backpropagation through a random number of windows, reweighted to be unbiased.

    One update unrolls windows until a random truncation or the end of the episode.
    After ``i`` windows the truncation probability is

        ``c_i = tail / ((tail - 1) * num_windows + i)``,

    and the gradient that passes a window boundary is multiplied by ``1 / (1 - c_i)``.
    Every dependence on past windows is then weighted by one in expectation. An update
    must be able to span a whole episode, since the estimate is biased otherwise.
    """

    one_by_one: ClassVar[bool] = True

    num_windows: float = 4.0
    """Mean number of windows between truncations in a long episode; above 1."""
    tail: float = 2.0
    """Power-law exponent of the number of windows between truncations; above 1."""

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
        """Compute the expected number of inner steps per update.

        By renewal-reward this is the mean horizon over the mean number of updates per
        episode.
        """
        chances = self._chances()
        survival = np.cumprod(np.append(1.0, 1 - chances))
        num_windows = survival[:-1] * chances  # P(truncation after i + 1 windows)
        starts = np.ones(len(chances))  # P(an update starts at window i)
        for i in range(1, len(chances)):
            starts[i] = np.dot(num_windows[:i][::-1], starts[:i])
        updates = np.cumsum(starts)
        mean_updates = sum(
            p * updates[steps // self.truncation.length - 1]
            for steps, p in self.truncation.horizon_probabilities().items()
        )
        return float(self.truncation.mean_horizon() / mean_updates)

    def _chances(self) -> np.ndarray:
        """Compute the probability of truncation after 1, 2, ... windows."""
        num_windows = self.truncation.horizon // self.truncation.length
        since = np.arange(1, num_windows + 1)
        chances = self.tail / ((self.tail - 1) * self.num_windows + since)
        return chances.astype(np.float32)


def _scale_gradient(state: State, scale: Float[Array, ""]) -> State:
    """Scale the gradient backpropagated through `state`; its value is unchanged."""

    def scaled(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x + (scale - 1) * (x - jax.lax.stop_gradient(x))

    return jax.tree.map(scaled, state)
