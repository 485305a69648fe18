"""Coordinate-wise LSTM optimizer (Andrychowicz et al., 2016, arXiv:1606.04474)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo
from lopt.base import Theta
from lopt.optimizers.features import clipped, zeros_like
from lopt.optimizers.network import linear

# Threshold ``exp(-k)`` with k = 5: smaller gradients enter the features linearly.
_SMALLEST = math.exp(-5.0)
_SIGN = 1  # Index of the feature with the sign of the gradient.
_NUM_GATES = 4

_normal = nn.initializers.lecun_normal()
_INITIAL_OUTPUT = 2.0


class LSTMState(NamedTuple):
    """State of the two stacked LSTMs of each parameter of a tensor.

    Units are on the first axis, so that parameters are contiguous in memory and the
    state can be sharded like the tensor.

    Attributes:
        hidden: Hidden states of the first and the second LSTM.
        memory: Cell states of the first and the second LSTM.
        used: Whether the parameter has had a nonzero gradient.
    """

    hidden: tuple[Float[Array, "units ..."], Float[Array, "units ..."]]
    memory: tuple[Float[Array, "units ..."], Float[Array, "units ..."]]
    used: Bool[Array, "..."]


class _LSTM(nn.Module):
    """LSTM cell with shared weights; units on the first axis, batch on the others."""

    width: int

    @override
    @nn.compact
    def __call__(
        self,
        inputs: Float[Array, "inputs ..."],
        hidden: Float[Array, "width ..."],
        memory: Float[Array, "width ..."],
    ) -> tuple[Float[Array, "width ..."], Float[Array, "width ..."]]:
        shape = len(inputs) + self.width, _NUM_GATES * self.width
        kernel = self.param("kernel", _normal, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape[1:], jnp.float32)
        gates = linear(kernel, jnp.concatenate([inputs, hidden]), bias)
        candidate, write, keep, read = jnp.split(gates, _NUM_GATES)
        memory = jax.nn.sigmoid(keep) * memory
        memory += jax.nn.sigmoid(write) * jnp.tanh(candidate)
        return jax.nn.sigmoid(read) * jnp.tanh(memory), memory


class _Network(nn.Module):
    """Two stacked LSTMs and a linear output layer."""

    width: int

    @override
    @nn.compact
    def __call__(
        self, features: Float[Array, "features ..."], state: LSTMState
    ) -> tuple[Float[Array, "*n"], LSTMState]:
        top, hidden, memory = features, [], []
        layers = zip(state.hidden, state.memory, strict=True)
        for i, (old, cell) in enumerate(layers):
            top, new = _LSTM(self.width, name=f"lstm_{i}")(top, old, cell)
            hidden.append(top)
            memory.append(new)
        kernel = self.param("kernel", _normal, (self.width, 1), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (1,), jnp.float32)
        new_state = LSTMState(tuple(hidden), tuple(memory), state.used)
        return linear(kernel, top, bias)[0], new_state


@dataclass(frozen=True)
class CoordinateLSTM(PerTensorOptimizer):
    """Two-layer LSTM that maps each parameter's gradient history to its update.

    The gradient is the only input. By default it has 5,141 weights and 80 values of
    state per parameter.
    """

    reads_params: ClassVar[bool] = False

    width: int = 20
    """Units in each of the two LSTMs."""
    step_scale: float = 0.01
    """Multiplier of the network's output."""

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(
                f"`width` must be at least 1; got width={self.width}. Try 20."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        state = self.init_tensor(jnp.zeros(1))
        return _descend(_Network(self.width).init(key, jnp.zeros((2, 1)), state))

    @override
    def init_tensor(self, param):
        def empty():
            return jnp.repeat(zeros_like(param)[None], self.width, axis=0)

        used = jnp.zeros_like(param, dtype=bool)
        return LSTMState((empty(), empty()), (empty(), empty()), used)

    @override
    def is_used(self, state):
        return state.used

    @override
    def update_tensor(self, theta: Theta, tensor: LeafInputs, info: StepInfo):
        features = _features(clipped(tensor.grad))
        applied: Any = _Network(self.width).apply(theta, features, tensor.state)
        output, state = applied
        used = state.used | (tensor.grad != 0)
        return self.step_scale * output, state._replace(used=used)


def _features(grad: Float[Array, "*n"]) -> Float[Array, "2 ..."]:
    """Preprocess gradients as in Andrychowicz et al. (2016).

    The features are ``(log|g| / k, sign(g))`` if ``|g| >= exp(-k)``, and
    ``(-1, exp(k) * g)`` otherwise, with k = 5.
    """
    # Clamping covers both cases and avoids log(0), whose derivative is not finite.
    magnitude = jnp.log(jnp.maximum(jnp.abs(grad), _SMALLEST)) / -math.log(_SMALLEST)
    return jnp.stack([magnitude, jnp.clip(grad / _SMALLEST, -1.0, 1.0)])


def _descend(theta: Theta) -> Theta:
    """Initialize the network to follow the averaged sign of the gradient downhill.

    The first unit of the first LSTM averages the sign over about ten steps, so that
    oscillations across a valley cancel. The first unit of the second LSTM passes it on
    to the output. The other output weights are zero, because random ones would cause
    drift where the gradient is small. All other weights keep their sampled values.
    """
    weights = theta["params"]
    first, second, output = weights["lstm_0"], weights["lstm_1"], weights["kernel"]
    width = len(output)

    def carry(lstm, row, *logits):
        units = width * jnp.arange(_NUM_GATES)  # Index of the first unit of each gate.
        kernel = lstm["kernel"].at[:, units].set(0.0).at[row, 0].set(2.0)
        gates = jnp.asarray([0.0, *logits], jnp.float32)
        return {"kernel": kernel, "bias": lstm["bias"].at[units].set(gates)}

    is_open, is_shut = 2.2, -2.2  # Logits of 0.9 and 0.1.
    return {
        "params": {
            # Logits of the write (input), keep (forget) and read (output) gates.
            "lstm_0": carry(first, _SIGN, is_shut, is_open, is_open),
            "lstm_1": carry(second, 0, is_open, is_shut, is_open),
            # The two LSTMs attenuate a constant sign to 0.63; the weight of -2 makes up
            # for this, so that updates are initially about `step_scale` in size.
            "kernel": jnp.zeros_like(output).at[0].set(-_INITIAL_OUTPUT),
            "bias": weights["bias"],
        }
    }
