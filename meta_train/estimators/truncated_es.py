"""Truncated ES: PES without memory, hence biased."""

from dataclasses import dataclass

import jax
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


@dataclass(frozen=True)
class TruncatedES(GradientEstimator):
    """Perturbs each window afresh, from a state that was never perturbed.

    Blind to how theta shaped that state: biased unless length == horizon.
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
        return 3 * self.num_pairs * self.truncation.length

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> Episode:
        def init_pair(end, key):
            return self.truncation.init(system, data, theta, end, key)

        ends = self.truncation.first_ends(self.num_pairs)
        return init_population(init_pair, self.num_pairs, key, ends)

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: Episode,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, Episode]:
        key_noise, key_windows = jax.random.split(key)
        noise = draw_noise(theta, self.num_pairs, self.std, key_noise)

        def update_pair(episode, noise, key):
            def advance(theta):
                return self.truncation.advance(system, data, theta, episode, key)

            pair = antithetic(theta, noise)
            losses = jax.vmap(lambda theta: advance(theta)[1])(pair)
            sample = pair_sample(losses, noise, self.std, self.truncation.length)
            following, _ = advance(theta)
            return sample, following.restart_if(sample.diverged)

        return update_population(update_pair, self.num_pairs, key_windows, state, noise)
