"""Abstract base classes: `Task`, `Family` of tasks and `UnrolledSystem`."""

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
    """Inner problem as a tuple of pure functions.

    Attributes:
        init_params: ``key -> params``. Samples the initial inner parameters.
        sample_batch: ``(data, key) -> batch``. Samples a batch from loaded data.
        loss: ``(params, batch) -> loss``. The scalar that inner training minimizes.
        measure: ``(params, batch) -> loss``. The scalar that is reported and enters the
            meta-loss. `None` if it is `loss`, that is unless an augmentation modifies
            the training loss.
        error: ``(params, batch) -> error rate`` in [0, 1], for classification and
            next-token prediction. `None` for other problems.
    """

    init_params: Callable[[PRNGKeyArray], Params]
    sample_batch: Callable[[Data, PRNGKeyArray], Input]
    loss: Callable[[Params, Input], Loss]
    measure: Callable[[Params, Input], Loss] | None = None
    error: Callable[[Params, Input], Loss] | None = None

    @property
    def reported(self) -> Callable[[Params, Input], Loss]:
        """`measure`, or `loss` if there is none."""
        return self.loss if self.measure is None else self.measure


class Family(ABC):
    """Distribution over inner problems, indexed by random constants.

    The constants are drawn once per episode. All problems of a family share their
    shapes, so that one compiled program serves all of them.
    """

    @abstractmethod
    def load(self, split: Split = "train") -> Data:
        """Load the arrays that batches are drawn from, or ``()`` if there are none."""

    @abstractmethod
    def sample_constants(self, key: PRNGKeyArray) -> Constants:
        """Draw the constants of one problem."""

    @abstractmethod
    def problem(self, constants: Constants) -> Problem:
        """Build the problem with the given constants."""


class Task(Family):
    """Single inner problem: a family without random constants."""

    @abstractmethod
    def init_params(self, key: PRNGKeyArray) -> Params:
        """Sample the initial inner parameters."""

    @abstractmethod
    def sample_batch(self, data: Data, key: PRNGKeyArray) -> Input:
        """Sample one batch from the arrays that `load` returned."""

    @abstractmethod
    def loss(self, params: Params, batch: Input) -> Loss:
        """Compute the scalar training loss on one batch."""

    @override
    def sample_constants(self, key: PRNGKeyArray) -> Constants:
        return ()

    @override
    def problem(self, constants: Constants) -> Problem:
        return Problem(self.init_params, self.sample_batch, self.loss)


class ParameterizedFamily(Family):
    """Family with its own outer parameters, meta-trained with the optimizer's."""

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Sample initial outer parameters of the family."""

    @abstractmethod
    def with_theta(self, theta: Theta) -> Family:
        """Build the family for the given outer parameters of the family."""


class UnrolledSystem(ABC):
    """Unrolled computation graph ``s_t, l_t = step(theta, s_{t-1}, x_t)``.

    This is the interface between gradient estimators and inner training. The state and
    the input are pytrees with static shapes.
    """

    @abstractmethod
    def load(self) -> Data:
        """Load the arrays that the system needs on the device, or ``()`` for none."""

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Sample initial outer parameters."""

    @abstractmethod
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> State:
        """Initialize ``s_0``, the state before an episode of `horizon` steps."""

    @abstractmethod
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        """Sample the input ``x_t``, for example a batch, given ``s_{t-1}``."""

    @abstractmethod
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        """Advance the system by one step to ``(s_t, l_t)``."""

    @property
    def theta_owner(self) -> Any:
        """Object that defines `theta`; systems with equal owners can share `theta`."""
        return self

    @property
    def zoo_problem(self) -> "Family | UnrolledSystem":
        """Task, family or system by which metrics and figures name this system."""
        return self

    @property
    def learned_optimizer(self) -> Any:
        """Learned optimizer to export, or `None` if `theta` belongs to none."""
        return None
