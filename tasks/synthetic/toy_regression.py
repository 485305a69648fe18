"""Toy 2D regression of the PES paper (Vicol et al., 2021, arXiv:2112.13835)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Loss, Split, Task


@dataclass(frozen=True)
class ToyRegression(Task):
    """Two-parameter loss surface with many local minima before the global minimum.

    ``sqrt(x^2 + 5) - sqrt(5) + sin(y)^2 exp(-5 x^2) + |y - 100| / 4``, from the initial
    point ``(1, 1)``. The loss is deterministic.
    """

    @override
    def load(self, split: Split = "train") -> Data:
        return ()

    @override
    def init_params(self, key: PRNGKeyArray) -> Float[Array, "2"]:
        return jnp.ones(2, jnp.float32)

    @override
    def sample_batch(self, data: Data, key: PRNGKeyArray) -> None:
        return None

    @override
    def loss(self, params: Float[Array, "2"], batch: None) -> Loss:
        x, y = params
        bowl = jnp.sqrt(x**2 + 5) - jnp.sqrt(5.0)
        ripples = jnp.sin(y) ** 2 * jnp.exp(-5 * x**2)
        return bowl + ripples + 0.25 * jnp.abs(y - 100)
