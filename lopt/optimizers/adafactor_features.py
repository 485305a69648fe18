"""Input features of AdafactorMLP, NormalizedMLP and HyperLSTM.

The features are momenta, a second moment and Adafactor's factored second moments, as in
Metz et al. (2022, arXiv:2203.11860).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.base import Theta
from lopt.kernels.elementwise import Apply, elementwise, mean_squares
from lopt.optimizers.features import (
    Factored,
    decayed,
    factors,
    init_factored,
    mean_square,
    update_factored,
    zeros_like,
)
from lopt.optimizers.network import fold_normalization, step

NUM_FEATURES, NUM_EXTENDED, _NUM_SMALL = 28, 30, 12
MOMENTUM = 2
"""Index of the fastest momentum among the features; one higher if extended."""


class Decays(NamedTuple):
    """Decay rates of the exponential moving averages in `Accumulators`.

    Attributes:
        momenta: Decays of the three momenta, fastest first.
        second_moment: Decay of the second moment, of length 1.
        factored: Decays of the three factored second moments.
    """

    momenta: Any = (0.9, 0.99, 0.999)
    second_moment: Any = (0.999,)
    factored: Any = (0.9, 0.99, 0.999)


class Accumulators(NamedTuple):
    """Moving averages of one tensor's gradients.

    Attributes:
        momenta: Averages of the gradient, one per decay, each of the tensor's shape.
        second_moment: Average of the squared gradient, of the tensor's shape.
        factored: Factored averages of the squared gradient.
    """

    momenta: tuple[Float[Array, "..."], ...]
    second_moment: Float[Array, "..."]
    factored: Factored


def init_accumulators(param: Float[Array, "..."]) -> Accumulators:
    """Initialize the accumulators of one tensor to zeros."""
    return Accumulators(
        momenta=tuple(zeros_like(param) for _ in Decays().momenta),
        second_moment=zeros_like(param),
        factored=init_factored(param, len(Decays().factored)),
    )


def update_accumulators(
    accumulators: Accumulators,
    grad: Float[Array, "..."],
    decays: Decays = Decays(),  # noqa: B008 (a constant)
) -> Accumulators:
    """Update the accumulators with one gradient."""
    momenta, second_moment, factored = accumulators
    return Accumulators(
        momenta=tuple(
            decayed(m, grad, decays.momenta[i]) for i, m in enumerate(momenta)
        ),
        second_moment=decayed(second_moment, grad**2, decays.second_moment[0]),
        factored=update_factored(factored, grad, decays.factored),
    )


def apply_network(
    theta: Theta,
    grad: Float[Array, "*n"],
    param: Float[Array, "*n"],
    accumulators: Accumulators,
    constants: Float[Array, " constants"],
    *,
    extended: bool,
    scale: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*n"]:
    """Apply the network to each parameter of a tensor.

    Computes ``scale * d * exp(1e-3 * a)`` elementwise, where ``d`` (direction) and
    ``a`` (log-magnitude) are the first two network outputs. Each feature is normalized
    to unit RMS over the tensor.

    Args:
        theta: Weights of the network, from `init_layers`.
        grad: Gradient of the tensor.
        param: Value of the tensor.
        accumulators: Accumulators that already include `grad`.
        constants: Inputs shared by all parameters, such as the time features. They
            follow the per-parameter features and are not normalized.
        extended: Whether to add two inputs: the gradient clipped to [-0.1, 0.1], and
            the gradient over the root of the second moment. This gives 30 features
            instead of 28.
        scale: Multiplier of the result.

    Returns:
        An array of the tensor's shape.
    """
    momenta, second_moment, (rows, cols) = accumulators
    if grad.ndim == 1:
        cols = rows  # Vectors are not factored: `rows` is the full second moment.

    def inverse_root(x):
        return jax.lax.rsqrt(x + 1e-8)

    small = [*rows, *cols, *map(inverse_root, rows), *map(inverse_root, cols)]
    scaling = factors(accumulators.factored, grad.shape)
    large = [grad, param, *momenta, second_moment]
    large += [x for pair in scaling for x in pair]
    features = _extended if extended else _plain
    squares = mean_squares(features, large)
    means = jnp.stack([mean_square(x) for x in small])
    layers = fold_normalization(
        theta, _in_order(squares, means, jnp.concatenate), constants
    )
    function = _extended_step if extended else _plain_step
    weights = (layers, jnp.asarray(scale, jnp.float32))
    return elementwise(function, [*large, *small], weights)


def _in_order(large: Any, small: Any, join: Callable[[list[Any]], Any]) -> Any:
    """Insert the `small` features before the last three of the `large` ones."""
    return join([large[:-3], small, large[-3:]])


def _plain(arrays: Sequence[Array]) -> list[Array]:
    """Compute the 16 full-shape features, before normalization."""
    grad, param, *momenta = arrays[:5]
    second_moment, scaling = arrays[5], arrays[6:]
    inverse_root = jax.lax.rsqrt(second_moment + 1e-6)
    each = len(scaling) // 3

    def scaled(x, i):
        return math.prod(scaling[i * each : (i + 1) * each], start=x)

    return [
        grad,
        param,
        *momenta,
        second_moment,
        *(m * inverse_root for m in momenta),
        inverse_root,
        *(scaled(grad, i) for i in range(3)),
        *(scaled(m, i) for i, m in enumerate(momenta)),
    ]


def _extended(arrays: Sequence[Array]) -> list[Array]:
    """Compute the features of `_plain` and the two extended ones."""
    plain = _plain(arrays)
    grad, inverse_root = plain[0], plain[9]
    clipped = jnp.clip(grad, -0.1, 0.1)
    return [grad, clipped, *plain[1:10], grad * inverse_root, *plain[10:]]


def _plain_step(apply: Apply, arrays: Sequence[Array], weights: Any) -> Array:
    return _step(apply, _plain, arrays, weights)


def _extended_step(apply: Apply, arrays: Sequence[Array], weights: Any) -> Array:
    return _step(apply, _extended, arrays, weights)


def _step(apply: Apply, features: Any, arrays: Sequence[Array], weights: Any) -> Array:
    layers, scale = weights
    large, small = features(arrays[:-_NUM_SMALL]), list(arrays[-_NUM_SMALL:])
    rows = _in_order(large, small, lambda parts: list(itertools.chain(*parts)))
    return step(apply(rows, layers), scale)
