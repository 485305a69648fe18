"""Persistent Evolution Strategies (Vicol et al., 2021, arXiv:2112.13835)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.estimators.population import (
    antithetic,
    check_population,
    draw_noise,
    init_population,
    pair_sample,
    update_population,
)
from meta_train.truncation import Episode, Truncation
from tasks.base import Data, Theta, UnrolledSystem


class PESState(struct.PyTreeNode):
    """One entry per antithetic pair, along the leading axis of every leaf."""

    episode: Episode  # the state's next axis is the partners
    accumulator: Theta  # sum of the pair's perturbations since its episode began


@dataclass(frozen=True)
class PES(GradientEstimator):
    """Unbiased for the Gaussian-smoothed loss, at any truncation length."""

    truncation: Truncation
    num_pairs: int = 64
    """Antithetic pairs in the population; twice as many particles."""
    std: float = 0.01
    """Standard deviation of the perturbations of theta."""

    def __post_init__(self):
        check_population(self.num_pairs, self.std, name="num_pairs")

    @property
    @override
    def population_size(self) -> int:
        return self.num_pairs

    @property
    @override
    def num_inner_steps(self) -> int:
        return 2 * self.num_pairs * self.truncation.length

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> PESState:
        def init_pair(end, key):
            episode = self.truncation.init(system, data, theta, end, key)
            both = lambda x: jnp.stack([x, x])
            return PESState(
                episode=episode.replace(state=jax.tree.map(both, episode.state)),
                accumulator=jax.tree.map(jnp.zeros_like, theta),
            )

        ends = self.truncation.first_ends(self.num_pairs)
        return init_population(init_pair, self.num_pairs, key, ends)

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: PESState,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, PESState]:
        key_noise, key_windows = jax.random.split(key)
        noise = draw_noise(theta, self.num_pairs, self.std, key_noise)

        def update_pair(state, noise, key):
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

        return update_population(update_pair, self.num_pairs, key_windows, state, noise)
