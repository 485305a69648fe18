"""Random orthogonal matrices without LAPACK.

On CPU, the batched LAPACK routines schedule work on the thread pool that they run on
and wait for it. Programs that run concurrently can therefore deadlock.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def orthogonal(
    key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32
) -> Float[Array, "dim dim"]:
    """Draw a Haar-distributed orthogonal matrix (Stewart, 1980).

    The matrix is a product of Householder reflections, each of which maps a random
    Gaussian vector to a coordinate axis. The signature is that of Flax's initializers.

    Args:
        key: Random key.
        shape: Shape of the matrix, ``(dim, dim)``.
        dtype: Floating-point dtype.
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
