"""Celo2 and its base as released (Moudgil et al., 2026, arXiv:2602.19142)."""

import fnmatch
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo
from lopt.base import Theta
from lopt.errors import UserError
from lopt.optimizers.adafactor_features import (
    MOMENTUM,
    NUM_EXTENDED,
    AccumulatorOptimizer,
    Accumulators,
    Decays,
    Definition,
    apply_network,
    in_single_precision,
    update_accumulators,
)
from lopt.optimizers.features import clipped
from lopt.optimizers.network import check_sizes, init_layers
from lopt.optimizers.normalized_mlp import newton_schulz

_DECAYS = in_single_precision(Decays(second_moment=(0.95,)))
_DEFINITION = Definition(
    is_extended=True,
    has_magnitude=False,
    epsilon=1e-8,
    vector_epsilons=(1e-9, None),
    floor=1e-9,
    is_normalized_by_matrix=True,
)
_NUM_VECTOR_FEATURES = 15
_LARGEST_GRADIENT = 1000.0
_EPSILON = 1e-8


@dataclass(frozen=True)
class Celo2(AccumulatorOptimizer, PerTensorOptimizer):
    """Per-parameter MLP with orthogonalized, normalized updates, as released.

    `NormalizedMLP` is the variant of this package. The network learns only the
    direction of the update; `learning_rate` sets its size. Matrices are the last two
    axes of a tensor: features are normalized, and updates orthogonalized and normalized
    to unit RMS, for each of them. Vectors are updated by Adam without bias correction.
    By default it has 347 weights.

    Celo2-base is ``Celo2(orthogonalize=False, adam_vectors=False)``.
    """

    width: int = 8
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    learning_rate: float = 1e-3
    """RMS of each matrix's update before weight decay."""
    weight_decay: float = 0.0
    """Decoupled weight decay coefficient, multiplied by the learning rate."""
    orthogonalize: bool = True
    """Whether to orthogonalize the updates of matrices."""
    adam_vectors: bool = True
    """Whether Adam updates vectors and scalars."""
    adam_names: tuple[str, ...] = ()
    """Patterns of the paths of other tensors that Adam updates, such as ``*embed*``.
    Keys are joined by slashes."""
    adam_multiplier: float = 20.0
    """Learning rate of Adam, relative to `learning_rate`."""
    adam_second_decay: float = 0.95
    """Decay of Adam's second moment."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        rates = self.learning_rate, self.adam_multiplier
        if not (min(rates) > 0 and self.weight_decay >= 0):
            raise UserError(
                "`learning_rate` and `adam_multiplier` must be positive and "
                f"`weight_decay` not negative; got {rates} and {self.weight_decay}. "
                "Try 1e-3, 20 and 0."
            )
        if not 0 <= self.adam_second_decay < 1:
            raise UserError(
                "`adam_second_decay` must lie in [0, 1); got "
                f"{self.adam_second_decay}. Try 0.95."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        sizes = (NUM_EXTENDED, *[self.width] * self.depth, 3)
        return init_layers(sizes, key, copied_input=MOMENTUM + 1)

    @override
    def update_tensor(self, theta: Theta, tensor: LeafInputs, info: StepInfo):
        if self._is_for_adam(tensor):
            rate = self.learning_rate * self.adam_multiplier
            second = np.float32(self.adam_second_decay)
            decays = _DECAYS._replace(second_moment=(second,))
            grad = clipped(tensor.grad)
            accumulators = update_accumulators(tensor.state, grad, decays)
            root = jax.lax.rsqrt(accumulators.second_moment + _EPSILON)
            direction = accumulators.momenta[0] * root
        else:
            rate = self.learning_rate
            grad = jnp.clip(tensor.grad, -_LARGEST_GRADIENT, _LARGEST_GRADIENT)
            accumulators = update_accumulators(tensor.state, grad, _DECAYS)
            direction = self._direction(theta, grad, tensor.param, accumulators)
        step = direction + self.weight_decay * tensor.param
        return -rate * step, accumulators

    def _is_for_adam(self, tensor: LeafInputs) -> bool:
        is_vector = self.adam_vectors and tensor.grad.ndim == 1
        patterns = self.adam_names
        return is_vector or any(fnmatch.fnmatchcase(tensor.path, p) for p in patterns)

    def _direction(
        self,
        theta: Theta,
        grad: Float[Array, "..."],
        param: Float[Array, "..."],
        accumulators: Accumulators,
    ) -> Float[Array, "..."]:
        """Apply the network, and normalize its output."""
        if grad.ndim == 1:
            weights = theta["params"]
            first = weights["kernel_0"][:_NUM_VECTOR_FEATURES]
            theta = {"params": {**weights, "kernel_0": first}}
        none = jnp.zeros(0, jnp.float32)
        x = apply_network(theta, grad, param, accumulators, none, _DEFINITION)
        axes = tuple(range(x.ndim))[-2:]
        if self.orthogonalize and x.ndim > 1:
            norm = jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))
            x = newton_schulz(x / (norm + _EPSILON))
        squares = jnp.mean(jnp.square(x), axes, keepdims=True)
        return x * jax.lax.rsqrt(squares + _DEFINITION.floor)
