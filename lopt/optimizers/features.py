"""Accumulators and input features of learned optimizers."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

MOMENTUM_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
TIME_SCALES = (1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5)


def zeros_like(param: Float[Array, "..."]) -> Float[Array, "..."]:
    """Initialize a float32 accumulator like `param`, on the devices of `param`."""
    return jnp.zeros_like(param, dtype=jnp.float32)


def clipped(grad: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Clip a gradient elementwise to 1e15, so that sums of squares stay finite."""
    return jnp.clip(grad, -1e15, 1e15)


def decayed(
    old: Float[Array, "*n"],
    new: Float[Array, "*n"],
    decay: float | np.float32 | Float[Array, ""],
) -> Float[Array, "*n"]:
    """Update an exponential moving average: ``decay * old + (1 - decay) * new``."""
    return decay * old + (1 - decay) * new


def time_features(step: Int[Array, ""]) -> Float[Array, " time"]:
    """Compute ``tanh(step / scale - 1)`` for each scale in `TIME_SCALES`."""
    return jnp.tanh(
        step.astype(jnp.float32) / jnp.asarray(TIME_SCALES, jnp.float32) - 1.0
    )


def mean_square(feature: Float[Array, "..."]) -> Float[Array, ""]:
    """Compute the mean square of an array."""
    return jnp.mean(jnp.square(feature))


def root_mean_square(param: Float[Array, "..."]) -> Float[Array, ""]:
    """Compute the root mean square of an array, at least 3e-5."""
    return jnp.sqrt(mean_square(param) + 1e-9)


class Factored(NamedTuple):
    """Factored second moments as in Adafactor, one per decay.

    Means keep the reduced axis with size 1, so that they broadcast to the tensor.

    Attributes:
        row: Averages of the squared gradient's mean over the column axis. For a vector,
            averages of the squared gradient itself.
        col: Averages of the squared gradient's mean over the row axis. Unused for a
            vector.
    """

    row: tuple[Float[Array, "..."], ...]
    col: tuple[Float[Array, "..."], ...]


def factored_axes(shape: Sequence[int]) -> tuple[int, int] | None:
    """Select the two largest axes as (row, column) axes; `None` for a vector."""
    if len(shape) < 2:
        return None
    row, col = sorted(np.argsort(shape, kind="stable")[-2:])
    return int(row), int(col)


def init_factored(param: Float[Array, "..."], num_decays: int) -> Factored:
    """Initialize factored second moments to zeros."""
    axes = factored_axes(param.shape)

    def empty(axis):
        return zeros_like(param).sum(axis, keepdims=True)

    # Separate arrays for each decay, because a buffer cannot be donated twice.
    rows = [empty(axes[1]) if axes else zeros_like(param) for _ in range(num_decays)]
    cols = [
        empty(axes[0]) if axes else jnp.zeros(1, jnp.float32) for _ in range(num_decays)
    ]
    return Factored(tuple(rows), tuple(cols))


def update_factored(
    factored: Factored,
    grad: Float[Array, "..."],
    decays: Sequence[float | np.float32] | Float[Array, " decays"],
) -> Factored:
    """Update the factored second moments with one gradient."""
    squares = jnp.square(grad) + 1e-30
    rows, cols = squares, None
    if axes := factored_axes(grad.shape):
        rows, cols = (squares.mean(axis, keepdims=True) for axis in reversed(axes))

    def new_col(col, decay):
        return col if cols is None else decayed(col, cols, decay)

    return Factored(
        tuple(
            decayed(row, rows, d) for row, d in zip(factored.row, decays, strict=True)
        ),
        tuple(new_col(col, d) for col, d in zip(factored.col, decays, strict=True)),
    )


def by_size(factored: Factored, shape: Sequence[int]) -> Factored:
    """Exchange `row` and `col` if that makes the largest axis the column axis."""
    axes = factored_axes(shape)
    is_reversed = axes is not None and shape[axes[0]] > shape[axes[1]]
    return Factored(factored.col, factored.row) if is_reversed else factored


def factors(
    factored: Factored, shape: Sequence[int]
) -> list[tuple[Float[Array, "..."], ...]]:
    """Compute the factors of Adafactor's preconditioner ``1 / sqrt(v)``.

    A factored second moment is ``v = row * col / mean(row)``. All arguments of square
    roots are clamped to at least 1e-9.

    Args:
        factored: Factored second moments of a tensor.
        shape: Shape of the tensor.

    Returns:
        For each decay, a tuple of arrays that are broadcastable to `shape` and whose
        product is the preconditioner: (row factor, column factor), or one array for a
        vector.
    """
    axes = factored_axes(shape)
    if axes is None:
        return [(jax.lax.rsqrt(jnp.maximum(v, 1e-9)),) for v in factored.row]
    found = []
    for row, col in zip(factored.row, factored.col, strict=True):
        mean = row.mean(axes, keepdims=True)  # `row` has size 1 along the other axis
        row_factor = jax.lax.rsqrt(jnp.maximum(row / (mean + 1e-9), 1e-9))
        found.append((row_factor, jax.lax.rsqrt(jnp.maximum(col, 1e-9))))
    return found
