"""Noise-reuse evolution strategies (Li et al., 2023, arXiv:2304.12180).

The same estimator is known as ES-Single (Vicol, 2023).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from typing_extensions import override

from meta_train.core.truncation import Episode
from meta_train.estimators.antithetic import (
    PairEstimator,
    antithetic,
    pair_sample,
)
from tasks.base import Theta


class NoiseReuseState(struct.PyTreeNode):
    """State of a pair between windows.

    Attributes:
        episode: Episode whose state has the two partners as its leading axis.
        noise: Perturbation of this episode.
    """

    episode: Episode
    noise: Theta


@dataclass(frozen=True)
class NoiseReuseES(PairEstimator):
    """Full ES evaluated one window at a time, with one perturbation per episode."""

    @property
    @override
    def is_unbiased(self):
        return not self.is_normalized

    @override
    def init_member(self, system, data, theta, end, key):
        episode = self.truncation.init_partners(system, data, theta, end, key)
        return NoiseReuseState(
            episode=episode,
            noise=jax.tree.map(jnp.zeros_like, theta),
        )

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        def renew(new, old):
            return jnp.where(state.episode.is_new, new, old)

        noise = jax.tree.map(renew, noise, state.noise)
        episode, losses = self.truncation.advance_partners(
            system, data, antithetic(theta, noise), state.episode, key
        )
        sample = pair_sample(losses, noise, self.std, self.truncation.length)
        episode = episode.restart_if(sample.diverged)
        return sample, NoiseReuseState(episode=episode, noise=noise)
