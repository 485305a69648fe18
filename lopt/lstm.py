"""A coordinate-wise LSTM (Andrychowicz et al., 2016, arXiv:1606.04474)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import Theta
from lopt.features import zeros_like
from lopt.network import linear
from lopt.tensors import Clock, PerTensorOptimizer, Tensor

_SMALLEST = math.exp(-5.0)  # below it, features are linear in the gradient: k = 5
_SIGN = 1  # the feature that tells up from down
_NUM_GATES = 4

_normal = nn.initializers.lecun_normal()
_INITIAL_OUTPUT = 2.0


class LSTMState(NamedTuple):
    """What the two LSTMs of each parameter remember, the first one first.

    The units come first: the parameters stay next to each other in memory, and are
    sharded as the tensor is.
    """

    hidden: tuple[Float[Array, "units ..."], Float[Array, "units ..."]]
    memory: tuple[Float[Array, "units ..."], Float[Array, "units ..."]]


class _LSTM(nn.Module):
    """Steps LSTMs with the same weights, one in each column."""

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
    """Two LSTMs, one upon the other, and a linear output."""

    width: int

    @override
    @nn.compact
    def __call__(
        self, features: Float[Array, "features ..."], state: LSTMState
    ) -> tuple[Float[Array, "*n"], LSTMState]:
        top, hidden, memory = features, [], []
        for i, (old, cell) in enumerate(zip(*state, strict=True)):
            top, new = _LSTM(self.width, name=f"lstm_{i}")(top, old, cell)
            hidden.append(top)
            memory.append(new)
        kernel = self.param("kernel", _normal, (self.width, 1), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (1,), jnp.float32)
        new_state = LSTMState(tuple(hidden), tuple(memory))
        return linear(kernel, top, bias)[0], new_state


@dataclass(frozen=True)
class CoordinateLSTM(PerTensorOptimizer):
    """Maps the history of each parameter's gradient to its step, with two LSTMs.

    It knows nothing but gradients: 5,141 weights by default, and 80 numbers of state
    for each parameter.
    """

    reads_params: ClassVar[bool] = False

    width: int = 20
    """Units in each of the two LSTMs."""
    step_scale: float = 0.01
    """Size of a step when the network's output is one."""

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
        empty = lambda: jnp.repeat(zeros_like(param)[None], self.width, axis=0)
        return LSTMState((empty(), empty()), (empty(), empty()))

    @override
    def update_tensor(self, theta: Theta, tensor: Tensor, clock: Clock):
        features = _features(tensor.grad)
        applied: Any = _Network(self.width).apply(theta, features, tensor.state)
        output, state = applied
        return self.step_scale * output, state


def _features(grad: Float[Array, "*n"]) -> Float[Array, "2 ..."]:
    """Returns logarithm and sign; of small gradients a constant and the value.

    As the paper has it: ``(log|g| / k, sign g)`` from ``exp(-k)`` on, below it
    ``(-1, exp(k) g)``.
    """
    # Both cases at once, and no logarithm of zero whose derivative could escape.
    magnitude = jnp.log(jnp.maximum(jnp.abs(grad), _SMALLEST)) / -math.log(_SMALLEST)
    return jnp.stack([magnitude, jnp.clip(grad / _SMALLEST, -1.0, 1.0)])


def _descend(theta: Theta) -> Theta:
    """Lets the first unit of both LSTMs carry the gradient's sign to the output.

    The first LSTM's averages it over ten steps, so that steps across a valley cancel,
    and the second's hands it on. All other weights stay as sampled, but for those of
    the output, which are zero: random ones would drift where the gradient is small.
    """
    weights = theta["params"]
    first, second, output = weights["lstm_0"], weights["lstm_1"], weights["kernel"]
    width = len(output)

    def carry(lstm, row, *logits):
        units = width * jnp.arange(_NUM_GATES)  # the first of every gate
        kernel = lstm["kernel"].at[:, units].set(0.0).at[row, 0].set(2.0)
        gates = jnp.asarray([0.0, *logits], jnp.float32)
        return {"kernel": kernel, "bias": lstm["bias"].at[units].set(gates)}

    is_open, is_shut = 2.2, -2.2  # nine tenths, one tenth
    return {
        "params": {
            # Write, keep, read.
            "lstm_0": carry(first, _SIGN, is_shut, is_open, is_open),
            "lstm_1": carry(second, 0, is_open, is_shut, is_open),
            # The path shrinks the sign by half: steps start as long as they may.
            "kernel": jnp.zeros_like(output).at[0].set(-_INITIAL_OUTPUT),
            "bias": weights["bias"],
        }
    }
