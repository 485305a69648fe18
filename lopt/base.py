"""Interface of learned optimizers."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

Theta: TypeAlias = PyTree[Array]
NumSteps: TypeAlias = int | Int[Array, ""]


class LearnedOptimizer(ABC):
    """Abstract base class of learned optimizers.

    A learned optimizer is a family of optax optimizers parameterized by the outer
    parameters `theta`. Subclasses hold the hyperparameters of the architecture.
    Meta-training and `lopt.load` use the same `as_optax`, so export needs no
    conversion.
    """

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Sample initial outer parameters."""

    @abstractmethod
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        """Create an optax optimizer from `theta`.

        Args:
            theta: Outer parameters with the structure of `init_theta`.
            num_steps: Number of inner training steps (the horizon).

        Returns:
            An optax gradient transformation that accepts extra arguments.
        """
