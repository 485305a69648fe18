"""Inner training on parameters that are flattened to one vector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from evaluation.baselines import Baseline
from lopt.base import LearnedOptimizer, NumSteps, Theta
from meta_train.core.inner_training import InnerTraining
from tasks.base import Family, Params
from tasks.size import size

Unravel: TypeAlias = Callable[[Float[Array, " size"]], Params]


def flat_systems(
    task: Family, optimizers: Sequence[LearnedOptimizer]
) -> list[InnerTraining]:
    """Make systems whose parameters are flattened to one vector.

    The update of an elementwise baseline is then compiled once instead of once per
    leaf. Other optimizers are wrapped to unflatten the vector.
    """
    return [
        InnerTraining(
            task,
            optimizer
            if isinstance(optimizer, Baseline) and optimizer.is_pointwise
            else _OfVector(optimizer, unraveler(task)),
        )
        for optimizer in optimizers
    ]


@dataclass(frozen=True)
class _OfVector(LearnedOptimizer):
    """Adapter from flattened parameters to an optimizer that needs the pytree."""

    optimizer: LearnedOptimizer
    unravel: Unravel

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.optimizer.init_theta(key)

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        inner = self.optimizer.as_optax(theta, num_steps)

        def update(updates, state, params=None, **extra_args):
            assert params is not None  # `InnerTraining.apply` always passes them.
            updates, state = inner.update(
                self.unravel(updates), state, self.unravel(params), **extra_args
            )
            return ravel_pytree(updates)[0], state

        return optax.GradientTransformationExtraArgs(
            lambda params: inner.init(self.unravel(params)), update
        )


def unraveler(task: Family) -> Unravel:
    """Make the function from a flat vector to the parameter pytree of a task."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), size(task).params)
    return ravel_pytree(zeros)[1]
