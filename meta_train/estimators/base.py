"""Abstract base class of meta-gradient estimators.

An estimator object holds hyperparameters only. The system, its data, `theta` and the
state are arguments of pure functions.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, TypeAlias

from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray

from meta_train.core.truncation import Truncation
from tasks.base import Data, State, Theta, UnrolledSystem

Derivatives: TypeAlias = Literal["none", "forward", "reverse"]


class Estimate(struct.PyTreeNode):
    """Meta-gradient estimate.

    Attributes:
        grad: Gradient of the mean loss per step; pytree with the structure of `theta`.
        loss: Mean loss per step over the window.
        diagnostics: Scalars to log, by name.
    """

    grad: Theta
    loss: Float[Array, "..."]
    diagnostics: dict[str, Float[Array, "..."]]


@dataclass(frozen=True)
class GradientEstimator(ABC):
    """Estimator of ``d(mean loss per step)/d(theta)``, one window per update."""

    derivatives: ClassVar[Derivatives]
    """Automatic differentiation mode that the system must support."""
    num_unrolls: ClassVar[int]
    """Trajectories unrolled in parallel by each member of the population."""

    population_field: ClassVar[str]
    """Field of the population size: ``"num_pairs"`` or ``"num_episodes"``."""

    truncation: Truncation
    """Window length and horizon."""
    deterministic: bool = field(default=False, kw_only=True)
    """Make estimates bitwise equal on any number of devices. Members are then unrolled
    sequentially and their estimates are all-gathered."""

    @property
    @abstractmethod
    def is_unbiased(self) -> bool:
        """Whether the expectation is the gradient, for quadratic losses or std -> 0."""

    @property
    def population_size(self) -> int:
        """Length of the leading axis: number of antithetic pairs or episodes."""
        return getattr(self, self.population_field)

    def resized(self, num: int) -> Self:
        """Replace the population size by `num`."""
        return replace(self, **{self.population_field: num})

    @property
    def steps_per_update(self) -> float:
        """Mean number of steps per update of one trajectory; default: one window."""
        return self.truncation.length

    @property
    def num_inner_steps(self) -> float:
        """Inner steps per update, summed over all trajectories of the population."""
        return self.population_size * self.num_unrolls * self.steps_per_update

    @abstractmethod
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        """Initialize the state; every leaf has the population as its leading axis."""

    @abstractmethod
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        """Unroll one window of every member and estimate the meta-gradient.

        Args:
            system: System to unroll.
            data: Output of `system.load`.
            theta: Outer parameters.
            state: Output of `init` or of the previous `update`.
            key: Random key of this update.

        Returns:
            The estimate, averaged over the population, and the new state.
        """
