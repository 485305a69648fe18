"""Momenta, second moments and factored ones: what the networks of 2022 on look at."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.base import Theta
from lopt.features import (
    Factored,
    decayed,
    factors,
    init_factored,
    mean_square,
    update_factored,
    zeros_like,
)
from lopt.network import fold, step
from lopt.pointwise import Apply, mean_squares, pointwise

NUM_FEATURES, NUM_EXTENDED, _NUM_SMALL = 28, 30, 12
MOMENTUM = 2
"""Which feature is the fastest momentum; one more if they are extended."""


class Decays(NamedTuple):
    """How fast each accumulator forgets.

    Attributes:
        momenta: Three of them.
        second_moment: One.
        factored: Three of them.
    """

    momenta: Any = (0.9, 0.99, 0.999)
    second_moment: Any = (0.999,)
    factored: Any = (0.9, 0.99, 0.999)


class Accumulators(NamedTuple):
    """What is kept of the gradients of a tensor."""

    momenta: tuple[Float[Array, "..."], ...]
    second_moment: Float[Array, "..."]
    factored: Factored


def init_accumulators(param: Float[Array, "..."]) -> Accumulators:
    """Returns them before the first gradient."""
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
    """Returns them after one more gradient."""
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
    """Returns ``d exp(1e-3 a)`` for each parameter of a tensor, times `scale`.

    Args:
        theta: Of the network.
        grad: Of the tensor.
        param: The tensor.
        accumulators: With this gradient.
        constants: Inputs that do not depend on the parameter, after the others.
        extended: Whether the clipped gradient, and the gradient over the root of the
            second moment, are among the inputs: 30 instead of 28.
        scale: Of the result.
    """
    momenta, second_moment, (rows, cols) = accumulators
    if grad.ndim == 1:
        cols = rows  # a vector has no columns: what would be of them is of it
    inverse_root = lambda x: jax.lax.rsqrt(x + 1e-8)
    small = [*rows, *cols, *map(inverse_root, rows), *map(inverse_root, cols)]
    scaling = factors(accumulators.factored, grad.shape)
    large = [grad, param, *momenta, second_moment]
    large += [x for pair in scaling for x in pair]
    features = _extended if extended else _plain
    squares = mean_squares(features, large)
    means = jnp.stack([mean_square(x) for x in small])
    layers = fold(theta, _in_order(squares, means, jnp.concatenate), constants)
    function = _extended_step if extended else _plain_step
    weights = (layers, jnp.asarray(scale, jnp.float32))
    return pointwise(function, [*large, *small], weights)


def _in_order(large: Any, small: Any, join: Callable[[list[Any]], Any]) -> Any:
    """Puts what is constant along rows or columns before the last three features."""
    return join([large[:-3], small, large[-3:]])


def _plain(arrays: Sequence[Array]) -> list[Array]:
    """Returns what is known of each parameter, not yet normalised."""
    grad, param, *momenta = arrays[:5]
    second_moment, scaling = arrays[5], arrays[6:]
    inverse_root = jax.lax.rsqrt(second_moment + 1e-6)
    each = len(scaling) // 3
    scaled = lambda x, i: math.prod(scaling[i * each : (i + 1) * each], start=x)
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
    """Returns the same, and two more."""
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
