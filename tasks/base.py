"""The two things a zoo entry can be: a `Task` (has a loss) or an `UnrolledSystem`."""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

Data: TypeAlias = PyTree[Array]
Params: TypeAlias = PyTree[Array]
Theta: TypeAlias = PyTree[Array]
State: TypeAlias = PyTree[Array]
Input: TypeAlias = PyTree[Any]
Loss: TypeAlias = Float[Array, ""]
Horizon: TypeAlias = int | Int[Array, ""]


class Task(ABC):
    """An inner problem: parameters to train and a loss to lower."""

    @abstractmethod
    def load(self) -> Data:
        """Returns the arrays that batches are drawn from; ``()`` if there are none."""

    @abstractmethod
    def init_params(self, key: PRNGKeyArray) -> Params:
        """Samples initial parameters."""

    @abstractmethod
    def sample_batch(self, data: Data, key: PRNGKeyArray) -> Input:
        """Samples one training batch from what `load` returned."""

    @abstractmethod
    def loss(self, params: Params, batch: Input) -> Loss:
        """Returns the training loss."""


class UnrolledSystem(ABC):
    """A system ``s_t, l_t = step(theta, s_{t-1}, x_t)``: all that estimators see."""

    @abstractmethod
    def load(self) -> Data:
        """Returns the arrays it needs on the device, once; ``()`` if there are none."""

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Samples initial outer parameters."""

    @abstractmethod
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> State:
        """Returns ``s_0``, the state before an episode of `horizon` steps."""

    @abstractmethod
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        """Samples ``x_t``, seen from ``s_{t-1}``: a batch, a character, or nothing."""

    @abstractmethod
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        """Advances one step and returns ``(s_t, l_t)``."""
