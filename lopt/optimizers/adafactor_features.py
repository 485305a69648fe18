"""Input features of optimizers with an MLP on momenta and factored second moments.

The features are momenta, a second moment and Adafactor's factored second moments, as in
Metz et al. (2022, arXiv:2203.11860).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from typing_extensions import override

from lopt.adapter import TensorOptimizer
from lopt.base import Theta
from lopt.kernels.elementwise import Apply, elementwise, mean_squares
from lopt.optimizers.features import (
    Factored,
    by_size,
    decayed,
    factors,
    init_factored,
    mean_square,
    update_factored,
    zeros_like,
)
from lopt.optimizers.network import fold_normalization, step

NUM_FEATURES, NUM_EXTENDED = 28, 30
MOMENTUM = 2
"""Index of the fastest momentum among the features; one higher if extended."""
_NUM_FACTORED = 3  # Momenta over the factored second moments; the last features.


class Definition(NamedTuple):
    """Details in which the networks of different optimizers differ.

    The defaults are those of this package. Released optimizers set `vector_epsilons`.

    Attributes:
        is_extended: Whether to add two inputs: the gradient clipped to [-0.1, 0.1], and
            the gradient over the root of the second moment. This gives 30 features
            instead of 28.
        has_magnitude: Whether the second output is the log-magnitude of the update.
        epsilon: Added to the second moment under the root.
        vector_epsilons: Added to the second moment of a vector under the roots that
            divide the gradient and the momenta. If the second is `None`, vectors lack
            all inputs from factored second moments except the gradient over their
            roots. If given, columns are the largest axis of a matrix instead of the
            last.
        floor: Added to the mean square of each feature in its normalization.
        is_normalized_by_matrix: Whether to normalize features over the last two axes
            instead of the whole tensor.
    """

    is_extended: bool = False
    has_magnitude: bool = True
    epsilon: float = 1e-6
    vector_epsilons: tuple[float, float | None] | None = None
    floor: float = 1e-5
    is_normalized_by_matrix: bool = False


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


def in_single_precision(decays: Decays) -> Decays:
    """Round decays to float32, so that ``1 - decay`` is computed in float32.

    Released optimizers do so, which makes ``1 - 0.999`` smaller by a factor of 1.3e-5.
    """
    return Decays(*(tuple(map(np.float32, group)) for group in decays))


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


class AccumulatorOptimizer(TensorOptimizer):
    """Base class of optimizers whose state of a tensor is `Accumulators`."""

    @override
    def init_tensor(self, param: Float[Array, "..."]) -> Accumulators:
        return Accumulators(
            momenta=tuple(zeros_like(param) for _ in Decays().momenta),
            second_moment=zeros_like(param),
            factored=init_factored(param, len(Decays().factored)),
        )

    @override
    def is_used(self, state: Accumulators) -> Bool[Array, "..."]:
        return state.momenta[-1] != 0  # the slowest average of the gradient


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
    definition: Definition,
    scale: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*n"]:
    """Apply the network to each parameter of a tensor.

    Computes ``scale * d * exp(1e-3 * a)`` elementwise, where ``d`` (direction) and
    ``a`` (log-magnitude) are the first two network outputs. Each feature is normalized
    to unit RMS.

    Args:
        theta: Weights of the network, from `init_layers`.
        grad: Gradient of the tensor.
        param: Value of the tensor.
        accumulators: Accumulators that already include `grad`.
        constants: Inputs shared by all parameters, such as the time features. They
            follow the per-parameter features and are not normalized.
        definition: Inputs and normalization.
        scale: Multiplier of the result.

    Returns:
        An array of the tensor's shape.
    """
    factored = accumulators.factored
    if definition.vector_epsilons:
        factored = by_size(factored, grad.shape)
    small = _small_features(factored, grad.ndim, definition)
    scaling = _scaling(factored, grad.shape, definition)
    large = [grad, param, *accumulators.momenta, accumulators.second_moment, *scaling]
    features = _Features(
        is_extended=definition.is_extended,
        epsilon=definition.epsilon,
        has_own_factors=grad.ndim == 1 and definition.vector_epsilons is not None,
        has_factored=bool(small),
    )
    function = _Step(features, len(small), definition.has_magnitude)
    factor = jnp.asarray(scale, jnp.float32)

    def apply(large, small):
        squares = mean_squares(features, large)
        means = [mean_square(x)[None] for x in small]
        in_order = _in_order(features, squares, means, lambda a, b, c: [a, *b, c])
        layers = fold_normalization(
            theta, jnp.concatenate(in_order), constants, definition.floor
        )
        return elementwise(function, [*large, *small], (layers, factor))

    if not definition.is_normalized_by_matrix:
        return apply(large, small)
    leading = grad.shape[:-2]
    for _ in leading:
        apply = jax.vmap(apply)

    def spread(x):
        return jnp.broadcast_to(x, (*leading, *x.shape[len(leading) :]))

    return apply([spread(x) for x in large], [spread(x) for x in small])


def _small_features(
    factored: Factored, ndim: int, definition: Definition
) -> list[Float[Array, "..."]]:
    """List the features that are broadcastable to the tensor."""
    rows, cols = factored
    if ndim == 1:
        if definition.vector_epsilons and definition.vector_epsilons[1] is None:
            return []
        cols = rows  # Vectors are not factored: `rows` is the full second moment.

    def inverse_root(x):
        return jax.lax.rsqrt(x + 1e-8)

    return [*rows, *cols, *map(inverse_root, rows), *map(inverse_root, cols)]


def _scaling(
    factored: Factored, shape: Sequence[int], definition: Definition
) -> list[Float[Array, "..."]]:
    """List the factors of the gradient, and of the momenta if they have their own."""
    if len(shape) > 1 or not definition.vector_epsilons:
        return [x for parts in factors(factored, shape) for x in parts]
    own = [e for e in definition.vector_epsilons if e is not None]
    return [_inverse_root(row + e) for e in own for row in factored.row]


def _inverse_root(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute ``1 / sqrt(x)``, with derivative 0 where that overflows.

    The second moment of an entry that has never had a gradient is below 1e-30.
    """
    smallest = 1e-24
    root = jax.lax.rsqrt(jnp.maximum(x, smallest))
    return jnp.where(x > smallest, root, jax.lax.stop_gradient(jax.lax.rsqrt(x)))


