"""Random quadratics: a chosen spectrum in a random basis, seen through noise."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Loss, Task


@dataclass(frozen=True)
class RandomQuadratic(Task):
    """``0.5 (x - b)' A (x - b)`` where ``b`` is drawn afresh for each batch."""

    dim: int = 16
    """Number of parameters."""
    condition: float = 100.0
    """Largest eigenvalue over smallest; they are spaced evenly in the logarithm."""
    noise_std: float = 0.1
    """Standard deviation of the minimum from batch to batch."""
    seed: int = 0
    """Fixes the basis."""

    def __post_init__(self):
        if self.dim < 1 or self.condition < 1:
            raise ValueError(
                "`dim` and `condition` must be at least 1; got "
                f"dim={self.dim}, condition={self.condition}. Try condition=100."
            )

    @override
    def load(self) -> Float[Array, "dim dim"]:
        """Returns ``A``, whose largest eigenvalue is 1."""
        normal = jax.random.normal(jax.random.key(self.seed), (self.dim, self.dim))
        basis, _ = jnp.linalg.qr(normal)
        eigenvalues = jnp.geomspace(1.0, 1.0 / self.condition, self.dim)
        return (basis * eigenvalues[None, :]) @ basis.T

    @override
    def init_params(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return jax.random.normal(key, (self.dim,))

    @override
    def sample_batch(
        self, data: Float[Array, "dim dim"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "dim dim"], Float[Array, " dim"]]:
        return data, self.noise_std * jax.random.normal(key, (self.dim,))

    @override
    def loss(
        self,
        params: Float[Array, " dim"],
        batch: tuple[Float[Array, "dim dim"], Float[Array, " dim"]],
    ) -> Loss:
        matrix, minimum = batch
        distance = params - minimum
        return 0.5 * distance @ matrix @ distance
