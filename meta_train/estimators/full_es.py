"""Evolution strategies on whole episodes: unbiased, one update per episode."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.estimators.population import (
    antithetic,
    check_population,
    draw_noise,
    pair_sample,
    update_population,
)
from meta_train.truncation import Truncation
from meta_train.unroll import unroll
from tasks.base import Data, Theta, UnrolledSystem


@dataclass(frozen=True)
class FullES(GradientEstimator):
    """Unrolls whole episodes under one perturbation each.

    Only the horizons of `truncation` matter; its windows do not.
    """

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
        return 2 * self.num_pairs * self.truncation.horizon

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> tuple[()]:
        return ()

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: tuple[()],
        key: PRNGKeyArray,
    ) -> tuple[Estimate, tuple[()]]:
        longest = self.truncation.horizon
        key_noise, key_episodes = jax.random.split(key)
        noise = draw_noise(theta, self.num_pairs, self.std, key_noise)

        def update_pair(noise, key):
            key_horizon, key_init, key_unroll = jax.random.split(key, 3)
            horizon = self.truncation.draw_horizon(key_horizon)

            def episode(theta):
                start = system.init_state(theta, data, horizon, key_init)
                return unroll(system, data, theta, start, longest, key_unroll)[1]

            # Steps past a shorter horizon are not part of the episode. Dividing by
            # the mean horizon weights every step alike, not every episode.
            within = jnp.arange(longest) < horizon
            pair = antithetic(theta, noise)
            losses = jnp.where(within[None, :], jax.vmap(episode)(pair), 0.0)
            mean_horizon = self.truncation.mean_horizon()
            return pair_sample(losses, noise, self.std, mean_horizon), ()

        return update_population(update_pair, self.num_pairs, key_episodes, noise)
