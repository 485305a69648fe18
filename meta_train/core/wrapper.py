"""Base class of systems that wrap another system."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import PRNGKeyArray
from typing_extensions import override

from tasks.base import (
    Data,
    Family,
    Horizon,
    Input,
    State,
    Theta,
    UnrolledSystem,
)


@dataclass(frozen=True)
class SystemWrapper(UnrolledSystem):
    """System that shares data and outer parameters with another system.

    Its state is that of the other system. Subclasses with a state of their own override
    `init_state` and `sample_input`.
    """

    system: UnrolledSystem
    """Wrapped system."""

    @override
    def load(self) -> Data:
        return self.system.load()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.system.init_theta(key)

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> State:
        return self.system.init_state(theta, data, horizon, key)

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        return self.system.sample_input(data, state, key)

    @property
    @override
    def theta_owner(self) -> Any:
        return self.system.theta_owner

    @property
    @override
    def zoo_problem(self) -> Family | UnrolledSystem:
        return self.system.zoo_problem

    @property
    @override
    def learned_optimizer(self) -> Any:
        return self.system.learned_optimizer
