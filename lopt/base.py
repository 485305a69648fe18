"""A learned optimizer is a family of optax optimizers indexed by `theta`."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

Theta: TypeAlias = PyTree[Array]
NumSteps: TypeAlias = int | Int[Array, ""]


class LearnedOptimizer(ABC):
    """Binds `theta` to give an optax optimizer, so export needs no conversion."""

    @abstractmethod
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        """Samples initial outer parameters."""

    @abstractmethod
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optimizer that `theta` gives for a run of `num_steps` steps."""
