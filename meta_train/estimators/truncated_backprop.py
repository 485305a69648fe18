"""Truncated backpropagation through time."""

from dataclasses import dataclass

import jax
from jaxtyping import PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.estimators.population import (
    cap_losses,
    check_population,
    init_population,
    make_sample,
    update_population,
)
from meta_train.truncation import Episode, Truncation
from tasks.base import Data, Theta, UnrolledSystem


@dataclass(frozen=True)
class TruncatedBackprop(GradientEstimator):
    """Exact within a window, blind beyond it: biased unless length == horizon."""

    truncation: Truncation
    num_episodes: int = 64
    """Episodes in the population."""

    def __post_init__(self):
        check_population(self.num_episodes, name="num_episodes")

    @property
    @override
    def population_size(self) -> int:
        return self.num_episodes

    @property
    @override
    def num_inner_steps(self) -> int:
        return self.num_episodes * self.truncation.length

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> Episode:
        def init_episode(end, key):
            return self.truncation.init(system, data, theta, end, key)

        ends = self.truncation.first_ends(self.num_episodes)
        return init_population(init_episode, self.num_episodes, key, ends)

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: Episode,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, Episode]:
        def update_episode(episode, key):
            def mean_loss(theta):
                following, losses = self.truncation.advance(
                    system, data, theta, episode, key
                )
                return cap_losses(losses)[0].mean(), (following, losses)

            grad, (following, losses) = jax.grad(mean_loss, has_aux=True)(theta)
            sample = make_sample(grad, losses, self.truncation.length)
            return sample, following.restart_if(sample.diverged)

        return update_population(update_episode, self.num_episodes, key, state)
