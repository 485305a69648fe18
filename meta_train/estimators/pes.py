"""Persistent evolution strategies (Vicol et al., 2021, arXiv:2112.13835)."""

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


class PESState(struct.PyTreeNode):
    """State of a pair between windows.

    Attributes:
        episode: Episode whose state has the two partners as its leading axis.
        accumulator: Sum of the perturbations since the start of the episode.
    """

    episode: Episode
    accumulator: Theta


@dataclass(frozen=True)
class PES(PairEstimator):
    """Persistent evolution strategies gradient estimator.

    Every window draws new noise ``eps_i``, and its losses are weighted by the
    accumulator ``xi_i = eps_1 + ... + eps_i`` of the episode:

        ``grad = xi_i (loss_pos - loss_neg) / (2 std^2)``.

    The estimate is unbiased for any window length.
    """

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
