"""MLP optimizer with Adafactor features (Metz et al., 2022, arXiv:2203.11860)."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo
from lopt.base import Theta
from lopt.optimizers.adafactor_features import (
    MOMENTUM,
    NUM_FEATURES,
    AccumulatorOptimizer,
    Decays,
    Definition,
    apply_network,
    update_accumulators,
)
from lopt.optimizers.features import TIME_SCALES, clipped, time_features
from lopt.optimizers.network import check_sizes, init_layers

_OURS, _RELEASED = Definition(), Definition(vector_epsilons=(1e-9, 1e-6))


@dataclass(frozen=True)
class AdafactorMLP(AccumulatorOptimizer, PerTensorOptimizer):
    """Per-parameter MLP on momenta and (factored) second moments, with learned decays.

    The MLP has 39 inputs: 28 features and 11 time features. By default, `theta` has
    190 weights and 7 decay offsets.
    """

    width: int = 4
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    step_scale: float = 1e-3
    """Multiplier of the network's output."""
    as_released: bool = False
    """Whether to follow google/learned_optimization in three details, as imported files
    require: the epsilons of vectors, the order of row and column features, and
    momentum decays that may be negative."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        sizes = (NUM_FEATURES + len(TIME_SCALES), *[self.width] * self.depth, 2)
        offsets = {
            name: jnp.zeros(len(decays), jnp.float32)
            for name, decays in Decays()._asdict().items()
        }
        return {
            "network": init_layers(sizes, key, copied_input=MOMENTUM),
            "decays": offsets,
        }

    @override
    def update_tensor(self, theta: Theta, tensor: LeafInputs, info: StepInfo):
        grad, param, accumulators, *_ = tensor
        grad = clipped(grad)
        decays = self._decays(theta["decays"])
        accumulators = update_accumulators(accumulators, grad, decays)
        time = time_features(info.step)
        step = apply_network(
            theta["network"],
            grad,
            param,
            accumulators,
            time,
            _RELEASED if self.as_released else _OURS,
            -self.step_scale,
        )
        return step, accumulators

    def _decays(self, offsets: Mapping[str, Float[Array, " decays"]]) -> Decays:
        """Compute the learned decays; only released momenta may have negative ones."""
        learned = {k: _learned(x, offsets[k]) for k, x in Decays()._asdict().items()}
        clipped = {k: jnp.maximum(x, 0.0) for k, x in learned.items()}
        if self.as_released:
            clipped["momenta"] = learned["momenta"]
        return Decays(**clipped)


def _learned(decays, offsets):
    """Compute ``1 - exp(10 * (log(1 - decay) / 10 + offset))`` elementwise."""
    start = np.log1p(-np.asarray(decays)).astype(np.float32) / 10
    return 1 - jnp.exp(10 * (start + offsets))
