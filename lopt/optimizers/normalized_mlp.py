"""MLP optimizer with normalized updates, after Celo2 (Moudgil et al., 2026)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo
from lopt.base import Theta
from lopt.optimizers.adafactor_features import (
    MOMENTUM,
    NUM_EXTENDED,
    AccumulatorOptimizer,
    Decays,
    Definition,
    apply_network,
    update_accumulators,
)
from lopt.optimizers.features import clipped, mean_square
from lopt.optimizers.network import check_sizes, init_layers

_DECAYS = Decays(second_moment=(0.95,))
_DEFINITION = Definition(is_extended=True)


@dataclass(frozen=True)
class NormalizedMLP(AccumulatorOptimizer, PerTensorOptimizer):
    """Per-parameter MLP whose update is normalized to unit RMS for each matrix.

    The network learns only the direction of the update; `learning_rate` sets its size.
    Vectors are updated by AdamW. The MLP has 30 inputs, without time features, and 347
    weights by default.
    """

    width: int = 8
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    learning_rate: float = 1e-3
    """RMS of each matrix's update before weight decay, and learning rate of AdamW."""
    weight_decay: float = 0.0
    """Decoupled weight decay coefficient, multiplied by the learning rate."""
    orthogonalize: bool = False
    """Whether to orthogonalize matrix updates, as in Muon, before normalization."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        if not (self.learning_rate > 0 and self.weight_decay >= 0):
            raise ValueError(
                "`learning_rate` must be positive and `weight_decay` not negative; got "
                f"{self.learning_rate} and {self.weight_decay}. Try 1e-3 and 0."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        sizes = (NUM_EXTENDED, *[self.width] * self.depth, 3)
        return init_layers(sizes, key, copied_input=MOMENTUM + 1)

    @override
    def update_tensor(self, theta: Theta, tensor: LeafInputs, info: StepInfo):
        grad, param, accumulators, *_ = tensor
        grad = clipped(grad)
        accumulators = update_accumulators(accumulators, grad, _DECAYS)
        if grad.ndim == 1:
            direction = _adam(accumulators, info)
        else:
            none = jnp.zeros(0, jnp.float32)
            direction = apply_network(
                theta, grad, param, accumulators, none, _DEFINITION
            )
            if self.orthogonalize:
                direction = orthogonalized(direction)
            direction *= jax.lax.rsqrt(mean_square(direction) + 1e-12)
        step = direction + self.weight_decay * param
        return -self.learning_rate * step, accumulators


def _adam(accumulators, info: StepInfo) -> Float[Array, " n"]:
    """Compute Adam's bias-corrected direction from the fastest momentum."""
    # `info.count` is not clamped to the horizon, unlike `info.step`, so the bias
    # correction stays valid past the horizon.
    count = info.count.astype(jnp.float32) + 1
    momentum = accumulators.momenta[0] / (1 - _DECAYS.momenta[0] ** count)
    squares = accumulators.second_moment / (1 - _DECAYS.second_moment[0] ** count)
    return momentum / (jnp.sqrt(squares) + 1e-8)


def orthogonalized(tensor: Float[Array, "..."]) -> Float[Array, "..."]:
    """Orthogonalize a tensor approximately, by five Newton-Schulz iterations.

    This moves the singular values close to one. All axes but the last are flattened
    into one, as the inputs of a layer.
    """
    matrix = tensor.reshape(-1, tensor.shape[-1])
    scale = jax.lax.rsqrt(jnp.sum(jnp.square(matrix)) + 1e-12)
    return newton_schulz(matrix * scale).reshape(tensor.shape)


def newton_schulz(
    matrices: Float[Array, "*batch rows cols"],
) -> Float[Array, "*batch rows cols"]:
    """Apply five Newton-Schulz iterations to matrices of singular values up to one."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]

    def iterate(_, x):
        gram = x @ x.mT
        return 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x

    # A `fori_loop` compiles faster than an unrolled loop.
    x = jax.lax.fori_loop(0, 5, iterate, matrices.mT if is_tall else matrices)
    return x.mT if is_tall else x
