"""What a zoo entry can be: a `Task`, a `Family` of them, or an `UnrolledSystem`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from typing_extensions import override

Data: TypeAlias = PyTree[Array]
Params: TypeAlias = PyTree[Array]
Theta: TypeAlias = PyTree[Array]
State: TypeAlias = PyTree[Array]
Input: TypeAlias = PyTree[Any]
Loss: TypeAlias = Float[Array, ""]
Constants: TypeAlias = PyTree[Any]
Horizon: TypeAlias = int | Int[Array, ""]
Split: TypeAlias = Literal["train", "validation", "test"]


class Problem(NamedTuple):
    """What inner training sees of a task: four functions, and one that may be missing.

    Attributes:
        init_params: ``key -> params``, the parameters before training.
        sample_batch: ``(data, key) -> batch``.
        loss: ``(params, batch) -> loss``, what training lowers.
        measure: ``(params, batch) -> loss``, how well it does; `loss`, unless training
            is given something else to lower.
        error: ``(params, batch) -> share of mistakes``, for classifiers.
    """

    init_params: Callable[[PRNGKeyArray], Params]
    sample_batch: Callable[[Data, PRNGKeyArray], Input]
    loss: Callable[[Params, Input], Loss]
    measure: Callable[[Params, Input], Loss]
    error: Callable[[Params, Input], Loss] | None = None


class Family(ABC):
    """Inner problems that differ in constants, which are drawn for every episode."""

    @abstractmethod
    def load(self, split: Split = "train") -> Data:
        """Returns the arrays that batches are drawn from; ``()`` if there are none."""

    @abstractmethod
    def draw(self, key: PRNGKeyArray) -> Constants:
        """Draws what one problem has of its own."""

    @abstractmethod
    def at(self, constants: Constants) -> Problem:
        """Returns the problem that has these constants."""


class Task(Family):
    """An inner problem: parameters to train and a loss to lower. A family of one."""

    @abstractmethod
    def init_params(self, key: PRNGKeyArray) -> Params:
        """Samples initial parameters."""

    @abstractmethod
    def sample_batch(self, data: Data, key: PRNGKeyArray) -> Input:
        """Samples one batch from what `load` returned."""

    @abstractmethod
    def loss(self, params: Params, batch: Input) -> Loss:
        """Returns the training loss."""

    @override
    def draw(self, key: PRNGKeyArray) -> Constants:
        return ()

    @override
    def at(self, constants: Constants) -> Problem:
        return Problem(self.init_params, self.sample_batch, self.loss, self.loss)


class Searchable(Family):
    """A family that theta has a part for, besides the optimizer's."""

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Samples that part."""

    @abstractmethod
    def with_theta(self, theta: Theta) -> Family:
        """Returns the family at that part."""


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
