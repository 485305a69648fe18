"""Noisy random quadratics with a given spectrum and a random eigenbasis."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Constants, Data, Family, Loss, Problem, Split, Task
from tasks.ops.orthogonal import orthogonal


@dataclass(frozen=True)
class RandomQuadratic(Task):
    """Noisy quadratic ``0.5 (x - b)' A (x - b)`` with ``b`` drawn for each batch.

    ``b`` is Gaussian with mean 0 and standard deviation `noise_std`. ``A`` is fixed.
    """

    dim: int = 16
    """Number of parameters."""
    condition: float = 100.0
    """Condition number of ``A``. The eigenvalues are log-spaced."""
    noise_std: float = 0.1
    """Standard deviation of the minimizer ``b`` between batches."""
    seed: int = 0
    """Seed of the eigenbasis."""

    def __post_init__(self):
        if self.dim < 1 or self.condition < 1:
            raise ValueError(
                "`dim` and `condition` must be at least 1; got "
                f"dim={self.dim}, condition={self.condition}. Try condition=100."
            )

    @override
    def load(self, split: Split = "train") -> Float[Array, "dim dim"]:
        """Generate ``A``, whose largest eigenvalue is 1."""
        return random_matrix(self.dim, self.condition, jax.random.key(self.seed))

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


@dataclass(frozen=True)
class QuadraticFamily(Family):
    """Quadratics with random spectrum, eigenbasis and noise level in every episode."""

    dim: int = 16
    """Number of parameters."""
    max_condition: float = 1_000.0
    """Largest condition number. Condition numbers are log-uniform, from 1."""
    max_noise_std: float = 0.3
    """Largest standard deviation of the minimizer. It is drawn uniformly, from 0."""

    def __post_init__(self):
        if self.dim < 1 or self.max_condition < 1 or not self.max_noise_std >= 0:
            raise ValueError(
                "`dim` and `max_condition` must be at least 1, `max_noise_std` not "
                f"negative; got dim={self.dim}, max_condition={self.max_condition}, "
                f"max_noise_std={self.max_noise_std}. Try max_condition=1000."
            )

    @override
    def load(self, split: Split = "train") -> Data:
        return ()

    @override
    def sample_constants(self, key: PRNGKeyArray) -> Constants:
        key_matrix, key_condition, key_noise = jax.random.split(key, 3)
        condition = self.max_condition ** jax.random.uniform(key_condition)
        std = self.max_noise_std * jax.random.uniform(key_noise)
        return random_matrix(self.dim, condition, key_matrix), std

    @override
    def problem(self, constants: Constants) -> Problem:
        matrix, std = constants
        task = RandomQuadratic(self.dim)
        return task.problem(())._replace(
            sample_batch=lambda data, key: (
                matrix,
                std * jax.random.normal(key, (self.dim,)),
            )
        )


def random_matrix(
    dim: int, condition: float | Float[Array, ""], key: PRNGKeyArray
) -> Float[Array, "dim dim"]:
    """Draw a symmetric matrix with a random eigenbasis and log-spaced eigenvalues.

    Args:
        dim: Number of rows and of columns.
        condition: Condition number. The eigenvalues range from ``1 / condition`` to 1.
        key: Random key of the eigenbasis.
    """
    basis = orthogonal(key, (dim, dim))
    eigenvalues = condition ** -jnp.linspace(0.0, 1.0, dim)
    return (basis * eigenvalues[None, :]) @ basis.T
