"""Base class and backpropagation of estimators that differentiate episodes."""

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
    """Estimator with a population of episodes, all unrolled at the same `theta`."""

    derivatives: ClassVar[Derivatives] = "reverse"
    num_unrolls: ClassVar[int] = 1
    population_field: ClassVar[str] = "num_episodes"
    one_by_one: ClassVar[bool] = False
    """Whether to update members sequentially, as their number of steps differs."""

    num_episodes: int = 64
    """Number of episodes in the population."""

    def __post_init__(self):
        check_at_least_one("num_episodes", self.num_episodes)

    @abstractmethod
    def update_episode(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Sample, State]:
        """Unroll and differentiate one window of one episode."""

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        def update(shared, *member):
            return self.update_episode(system, *shared, *member)

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
    """Differentiate the mean per-step loss of an unroll with respect to `theta`.

    Args:
        unroll: Maps `theta` to ``(aux, losses)``.
        theta: Outer parameters.
        mean_length: Number of steps by which the sum of the losses is divided.

    Returns:
        The gradient, the losses before capping by `cap_losses`, and ``aux``.
    """

    def mean_loss(theta):
        rest, losses = unroll(theta)
        return cap_losses(losses)[0].sum() / mean_length, (losses, rest)

    grad, (losses, rest) = jax.grad(mean_loss, has_aux=True)(theta)
    return grad, losses, rest
