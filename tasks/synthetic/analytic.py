"""Small analytic tasks: the Rosenbrock function and low-rank matrix factorization."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Loss, Split, Task
from tasks.datasets.base import draw_indices


@dataclass(frozen=True)
class Rosenbrock(Task):
    """Rosenbrock function, averaged over its ``dim - 1`` terms.

    ``mean_i 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2``: a curved valley with a nearly flat
    floor. The minimum is 0, at the all-ones vector. The loss is deterministic.
    """

    dim: int = 2
    """Number of parameters."""

    def __post_init__(self):
        if self.dim < 2:
            raise ValueError(f"`dim` must be at least 2; got {self.dim}. Try 2.")

    @override
    def load(self, split: Split = "train") -> Data:
        return ()

    @override
    def init_params(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return 0.5 * jax.random.normal(key, (self.dim,))

    @override
    def sample_batch(self, data: Data, key: PRNGKeyArray) -> None:
        return None

    @override
    def loss(self, params: Float[Array, " dim"], batch: None) -> Loss:
        here, there = params[:-1], params[1:]
        return jnp.mean(100.0 * (there - here**2) ** 2 + (1.0 - here) ** 2)


@dataclass(frozen=True)
class MatrixFactorisation(Task):
    """Low-rank matrix factorization from randomly sampled noisy entries.

    The loss is ``0.5 mean (U V' - M)_ij^2`` over a batch of entries ``(i, j)``, drawn
    with replacement. ``M`` is a fixed random matrix of rank `rank`. The parameters
    stack the factors ``U`` and ``V``.
    """

    dim: int = 32
    """Number of rows and of columns of the matrix."""
    rank: int = 4
    """Rank of the matrix and of its learned factors."""
    num_entries: int = 256
    """Number of matrix entries per batch."""
    noise_std: float = 0.01
    """Standard deviation of the observation noise on each sampled entry."""
    seed: int = 0
    """Seed of the target matrix."""

    def __post_init__(self):
        if not 1 <= self.rank <= self.dim or self.num_entries < 1:
            raise ValueError(
                "`rank` must lie between 1 and `dim`, and `num_entries` be at least 1; "
                f"got rank={self.rank}, dim={self.dim}, "
                f"num_entries={self.num_entries}. Try rank=4."
            )

    @override
    def load(self, split: Split = "train") -> Float[Array, "dim dim"]:
        shape = (2, self.dim, self.rank)
        left, right = jax.random.normal(jax.random.key(self.seed), shape)
        return left @ right.T / jnp.sqrt(self.rank)

    @override
    def init_params(self, key: PRNGKeyArray) -> Float[Array, "2 dim rank"]:
        return 0.3 * jax.random.normal(key, (2, self.dim, self.rank))

    @override
    def sample_batch(
        self, data: Float[Array, "dim dim"], key: PRNGKeyArray
    ) -> tuple[Array, Array]:
        key_place, key_noise = jax.random.split(key)
        places = draw_indices(key_place, (2, self.num_entries), self.dim)
        noise = jax.random.normal(key_noise, (self.num_entries,))
        return places, data[places[0], places[1]] + self.noise_std * noise

    @override
    def loss(
        self, params: Float[Array, "2 dim rank"], batch: tuple[Array, Array]
    ) -> Loss:
        (rows, columns), seen = batch
        guess = jnp.sum(params[0, rows] * params[1, columns], axis=-1)
        return 0.5 * jnp.mean((guess - seen) ** 2)
