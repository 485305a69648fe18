"""MLP whose number of active hidden units is an outer parameter."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Constants, Family, Input, ParameterizedFamily, Params, Problem
from tasks.families.augmentation import Augmentation
from tasks.supervised.base import Activation
from tasks.supervised.mlp import MLP


class _Network(nn.Module):
    widths: tuple[int, ...]
    num_outputs: int
    activation: Activation

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n ..."]) -> Float[Array, "n outputs"]:
        x = x.reshape(len(x), -1)
        for i, width in enumerate(self.widths):
            mask = self.get_variable("masks", f"layer_{i}", jnp.ones(width))
            x = mask[None] * getattr(nn, self.activation)(nn.Dense(width)(x))
        return nn.Dense(self.num_outputs)(x)


@dataclass(frozen=True)
class MaskedMLP(MLP, ParameterizedFamily):
    """MLP with a learned number of active units in each hidden layer.

    The outer parameters are one logit per hidden layer. ``sigmoid(theta_i)`` is the
    fraction of active units in layer ``i``. The last active unit has a fractional mask,
    so that the loss has a gradient with respect to `theta`.
    """

    width: int = 100
    """Units in each hidden layer, active or masked."""

    @property
    @override
    def network(self) -> nn.Module:
        return _Network((self.width,) * self.depth, self.num_outputs, self.activation)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, " depth"]:
        low, high = jax.scipy.special.logit(jnp.asarray([0.2, 0.8]))
        return jax.random.uniform(key, (self.depth,), minval=low, maxval=high)

    @override
    def with_theta(self, theta: Float[Array, " depth"]) -> Family:
        return _Masked(self, theta)

    def masks(self, theta: Float[Array, " depth"]) -> dict[str, Array]:
        """Compute the mask of each hidden layer, of shape ``(width,)``.

        ``mask_ij = clip(width * sigmoid(theta_i) - j, 0, 1)`` for unit ``j`` of layer
        ``i``.
        """
        in_use = (
            self.width * jax.nn.sigmoid(theta)[:, None] - jnp.arange(self.width)[None]
        )
        rows = jnp.clip(in_use, 0.0, 1.0)
        return {f"layer_{i}": row for i, row in enumerate(rows)}


@dataclass(frozen=True, eq=False)
class _Masked(Augmentation):
    task: MaskedMLP
    theta: Float[Array, " depth"]

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return ()

    @override
    def problem(self, constants: Constants) -> Problem:
        return self.augment(self.task.problem(constants), ())

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        masks = self.task.masks(self.theta)

        def masked(function):
            def call(params: Params, batch: Input):
                return function({**params, "masks": masks}, batch)

            return call

        loss = masked(problem.loss)
        error = problem.error and masked(problem.error)
        return problem._replace(loss=loss, measure=None, error=error)
