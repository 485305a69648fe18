"""Random orthogonal matrices, without LAPACK.

On a CPU, LAPACK's routines for many matrices hand work to the threads that they run on,
and wait: programs that run side by side can wait for each other for good.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def orthogonal(
    key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32
) -> Float[Array, "dim dim"]:
    """Draws an orthogonal matrix, all alike likely (Stewart, 1980).

    It is a product of reflections, each of which maps a random vector to an axis. The
    arguments are those of Flax's initializers.
    """
    dim, _ = shape
    draws = jax.random.normal(key, (dim, dim), dtype)
    places = jnp.arange(dim)

    def reflect(product, step):
        place, draw = step
        vector = jnp.where(places >= place, draw, 0.0)
        length = jnp.linalg.norm(vector)
        sign = jnp.where(vector[place] < 0, -1.0, 1.0).astype(dtype)
        normal = vector + sign * length * (places == place)
        normal = normal / jnp.linalg.norm(normal)
        along = product @ normal
        return product - 2.0 * along[:, None] * normal[None, :], -sign

    product, signs = jax.lax.scan(reflect, jnp.eye(dim, dtype=dtype), (places, draws))
    return product * signs[None, :]
