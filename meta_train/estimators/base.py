"""Gradient estimators: hyperparameters in the object, the system in the arguments."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, Self, TypeAlias

from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray

from meta_train.truncation import Truncation
from tasks.base import Data, State, Theta, UnrolledSystem

Derivatives: TypeAlias = Literal["none", "forward", "reverse"]


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


@dataclass(frozen=True)
class GradientEstimator(ABC):
    """Estimates d(mean loss)/d(theta), one truncation window at a time."""

    derivatives: ClassVar[Derivatives]
    """What it needs of the system besides the values of its loss."""
    num_unrolls: ClassVar[int]
    """Trajectories that each member unrolls side by side."""

    truncation: Truncation
    """How episodes are cut into windows."""
    deterministic: bool = field(default=False, kw_only=True)
    """Whether estimates are the same, bit by bit, on any number of devices; members
    are then unrolled one after the other, and all of their estimates are gathered."""

    @property
    @abstractmethod
    def is_unbiased(self) -> bool:
        """Whether its mean is the gradient, for quadratic losses or as std -> 0."""

    @property
    @abstractmethod
    def population_size(self) -> int:
        """Length of the leading axis: antithetic pairs, or episodes."""

    def resized(self, num: int) -> Self:
        """Returns the same estimator with a population of `num`."""
        sizes = {"num_pairs", "num_episodes"}
        (name,) = [f.name for f in fields(self) if f.name in sizes]
        return replace(self, **{name: num})

    @property
    def steps_per_update(self) -> float:
        """Steps that each episode moves on by in an update, on average: a window."""
        return self.truncation.length

    @property
    def num_inner_steps(self) -> float:
        """Steps of the system that one update takes, over the whole population."""
        return self.population_size * self.num_unrolls * self.steps_per_update

    @abstractmethod
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        """Returns the state before the first window; every leaf leads with members."""

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
