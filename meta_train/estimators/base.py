"""Gradient estimators: hyperparameters in the object, the system in the arguments."""

from abc import ABC, abstractmethod

from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray

from meta_train.truncation import Truncation
from tasks.base import Data, State, Theta, UnrolledSystem


class Estimate(struct.PyTreeNode):
    """An estimate of the outer gradient.

    Attributes:
        grad: Gradient of the mean loss per step, with the structure of `theta`.
        loss: Mean loss per step over the window.
        diagnostics: Scalars to log, by name.
    """

    grad: Theta
    loss: Float[Array, "..."]
    diagnostics: dict[str, Float[Array, "..."]]


class GradientEstimator(ABC):
    """Estimates d(mean loss)/d(theta), one truncation window at a time."""

    truncation: Truncation

    @property
    @abstractmethod
    def population_size(self) -> int:
        """Length of the leading axis: antithetic pairs, or episodes."""

    @property
    @abstractmethod
    def num_inner_steps(self) -> int:
        """Steps of the system that one update takes, over the whole population."""

    @abstractmethod
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        """Returns the state before the first window; every leaf leads with pairs."""

    @abstractmethod
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        """Unrolls one window and returns the gradient estimate and the new state."""
