"""Celo as released (Moudgil et al., 2025, arXiv:2501.12670)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from typing_extensions import override

from lopt.base import Theta
from lopt.optimizers.adafactor_features import (
    AccumulatorOptimizer,
    update_accumulators,
)
from lopt.optimizers.features import root_mean_square
from lopt.optimizers.lstm_optimizer import (
    ReleasedLSTMOptimizer,
    TensorLSTM,
    check_lstm_sizes,
    mixed_step,
)
from lopt.optimizers.network import check_sizes
from lopt.optimizers.velo import DECAYS, RELEASED

STEP_SIZE_UNIT = 0.1
# Initial updates of Celo are about 1% of the RMS of the tensor.
INITIAL_LOG_STEP_SIZE = math.log(100.0)


@dataclass(frozen=True)
class Celo(AccumulatorOptimizer, ReleasedLSTMOptimizer):
    """Per-parameter MLP whose step size is scheduled by one LSTM per tensor.

    The update is ``step_scale * s * rms * d * exp(1e-3 * a)``. The LSTM reads only the
    training progress and the trend of the loss, and gives the step size ``s``. Tensors
    that are zero hardly move. By default it has 37,089 weights.
    """

    lstm_width: int = 64
    """Units in the LSTM of a tensor."""
    num_banks: int = 1
    """Number of MLPs whose weights are mixed; the trained Celo has one."""
    width: int = 4
    """Units in each hidden layer of the MLP."""
    depth: int = 2
    """Number of hidden layers of the MLP."""
    step_scale: float = 1e-3
    """Multiplier of the network's outputs, relative to the RMS of the tensor."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        check_lstm_sizes(self.lstm_width, self.num_banks)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        share = self.num_banks**-2
        return self._init_with_banks(key, self.width, self.depth, share)

    @property
    @override
    def _network(self) -> TensorLSTM:
        start = INITIAL_LOG_STEP_SIZE
        return TensorLSTM(self.lstm_width, self.num_banks, start, has_mean=False)

    @override
    def _accumulate(self, state, grad):
        return update_accumulators(state, grad, DECAYS)

    @override
    def _statistics(self, tensor, state):
        return jnp.zeros(0, jnp.float32)

    @override
    def _step(self, theta, tensor, controls, step_size, info):
        shares = jax.nn.softmax(controls) / self.num_banks
        size = STEP_SIZE_UNIT * jnp.exp(step_size)
        scale = -self.step_scale * size * root_mean_square(tensor.param)
        return mixed_step(theta["banks"], shares, tensor, RELEASED, scale)
