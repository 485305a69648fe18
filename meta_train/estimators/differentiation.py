"""What estimators that differentiate share: episodes, and backpropagation."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.base import Derivatives, Estimate, GradientEstimator
from meta_train.estimators.population import (
    Sample,
    cap_losses,
    check_at_least_one,
    init_population,
    update_population,
)
from meta_train.truncation import Truncation
from tasks.base import Data, State, Theta, UnrolledSystem

Rest = TypeVar("Rest")


@dataclass(frozen=True)
class EpisodeEstimator(GradientEstimator):
    """A population of episodes, all at the same theta and at different ages."""

    derivatives: ClassVar[Derivatives] = "reverse"
    num_unrolls: ClassVar[int] = 1
    one_by_one: ClassVar[bool] = False
    """Whether members differ in how much work they are."""

    truncation: Truncation
    num_episodes: int = 64
    """Episodes in the population."""

    def __post_init__(self):
        check_at_least_one("num_episodes", self.num_episodes)

    @property
    @override
    def population_size(self) -> int:
        return self.num_episodes

    @abstractmethod
    def init_episode(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        end: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> State:
        """Returns what is carried before the first episode, which ends at `end`."""

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
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        init = lambda end, key: self.init_episode(system, data, theta, end, key)
        ends = self.truncation.first_ends(self.num_episodes)
        return init_population(init, self.num_episodes, key, ends)

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        update = lambda state, key: self.update_episode(system, data, theta, state, key)
        return update_population(
            update, self.num_episodes, key, state, one_by_one=self.one_by_one
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
