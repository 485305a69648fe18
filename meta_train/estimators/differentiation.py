"""What estimators that differentiate share: episodes, and backpropagation."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import jax
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.base import Derivatives, Estimate
from meta_train.estimators.population import (
    PopulationEstimator,
    Sample,
    cap_losses,
    check_at_least_one,
    update_population,
)
from tasks.base import Data, State, Theta, UnrolledSystem

Rest = TypeVar("Rest")


@dataclass(frozen=True)
class EpisodeEstimator(PopulationEstimator):
    """A population of episodes, all at the same theta and at different ages."""

    derivatives: ClassVar[Derivatives] = "reverse"
    num_unrolls: ClassVar[int] = 1
    one_by_one: ClassVar[bool] = False
    """Whether members differ in how much work they are."""

    num_episodes: int = 64
    """Episodes in the population."""

    def __post_init__(self):
        check_at_least_one("num_episodes", self.num_episodes)

    @property
    @override
    def population_size(self) -> int:
        return self.num_episodes

    @abstractmethod
    def update_episode(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Sample, State]:
        """Unrolls one window of an episode and differentiates it."""

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        update = lambda shared, *member: self.update_episode(system, *shared, *member)
        return update_population(
            update,
            self.num_episodes,
            key,
            (data, theta),
            state,
            one_by_one=self.one_by_one,
            deterministic=self.deterministic,
        )


def backprop(
    unroll: Callable[[Theta], tuple[Rest, Float[Array, " length"]]],
    theta: Theta,
    mean_length: int | float,
) -> tuple[Theta, Float[Array, " length"], Rest]:
    """Differentiates the mean of the losses that `unroll` returns.

    Returns the gradient, the losses as they came, and the rest that was returned.
    """

    def mean_loss(theta):
        rest, losses = unroll(theta)
        return cap_losses(losses)[0].sum() / mean_length, (losses, rest)

    grad, (losses, rest) = jax.grad(mean_loss, has_aux=True)(theta)
    return grad, losses, rest
