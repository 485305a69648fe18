"""Celo-Adam as released (Moudgil et al., 2025, arXiv:2501.12670)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import Theta
from lopt.optimizers.celo import INITIAL_LOG_STEP_SIZE, STEP_SIZE_UNIT
from lopt.optimizers.features import decayed, zeros_like
from lopt.optimizers.lstm_optimizer import (
    ReleasedLSTMOptimizer,
    TensorLSTM,
    check_lstm_sizes,
)

# In single precision, as in the released optimizer: ``1 - 0.999`` differs by 1.3e-5.
_DECAYS = (np.float32(0.9), np.float32(0.999))


class Averages(NamedTuple):
    """Moving averages of one tensor's gradients.

    Attributes:
        first: Average of the gradient.
        second: Average of the squared gradient.
    """

    first: Float[Array, "..."]
    second: Float[Array, "..."]


@dataclass(frozen=True)
class CeloAdam(ReleasedLSTMOptimizer):
    """Adam whose learning rate is scheduled by one LSTM per tensor.

    The LSTM reads the training progress and the trend of the loss. By default it has
    36,865 weights.
    """

    lstm_width: int = 64
    """Units in the LSTM of a tensor."""
    step_scale: float = 1e-3
    """Multiplier of the learning rate."""
    epsilon: float = 1e-8
    """Constant that is added to the root of the second moment."""

    def __post_init__(self):
        check_lstm_sizes(self.lstm_width)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return {"network": self._init_network(key)}

    @property
    @override
    def _network(self) -> TensorLSTM:
        return TensorLSTM(self.lstm_width, 0, INITIAL_LOG_STEP_SIZE, has_mean=False)

    @override
    def init_tensor(self, param):
        return Averages(zeros_like(param), zeros_like(param))

    @override
    def _accumulate(self, state, grad):
        first = decayed(state.first, grad, _DECAYS[0])
        return Averages(first, decayed(state.second, grad**2, _DECAYS[1]))

    @override
    def _statistics(self, tensor, state):
        return jnp.zeros(0, jnp.float32)

    @override
    def _step(self, theta, tensor, controls, step_size, info):
        # `info.count` is not clamped to the horizon, unlike `info.step`, so the bias
        # correction stays valid past the horizon.
        count = info.count.astype(jnp.float32) + 1
        weights = [1 - jnp.power(decay, count) for decay in _DECAYS]
        first, second = (x / w for x, w in zip(tensor.state, weights, strict=True))
        rate = self.step_scale * STEP_SIZE_UNIT * jnp.exp(step_size)
        return -rate * first / (self.epsilon + jnp.sqrt(second + 1e-10))
