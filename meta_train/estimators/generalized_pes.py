"""Generalized persistent evolution strategies (Li et al., 2023, arXiv:2304.12180)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from typing_extensions import override

from meta_train.core.truncation import Episode
from meta_train.estimators.antithetic import (
    PairEstimator,
    antithetic,
    draw_noise,
    pair_sample,
)
from meta_train.estimators.population import check_at_least_one, merge
from tasks.base import Theta


class GeneralizedPESState(struct.PyTreeNode):
    """State of a pair between windows.

    Attributes:
        episode: Episode whose state has the two partners as its leading axis.
        noise: Current perturbation.
        accumulator: Sum of the perturbations since the start of the episode.
    """

    episode: Episode
    noise: Theta
    accumulator: Theta


@dataclass(frozen=True)
class GeneralizedPES(PairEstimator):
    """PES that draws new noise every `period` steps, whatever the window length.

    It interpolates between PES (new noise for every window) and noise-reuse ES (new
    noise for every episode).
    """

    period: int = 50
    """Number of inner steps that share one perturbation (M in the paper)."""

    def __post_init__(self):
        PairEstimator.__post_init__(self)
        check_at_least_one("period", self.period)

    @property
    @override
    def is_unbiased(self):
        return not self.is_normalized

    @override
    def init_member(self, system, data, theta, end, key):
        episode = self.truncation.init_partners(system, data, theta, end, key)
        zeros = jax.tree.map(jnp.zeros_like, theta)
        return GeneralizedPESState(
            episode=episode,
            noise=zeros,
            accumulator=zeros,
        )

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        # Noise changes only at multiples of `period`, so it is constant within each
        # part of this length.
        length = math.gcd(self.period, self.truncation.length)
        num_parts = self.truncation.length // length

        def part(state, inputs):
            fresh, key = inputs
            episode = state.episode
            is_due = episode.age % self.period == 0
            noise = jax.tree.map(
                lambda new, old: jnp.where(is_due, new, old), fresh, state.noise
            )
            accumulator = jax.tree.map(
                lambda a, n: jnp.where(episode.is_new, n, jnp.where(is_due, a + n, a)),
                state.accumulator,
                noise,
            )
            episode, losses = self.truncation.advance_partners(
                system, data, antithetic(theta, noise), episode, key, length=length
            )
            sample = pair_sample(losses, accumulator, self.std, length)
            episode = episode.restart_if(sample.diverged)
            return GeneralizedPESState(episode, noise, accumulator), sample

        if num_parts == 1:
            state, sample = part(state, (noise, key))
            return sample, state
        key_noise, key_parts = jax.random.split(key)
        noises = draw_noise(theta, num_parts, self.std, key_noise)
        keys = jax.random.split(key_parts, num_parts)
        state, samples = jax.lax.scan(part, state, (noises, keys))
        return merge(samples), state
