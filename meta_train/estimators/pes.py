"""Persistent Evolution Strategies (Vicol et al., 2021, arXiv:2112.13835)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from typing_extensions import override

from meta_train.estimators.evolution import (
    PairEstimator,
    antithetic,
    pair_sample,
)
from meta_train.truncation import Episode
from tasks.base import Theta


class PESState(struct.PyTreeNode):
    """What a pair carries from window to window."""

    episode: Episode  # its state leads with the two partners
    accumulator: Theta  # sum of the pair's perturbations since its episode began


@dataclass(frozen=True)
class PES(PairEstimator):
    """Weights losses by all noise of their episode: unbiased at any window length."""

    @property
    @override
    def is_unbiased(self):
        return not self.is_normalized

    @override
    def init_member(self, system, data, theta, end, key):
        episode = self.truncation.init_partners(system, data, theta, end, key)
        return PESState(
            episode=episode,
            accumulator=jax.tree.map(jnp.zeros_like, theta),
        )

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        accumulator = jax.tree.map(
            lambda a, n: jnp.where(state.episode.is_new, n, a + n),
            state.accumulator,
            noise,
        )
        episode, losses = self.truncation.advance_partners(
            system, data, antithetic(theta, noise), state.episode, key
        )
        sample = pair_sample(losses, accumulator, self.std, self.truncation.length)
        episode = episode.restart_if(sample.diverged)
        return sample, PESState(episode=episode, accumulator=accumulator)
