"""A task of one's own, for `lopt meta-train --tasks examples/bowl.py:Bowl`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tasks import Task


@dataclass(frozen=True)
class Bowl(Task):
    """Noisy quadratic bowl."""

    dim: int = 8
    """Number of parameters."""

    def load(self, split="train"):
        """Load nothing: the batches are random."""
        return ()

    def init_params(self, key):
        """Draw the initial point."""
        return jax.random.normal(key, (self.dim,))

    def sample_batch(self, data, key):
        """Draw the minimum of one step."""
        return 0.1 * jax.random.normal(key, (self.dim,))

    def loss(self, params, batch):
        """Squared distance from the minimum."""
        return 0.5 * jnp.mean((params - batch) ** 2)
