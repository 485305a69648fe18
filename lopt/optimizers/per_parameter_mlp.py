"""Per-parameter MLP optimizer (Metz et al., 2019, arXiv:1810.10180).

It is also the learned optimizer of the PES paper (Vicol et al., 2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo
from lopt.base import Theta
from lopt.kernels.elementwise import Apply, elementwise, mean_squares
from lopt.optimizers.features import (
    MOMENTUM_DECAYS,
    TIME_SCALES,
    clipped,
    decayed,
    time_features,
    zeros_like,
)
from lopt.optimizers.network import check_sizes, fold_normalization, init_layers, step


class MLPState(NamedTuple):
    """Moving averages of one tensor's gradients.

    Attributes:
        momenta: Averages of the gradient, one per decay in `MOMENTUM_DECAYS`.
        second_moments: Averages of the squared gradient, one per decay in
            `second_moment_decays`.
    """

    momenta: tuple[Float[Array, "..."], ...]
    second_moments: tuple[Float[Array, "..."], ...]


@dataclass(frozen=True)
class PerParameterMLP(PerTensorOptimizer):
    """MLP that maps gradient, parameter, momenta and time to each parameter's update.

    The network is applied to each parameter independently. By default it has 19 inputs,
    11 of them time features, and 1,762 weights.
    """

    width: int = 32
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    second_moment_decays: tuple[float, ...] = ()
    """Decays of second moments. Each adds 7 inputs: the 6 momenta over the root of the
    second moment, and the inverse root."""
    step_scale: float = 1e-3
    """Multiplier of the network's output."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        if not all(0 <= decay < 1 for decay in self.second_moment_decays):
            raise ValueError(
                "`second_moment_decays` must lie in [0, 1); "
                f"got {self.second_moment_decays}. Try 0.999."
            )

    @property
    def num_features(self) -> int:
        """Number of inputs per parameter, without the time features."""
        num_momenta = len(MOMENTUM_DECAYS)
        return 2 + num_momenta + len(self.second_moment_decays) * (num_momenta + 1)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        num_inputs = self.num_features + len(TIME_SCALES)
        momentum = 2 + MOMENTUM_DECAYS.index(0.9)
        sizes = (num_inputs, *[self.width] * self.depth, 2)
        return init_layers(sizes, key, copied_input=momentum)

    @override
    def init_tensor(self, param):
        return MLPState(
            momenta=tuple(zeros_like(param) for _ in MOMENTUM_DECAYS),
            second_moments=tuple(zeros_like(param) for _ in self.second_moment_decays),
        )

    @override
    def is_used(self, state):
        return state.momenta[-1] != 0  # the slowest average of the gradient

    @override
    def update_tensor(self, theta: Theta, tensor: LeafInputs, info: StepInfo):
        grad, param, (momenta, second_moments), *_ = tensor
        grad = clipped(grad)
        momenta = tuple(
            decayed(m, grad, decay)
            for m, decay in zip(momenta, MOMENTUM_DECAYS, strict=True)
        )
        second_moments = tuple(
            decayed(v, grad**2, decay)
            for v, decay in zip(second_moments, self.second_moment_decays, strict=True)
        )
        arrays = [grad, param, *momenta, *second_moments]
        squares = mean_squares(_features, arrays)
        layers = fold_normalization(theta, squares, time_features(info.step))
        update = elementwise(_step, arrays, (layers, jnp.float32(-self.step_scale)))
        return update, MLPState(momenta, second_moments)


def _features(arrays: Sequence[Array]) -> list[Array]:
    """Compute the features of each parameter, before normalization."""
    num_known = 2 + len(MOMENTUM_DECAYS)
    rows, second_moments = list(arrays[:num_known]), arrays[num_known:]
    for v in second_moments:
        inverse_root = jax.lax.rsqrt(v + 1e-6)
        rows += [m * inverse_root for m in arrays[2:num_known]] + [inverse_root]
    return rows


def _step(apply: Apply, arrays: Sequence[Array], weights) -> Array:
    layers, scale = weights
    return step(apply(_features(arrays), layers), scale)
