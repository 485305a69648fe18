"""Hypernetwork optimizer after VeLO (Metz et al., 2022, arXiv:2211.09760)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from typing_extensions import override

from lopt.adapter import LeafInputs, StepInfo, TensorOptimizer
from lopt.base import Theta
from lopt.optimizers.adafactor_features import (
    MOMENTUM,
    NUM_EXTENDED,
    apply_network,
    init_accumulators,
    update_accumulators,
)
from lopt.optimizers.features import mean_square
from lopt.optimizers.network import check_sizes, init_layers

_PROGRESS = (0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1)
_NUM_AVERAGES = 10
_FASTEST_HALF_LIFE = 10.0
_MAX_RANK = 4
_NUM_STATISTICS = len(_PROGRESS) + (_NUM_AVERAGES - 1) + 7 + (_MAX_RANK + 1)
_LARGEST_GRADIENT = 1000.0
# With the default `step_scale`, initial updates are about 1% of the tensor's RMS.
_INITIAL_STEP_SIZE = 10.0


class LossTrend(NamedTuple):
    """Moving averages of the loss, with half-lives from 10 steps to the horizon.

    Attributes:
        means: Bias-corrected averages, fastest first.
        weights: Total weight of the losses in each average, ``1 - decay**count``.
        minima: Running minimum of each average.
    """

    means: Float[Array, " averages"]
    weights: Float[Array, " averages"]
    minima: Float[Array, " averages"]


class HyperShared(NamedTuple):
    """State that is not specific to a parameter.

    Attributes:
        hidden: Hidden state of each tensor's LSTM.
        memory: Cell state of each tensor's LSTM.
        trend: Moving averages of the loss.
    """

    hidden: Float[Array, "tensors units"]
    memory: Float[Array, "tensors units"]
    trend: LossTrend


class _Network(nn.Module):
    """LSTM that maps tensor statistics to mixture coefficients and step sizes."""

    width: int
    num_banks: int

    @override
    @nn.compact
    def __call__(
        self,
        statistics: Float[Array, "tensors statistics"],
        hidden: Float[Array, "tensors units"],
        memory: Float[Array, "tensors units"],
        is_first: Bool[Array, ""],
    ):
        own = nn.Dense(self.width, name="own")(statistics)
        largest = nn.relu(nn.Dense(self.width, name="largest")(statistics))
        mean = nn.relu(nn.Dense(self.width, name="mean")(statistics))
        inputs = own + largest.max(0, keepdims=True) + mean.mean(0, keepdims=True)

        # The initial LSTM state is part of theta, which is not available when the
        # state is initialized. It is therefore inserted at the first step.
        shape = 2, self.width
        initial = self.param("initial", nn.initializers.zeros, shape, jnp.float32)
        hidden = jnp.where(is_first, initial[:1], hidden)
        memory = jnp.where(is_first, initial[1:], memory)
        # Flax's default recurrent initializer is orthogonal and calls LAPACK. Batched
        # LAPACK calls can deadlock on CPU.
        normal = nn.initializers.lecun_normal()
        cell = nn.OptimizedLSTMCell(
            self.width, recurrent_kernel_init=normal, name="lstm"
        )
        (memory, hidden), _ = cell((memory, hidden), inputs)

        # Zero kernels give all tensors the same MLP and step size at initialization.
        def head(size, start, name):
            return nn.Dense(
                size,
                kernel_init=nn.initializers.zeros,
                bias_init=nn.initializers.constant(start),
                name=name,
            )(hidden)

        controls = head(self.num_banks, 1.0, "controls")
        step_sizes = head(1, _INITIAL_STEP_SIZE, "step_size")[:, 0]
        return controls, step_sizes, hidden, memory


@dataclass(frozen=True)
class HyperLSTM(TensorOptimizer):
    """Per-tensor LSTM that mixes the weights of a per-parameter MLP from banks.

    The inputs of a tensor's LSTM are the training progress, the trend of the loss,
    statistics of the tensor, and the max- and mean-pooled features of all tensors. The
    mixed MLP maps 30 features of each parameter to its update, which is scaled by the
    RMS of the tensor. By default it has 14,465 weights. With VeLO's sizes (512 units,
    256 banks) it has 2,320,385.
    """

    reads_loss: ClassVar[bool] = True

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
        if self.lstm_width < 1 or self.num_banks < 1:
            raise ValueError(
                "`lstm_width` and `num_banks` must be at least 1; got "
                f"lstm_width={self.lstm_width}, num_banks={self.num_banks}."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        key_first, key_network, *keys = jax.random.split(key, 2 + self.num_banks)
        sizes = (NUM_EXTENDED, *[self.width] * self.depth, 3)
        banks = jax.vmap(lambda k: init_layers(sizes, k))(jnp.stack(keys))
        # Shift all banks equally, so that their initial mixture is `first`, an MLP that
        # follows the momentum.
        first = init_layers(sizes, key_first, copied_input=MOMENTUM + 1)
        share = 1 / math.sqrt(self.num_banks)
        mixture = _mix(banks, jnp.ones(self.num_banks, jnp.float32))
        banks = jax.tree.map(
            lambda bank, a, b: bank + share * (a - b)[None], banks, first, mixture
        )
        empty = jnp.zeros((1, self.lstm_width))
        network = self._network.init(
            key_network,
            jnp.zeros((1, _NUM_STATISTICS)),
            empty,
            empty,
            jnp.asarray(True),
        )
        return {"banks": banks, "network": network}

    @property
    def _network(self) -> _Network:
        return _Network(self.lstm_width, self.num_banks)

    @override
    def init_tensor(self, param):
        return init_accumulators(param)

    @override
    def is_used(self, state):
        return state.momenta[-1] != 0  # the slowest average of the gradient

    @override
    def init_shared(self, num_tensors: int) -> HyperShared:
        def empty(*shape):
            return jnp.zeros(shape, jnp.float32)

        units = num_tensors, self.lstm_width
        trend = LossTrend(*(empty(_NUM_AVERAGES) for _ in LossTrend._fields))
        return HyperShared(empty(*units), empty(*units), trend)

    @override
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: PyTree,
        info: StepInfo,
    ):
        if not tensors:
            return [], shared
        trend = _update_trend(shared.trend, info)
        run = [_progress_features(info), _trend_features(trend, info)]
        tensors = [_with_gradient(tensor) for tensor in tensors]
        rows = [jnp.concatenate([*run, _statistics(tensor)]) for tensor in tensors]
        places = jnp.asarray([tensor.leaf_index for tensor in tensors])
        outputs: Any = self._network.apply(
            theta["network"],
            jnp.stack(rows),
            shared.hidden[places],
            shared.memory[places],
            info.count == 0,
        )
        controls, step_sizes, hidden, memory = outputs
        results = [
            (self._step(theta["banks"], tensor, *outputs), tensor.state)
            for tensor, *outputs in zip(tensors, controls, step_sizes, strict=True)
        ]
        return results, HyperShared(
            shared.hidden.at[places].set(hidden),
            shared.memory.at[places].set(memory),
            trend,
        )

    def _step(
        self,
        banks: Theta,
        tensor: LeafInputs,
        controls: Float[Array, " banks"],
        step_size: Float[Array, ""],
    ) -> Float[Array, "..."]:
        """Compute the update of one tensor with its mixed MLP."""
        grad, param, accumulators, *_ = tensor
        return apply_network(
            _mix(banks, controls),
            grad,
            param,
            accumulators,
            jnp.zeros(0, jnp.float32),
            extended=True,
            scale=-self.step_scale * step_size * self._scale(param),
        )

    def _scale(self, param: Float[Array, "..."]) -> Float[Array, ""]:
        """Compute the RMS of a tensor, bounded below."""
        fan_in = math.prod(param.shape[:-1]) or 1
        floor = self.smallest_scale / math.sqrt(fan_in)
        return jnp.maximum(_root_mean_square(param), floor)


def _with_gradient(tensor: LeafInputs) -> LeafInputs:
    """Clip the gradient elementwise and update the accumulators with it."""
    grad = jnp.clip(tensor.grad, -_LARGEST_GRADIENT, _LARGEST_GRADIENT)
    return tensor._replace(grad=grad, state=update_accumulators(tensor.state, grad))


def _mix(banks: Theta, controls: Float[Array, " banks"]) -> Theta:
    """Mix the weights of one MLP: ``sum_i controls[i] * banks[i] / sqrt(num_banks)``.

    For independent banks and controls of one, the square root preserves the variance of
    the weights.
    """
    share = controls / math.sqrt(len(controls))
    return jax.tree.map(lambda bank: jnp.tensordot(share, bank, 1), banks)


def _root_mean_square(param: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sqrt(mean_square(param) + 1e-9)


def _progress_features(info: StepInfo) -> Float[Array, "9"]:
    """Compute soft indicators of the fractions of the run that have passed."""
    return jnp.tanh(10.0 * (info.progress - jnp.asarray(_PROGRESS, jnp.float32)))


def _update_trend(trend: LossTrend, info: StepInfo) -> LossTrend:
    """Update the moving averages with the current loss."""
    assert info.loss is not None
    slowest = jnp.maximum(info.num_steps, _FASTEST_HALF_LIFE)
    powers = jnp.linspace(0.0, 1.0, _NUM_AVERAGES, dtype=jnp.float32)
    half_lives = _FASTEST_HALF_LIFE * (slowest / _FASTEST_HALF_LIFE) ** powers
    rates = -jnp.expm1(-math.log(2.0) / half_lives)  # ``1 - decay``
    # A non-finite loss would never leave the averages, so it is ignored.
    loss = jnp.where(jnp.isfinite(info.loss), info.loss, trend.means)
    weights = trend.weights + rates * (1 - trend.weights)
    means = trend.means + rates / weights * (loss - trend.means)
    minima = jnp.where(info.count == 0, means, jnp.minimum(trend.minima, means))
    return LossTrend(means, weights, minima)


def _trend_features(trend: LossTrend, info: StepInfo) -> Float[Array, "9"]:
    """Compute the position of each average relative to the next slower one.

    The value is -1 at the running minimum of the average, 0 at the slower average, and
    is clamped to 1 above it.
    """
    fast, slow, minima = trend.means[:-1], trend.means[1:], trend.minima[:-1]
    # The floor suppresses differences at the level of rounding errors.
    floor = 1e-8 + 1e-6 * jnp.abs(slow)
    position = (fast - minima) / jnp.maximum(slow - minima, floor)
    return jnp.where(info.count < 2, 0.0, jnp.clip(position - 1.0, -1.0, 1.0))


def _statistics(tensor: LeafInputs) -> Float[Array, "12"]:
    """Compute the LSTM inputs that are specific to one tensor.

    These are clipped logarithms of the momenta's variances, of the second moment's mean
    and variance (all after division by the tensor's RMS) and of the RMS itself, the log
    number of elements, and a one-hot encoding of the rank (axes of size 1 excluded).
    """
    param, accumulators = tensor.param, tensor.state
    scale = _root_mean_square(param)
    second_moment = accumulators.second_moment / scale
    numbers = [
        *(jnp.var(m / scale) for m in accumulators.momenta),
        jnp.mean(second_moment),
        jnp.var(second_moment),
        scale,
    ]
    logs = jnp.log(1e-8 + jnp.abs(10.0 * jnp.stack(numbers)))
    rank = min(sum(size > 1 for size in param.shape), _MAX_RANK)
    known = [math.log(param.size) / 10.0, *np.eye(_MAX_RANK + 1)[rank]]
    return jnp.concatenate(
        [0.5 * jnp.clip(logs, -5.0, 5.0), jnp.asarray(known, jnp.float32)]
    )
