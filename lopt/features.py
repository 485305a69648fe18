"""What learned optimizers know about each parameter, and about the time."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

MOMENTUM_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
TIME_SCALES = (1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5)


def zeros_like(param: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns an empty accumulator, on the devices where `param` is."""
    return jnp.zeros_like(param, dtype=jnp.float32)


def decayed(
    old: Float[Array, "*n"],
    new: Float[Array, "*n"],
    decay: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """Returns an exponential moving average after one more value."""
    return decay * old + (1 - decay) * new


def time_features(step: Int[Array, ""]) -> Float[Array, " time"]:
    """Returns ``tanh(step / scale - 1)``: which time scales have passed."""
    return jnp.tanh(
        step.astype(jnp.float32) / jnp.asarray(TIME_SCALES, jnp.float32) - 1.0
    )


def mean_square(feature: Float[Array, "..."]) -> Float[Array, ""]:
    """Returns the mean of the squares of a feature of a tensor."""
    return jnp.mean(jnp.square(feature))


class Factored(NamedTuple):
    """Second moments as Adafactor keeps them, for several decays.

    Attributes:
        row: The mean of squares along the columns; of a vector, the squares.
        col: The mean along the rows; unused of a vector.
    """

    row: tuple[Float[Array, "..."], ...]
    col: tuple[Float[Array, "..."], ...]


def factored_axes(shape: Sequence[int]) -> tuple[int, int] | None:
    """Returns the axes of rows and columns, the two largest; none of a vector."""
    if len(shape) < 2:
        return None
    row, col = sorted(np.argsort(shape, kind="stable")[-2:])
    return int(row), int(col)


def init_factored(param: Float[Array, "..."], num_decays: int) -> Factored:
    """Returns empty second moments."""
    axes = factored_axes(param.shape)

    def empty(axis):
        return zeros_like(param).sum(axis, keepdims=True)

    # Arrays of their own, as no buffer can be donated twice.
    rows = [empty(axes[1]) if axes else zeros_like(param) for _ in range(num_decays)]
    cols = [
        empty(axes[0]) if axes else jnp.zeros(1, jnp.float32) for _ in range(num_decays)
    ]
    return Factored(tuple(rows), tuple(cols))


def update_factored(
    factored: Factored,
    grad: Float[Array, "..."],
    decays: Sequence[float] | Float[Array, " decays"],
) -> Factored:
    """Returns the second moments after one more gradient."""
    squares = jnp.square(grad) + 1e-30
    rows, cols = squares, None
    if axes := factored_axes(grad.shape):
        rows, cols = (squares.mean(axis, keepdims=True) for axis in reversed(axes))
    new_col = lambda col, decay: col if cols is None else decayed(col, cols, decay)
    return Factored(
        tuple(
            decayed(row, rows, d) for row, d in zip(factored.row, decays, strict=True)
        ),
        tuple(new_col(col, d) for col, d in zip(factored.col, decays, strict=True)),
    )


def factors(
    factored: Factored, shape: Sequence[int]
) -> list[tuple[Float[Array, "..."], ...]]:
    """Returns what a tensor is to be multiplied by to be normalised, by decay."""
    axes = factored_axes(shape)
    if axes is None:
        return [(jax.lax.rsqrt(jnp.maximum(v, 1e-9)),) for v in factored.row]
    found = []
    for row, col in zip(factored.row, factored.col, strict=True):
        mean = row.mean(axes[0], keepdims=True)
        row_factor = jax.lax.rsqrt(jnp.maximum(row / (mean + 1e-9), 1e-9))
        found.append((row_factor, jax.lax.rsqrt(jnp.maximum(col, 1e-9))))
    return found
