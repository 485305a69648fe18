"""Truncated evolution strategies: PES without the accumulator."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from meta_train.estimators.antithetic import PairEstimator, pair_sample


@dataclass(frozen=True)
class TruncatedES(PairEstimator):
    """Antithetic ES within a window, from the state of an unperturbed trajectory.

    The dependence of that state on `theta` is ignored, so the estimate is biased unless
    a window is a whole episode.
    """

    num_unrolls: ClassVar[int] = 3

    @property
    @override
    def is_unbiased(self):
        return self.truncation.is_whole and not self.is_normalized

    @override
    def init_member(self, system, data, theta, end, key):
        return self.truncation.init(system, data, theta, end, key)

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        # The third, unperturbed trajectory gives the state of the next window.
        def three(t, n):
            return jnp.stack([t + n, t - n, t])

        thetas = jax.tree.map(three, theta, noise)

        def advance(theta):
            return self.truncation.advance(system, data, theta, state, key)

        episodes, losses = jax.vmap(advance)(thetas)
        sample = pair_sample(losses[:2], noise, self.std, self.truncation.length)
        following = jax.tree.map(lambda x: x[2], episodes)
        return sample, following.restart_if(sample.diverged)