def _in_order(
    features: "_Features", large: Any, small: Any, join: Callable[..., Any]
) -> Any:
    """Insert the `small` features before the momenta over factored second moments."""
    start = features.num - _NUM_FACTORED * features.has_factored
    return join(large[:start], small, large[start:])


@dataclass(frozen=True)
class _Features:
    """Features of the shape of the tensor, before normalization."""

    is_extended: bool
    epsilon: float
    has_own_factors: bool  # whether momenta have other factors than the gradient
    has_factored: bool

    @property
    def num(self) -> int:
        """Number of features."""
        return 13 + 2 * self.is_extended + _NUM_FACTORED * self.has_factored

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the features from the arrays `large` of `apply_network`."""
        grad, param, *momenta = arrays[:5]
        second_moment, scaling = arrays[5], arrays[6:]
        inverse_root = jax.lax.rsqrt(second_moment + self.epsilon)
        has_two = self.has_own_factors and self.has_factored
        each = len(scaling) // (6 if has_two else 3)

        def scaled(x, i):
            return math.prod(scaling[i * each : (i + 1) * each], start=x)

        clipped = [jnp.clip(grad, -0.1, 0.1)] if self.is_extended else []
        found = [grad, *clipped, param, *momenta, second_moment]
        found += [*(m * inverse_root for m in momenta), inverse_root]
        found += [grad * inverse_root] if self.is_extended else []
        found += [scaled(grad, i) for i in range(3)]
        if self.has_factored:
            found += [scaled(m, i + 3 * has_two) for i, m in enumerate(momenta)]
        return found


@dataclass(frozen=True)
class _Step:
    """Elementwise function that applies the network to the features."""

    features: _Features
    num_small: int
    has_magnitude: bool

    def __call__(self, apply: Apply, arrays: Sequence[Array], weights: Any) -> Array:
        """Compute the scaled update."""
        layers, scale = weights
        end = len(arrays) - self.num_small
        large, small = self.features(arrays[:end]), list(arrays[end:])
        rows = _in_order(
            self.features, large, small, lambda *parts: list(itertools.chain(*parts))
        )
        outputs = apply(rows, layers)
        return step(outputs, scale) if self.has_magnitude else scale * outputs[0]
