"""An MLP of which theta says how many hidden units are used."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.augmentation import Augmentation
from tasks.base import Constants, Family, Input, Params, Problem, Searchable
from tasks.mlp import MLP
from tasks.supervised import Activation


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
class MaskedMLP(MLP, Searchable):
    """Theta has one number for each hidden layer: behind a sigmoid, the share in use.

    The last unit in use counts in part, so that the share has a slope.
    """

    width: int = 100
    """Units in each hidden layer, used or not."""

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
        """Returns ones for the units in use, and zeros."""
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
    def at(self, constants: Constants) -> Problem:
        return self.change(self.task.at(constants), ())

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        masks = self.task.masks(self.theta)

        def masked(function):
            def call(params: Params, batch: Input):
                return function({**params, "masks": masks}, batch)

            return call

        loss = masked(problem.loss)
        error = problem.error and masked(problem.error)
        return problem._replace(loss=loss, measure=loss, error=error)
