"""Hypernetwork optimizer after VeLO (Metz et al., 2022, arXiv:2211.09760)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, StepInfo
from lopt.base import Theta
from lopt.optimizers.adafactor_features import (
    AccumulatorOptimizer,
    Definition,
    update_accumulators,
)
from lopt.optimizers.features import root_mean_square
from lopt.optimizers.loss_trend import (
    FASTEST,
    LossTrend,
    time_scales,
    trend_features,
    update_trend,
)
from lopt.optimizers.lstm_optimizer import (
    LSTMOptimizer,
    TensorLSTM,
    check_lstm_sizes,
    clipped_log,
    mixed_step,
)
from lopt.optimizers.network import check_sizes

_DEFINITION = Definition(is_extended=True)
_MAX_RANK = 4
# With the default `step_scale`, initial updates are about 1% of the tensor's RMS.
INITIAL_STEP_SIZE = 10.0


@dataclass(frozen=True)
class HyperLSTM(AccumulatorOptimizer, LSTMOptimizer):
    """Per-tensor LSTM that mixes the weights of a per-parameter MLP from banks.

    The inputs of a tensor's LSTM are the training progress, the trend of the loss,
    statistics of the tensor, and the max- and mean-pooled features of all tensors. The
    mixed MLP maps 30 features of each parameter to its update, which is scaled by the
    RMS of the tensor. By default it has 14,465 weights. With VeLO's sizes (512 units,
    256 banks) it has 2,320,385.
    """

    num_statistics: ClassVar[int] = 7 + _MAX_RANK + 1

    lstm_width: int = 32
    """Units in the LSTM of a tensor."""
    num_banks: int = 16
    """Number of MLPs whose weights are mixed."""
    width: int = 4
    """Units in each hidden layer of an MLP."""
    depth: int = 2
    """Number of hidden layers of an MLP."""
    step_scale: float = 1e-3
    """Multiplier of the network's outputs, relative to the RMS of the tensor."""
    smallest_scale: float = 0.1
    """Lower bound on the RMS in that product, times ``1 / sqrt(fan_in)``, so that
    tensors initialized to zero are trained. VeLO has none (0)."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        if not self.smallest_scale >= 0:
            raise ValueError(
                "`smallest_scale` must not be negative; got "
                f"{self.smallest_scale}. Try 0.1."
            )
        check_lstm_sizes(self.lstm_width, self.num_banks)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        share = 1 / math.sqrt(self.num_banks)
        return self._init_with_banks(key, self.width, self.depth, share)

    @property
    @override
    def _network(self) -> TensorLSTM:
        return TensorLSTM(self.lstm_width, self.num_banks, INITIAL_STEP_SIZE)

    @override
    def _follow(self, trend: LossTrend, info: StepInfo):
        assert info.loss is not None
        half_lives = time_scales(jnp.maximum(info.num_steps, FASTEST))
        rates = -jnp.expm1(-math.log(2.0) / half_lives)  # ``1 - decay``
        trend = update_trend(trend, info.loss, rates, info.count == 0)
        # The floor suppresses differences at the level of rounding errors.
        return trend, trend_features(trend, info.count, relative_floor=1e-6)

    @override
    def _accumulate(self, state, grad):
        return update_accumulators(state, grad)

    @override
    def _statistics(self, tensor: LeafInputs, state) -> Float[Array, "12"]:
        """Compute the LSTM inputs that are specific to one tensor.

        These are clipped logarithms of the momenta's variances, of the second moment's
        mean and variance (all after division by the tensor's RMS) and of the RMS
        itself, the log number of elements, and a one-hot encoding of the rank (axes of
        size 1 excluded).
        """
        param = tensor.param
        scale = root_mean_square(param)
        second_moment = state.second_moment / scale
        numbers = [
            *(jnp.var(m / scale) for m in state.momenta),
            jnp.mean(second_moment),
            jnp.var(second_moment),
            scale,
        ]
        logs = clipped_log(jnp.stack(numbers))
        rank = min(sum(size > 1 for size in param.shape), _MAX_RANK)
        known = [math.log(param.size) / 10.0, *np.eye(_MAX_RANK + 1)[rank]]
        return jnp.concatenate([logs, jnp.asarray(known, jnp.float32)])

    @override
    def _step(self, theta, tensor, controls, step_size, info):
        # For independent banks and controls of one, the square root preserves the
        # variance of the weights.
        shares = controls / math.sqrt(self.num_banks)
        scale = -self.step_scale * step_size * self._scale(tensor.param)
        return mixed_step(theta["banks"], shares, tensor, _DEFINITION, scale)

    def _scale(self, param: Float[Array, "..."]) -> Float[Array, ""]:
        """Compute the RMS of a tensor, bounded below."""
        fan_in = math.prod(param.shape[:-1]) or 1
        floor = self.smallest_scale / math.sqrt(fan_in)
        return jnp.maximum(root_mean_square(param), floor)
