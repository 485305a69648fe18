"""Hierarchical RNN optimizer after Wichrowska et al. (2017, arXiv:1703.04813)."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from typing_extensions import override

from lopt.adapter import LeafInputs, StepInfo, TensorOptimizer
from lopt.base import Theta
from lopt.optimizers.features import clipped, mean_square, zeros_like
from lopt.optimizers.network import along_first, linear

_NUM_MOMENTA = 4
# Scaled momenta, products of adjacent ones, relative log mean squares, relative log
# learning rate.
_NUM_INPUTS = _NUM_MOMENTA + (_NUM_MOMENTA - 1) + _NUM_MOMENTA + 1
_NUM_OUTPUTS = 4
_LEVELS = ("parameter", "tensor", "whole")
_TINY = 1e-16
# Bound on ``|log(learning rate / initial learning rate)|``, which keeps rates finite.
_FARTHEST = 10.0
# Logits of the initial decays: 0.9 for momenta, 0.96 for mean squares and rates.
_MOMENTUM_LOGIT, _SCALE_LOGIT, _RATE_LOGIT = 2.2, 3.2, 3.2

_zeros = nn.initializers.zeros
# Half of LeCun's variance, because input and recurrent terms are summed.
_normal = nn.initializers.variance_scaling(0.5, "fan_in", "truncated_normal")


class HierarchicalState(NamedTuple):
    """State of one tensor: 21 values per parameter by default.

    Attributes:
        hidden: Hidden state of each parameter's RNN, with units on the first axis.
        momenta: Averages of the gradient, each over twice the time scale of the
            previous one.
        mean_squares: Averages of the squares of `momenta`.
        log_rate: ``log(learning rate / initial learning rate)`` of each parameter.
        momentum_logit: Logit of the decay of the fastest momentum.
        scale_logit: Logit of the decay of `mean_squares`.
    """

    hidden: Float[Array, "units ..."]
    momenta: tuple[Float[Array, "..."], ...]
    mean_squares: tuple[Float[Array, "..."], ...]
    log_rate: Float[Array, "..."]
    momentum_logit: Float[Array, "..."]
    scale_logit: Float[Array, "..."]


class HierarchicalShared(NamedTuple):
    """Hidden states of the upper two levels.

    Attributes:
        tensors: Hidden state of each tensor's RNN.
        whole: Hidden state of the global RNN.
    """

    tensors: Float[Array, "tensors units"]
    whole: Float[Array, " units"]


class _Hidden(NamedTuple):
    """Hidden states of the RNNs of all levels, with units on the first axis."""

    parameters: list[Float[Array, "units ..."]]
    tensors: Float[Array, "units tensors"]
    whole: Float[Array, "units 1"]


class _GRU(nn.Module):
    """GRU cell with shared weights; units on the first axis, batch on the others."""

    width: int

    @override
    @nn.compact
    def __call__(
        self,
        inputs: Float[Array, "inputs ..."],
        hidden: Float[Array, "width ..."],
        from_above: Float[Array, "gates 1"] | None = None,
    ) -> Float[Array, "width ..."]:
        """Compute the next hidden state; `from_above` is added to the biases."""
        size = 3 * self.width
        kernel = self.param("kernel", _normal, (len(inputs), size), jnp.float32)
        recurrent = self.param("recurrent", _normal, (self.width, size), jnp.float32)
        bias = self.param("bias", self._init_bias, (size,), jnp.float32)
        bias = bias if from_above is None else bias + from_above[:, 0]
        drive, num_gates = linear(kernel, inputs, bias), 2 * self.width
        gates = drive[:num_gates] + linear(recurrent[:, :num_gates], hidden)
        reset, keep = jnp.split(jax.nn.sigmoid(gates), 2)
        recalled = linear(recurrent[:, num_gates:], reset * hidden)
        return _blend(hidden, jnp.tanh(drive[num_gates:] + recalled), keep)

    def _init_bias(self, key: PRNGKeyArray, shape, dtype) -> Array:
        # A logit of 2.2 opens the reset and keep gates to 0.9 at initialization, so
        # that the hidden state persists.
        gates = jnp.full(2 * self.width, 2.2, dtype)
        return jnp.concatenate([gates, jnp.zeros(self.width, dtype)])


class _Network(nn.Module):
    """RNNs of the three levels and output layer of the parameter level."""

    widths: tuple[int, int, int]

    @override
    @nn.compact
    def __call__(
        self,
        inputs: Sequence[Float[Array, "inputs ..."]],
        hidden: _Hidden,
        is_first: Bool[Array, ""],
    ) -> tuple[list[Float[Array, "outputs ..."]], _Hidden]:
        """Compute the outputs for each tensor and the new hidden states.

        Each level reads the previous hidden states of the levels above it and the
        current ones of the level below it.
        """
        width, tensor_width, whole_width = self.widths
        # The initial hidden states are part of theta, which is not available when the
        # state is initialized. They are therefore inserted at the first step.
        initial = [
            self.param(f"initial_{name}", _zeros, (size, 1), jnp.float32)
            for name, size in zip(_LEVELS, self.widths, strict=True)
        ]
        parameters = [
            jnp.where(is_first, along_first(initial[0], h.ndim), h)
            for h in hidden.parameters
        ]
        tensors = jnp.where(is_first, initial[1], hidden.tensors)
        whole = jnp.where(is_first, initial[2], hidden.whole)

        def connect(name, shape, above):
            return self.param(name, _normal, shape, jnp.float32).T @ above

        biases = connect("tensor_to_parameter", (tensor_width, 3 * width), tensors)
        biases += connect("whole_to_parameter", (whole_width, 3 * width), whole)
        rnn = _GRU(width, name="parameter")
        parameters = [
            rnn(x, old, biases[:, i : i + 1])
            for i, (x, old) in enumerate(zip(inputs, parameters, strict=True))
        ]
        below = [
            jnp.concatenate([new, x]).mean(range(1, x.ndim))
            for new, x in zip(parameters, inputs, strict=True)
        ]
        bias = connect("whole_to_tensor", (whole_width, 3 * tensor_width), whole)
        tensors = _GRU(tensor_width, name="tensor")(jnp.stack(below, 1), tensors, bias)
        whole = _GRU(whole_width, name="whole")(tensors.mean(1, keepdims=True), whole)

        shape = width, _NUM_OUTPUTS
        kernel = self.param("output_kernel", _zeros, shape, jnp.float32)
        bias = self.param("output_bias", _init_output_bias, shape[1:], jnp.float32)
        outputs = [linear(kernel, new, bias) for new in parameters]
        return outputs, _Hidden(parameters, tensors, whole)


def _init_output_bias(key: PRNGKeyArray, shape, dtype) -> Array:
    return jnp.asarray([0.0, 0.0, _MOMENTUM_LOGIT, _SCALE_LOGIT], dtype)


@dataclass(frozen=True)
class HierarchicalRNN(TensorOptimizer):
    """Hierarchy of RNNs: one per parameter, one per tensor and one global RNN.

    The inputs of a parameter's RNN are four momenta divided by their root mean squares,
    products of adjacent scaled momenta, the log mean squares relative to their average
    over the four time scales, and the log learning rate relative to the tensor's mean.
    Its outputs are a direction, a change of the log learning rate, and the decays of
    the averages for the next step. The update is minus the learning rate times the
    direction, which is normalized to unit RMS over the tensor.
    """

    reads_params: ClassVar[bool] = False

    parameter_width: int = 10
    """Units in the RNN of a parameter."""
    tensor_width: int = 20
    """Units in the RNN of a tensor."""
    global_width: int = 20
    """Units in the global RNN."""
    initial_lr: float = 0.01
    """Initial learning rate before meta-training; `theta` learns its logarithm."""

    def __post_init__(self):
        if min(self._widths) < 1:
            raise ValueError(
                "`parameter_width`, `tensor_width` and `global_width` must be at least "
                f"1; got {self._widths}. Try 10, 20 and 20."
            )
        if not self.initial_lr > 0:
            raise ValueError(
                f"`initial_lr` must be positive; got {self.initial_lr}. Try 0.01."
            )

    @property
    def _widths(self) -> tuple[int, int, int]:
        return self.parameter_width, self.tensor_width, self.global_width

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        inputs = [jnp.zeros((_NUM_INPUTS, 1))]
        parameter, tensor, whole = (jnp.zeros((width, 1)) for width in self._widths)
        hidden = _Hidden([parameter], tensor, whole)
        network = _Network(self._widths).init(key, inputs, hidden, jnp.asarray(True))
        return {
            **network,
            # Skip connection around the RNNs, whose direction is zero at
            # initialization: the mean of the scaled momenta.
            "shortcut": jnp.full(_NUM_MOMENTA, 1 / _NUM_MOMENTA, jnp.float32),
            "initial_log_rate": jnp.full((), math.log(self.initial_lr), jnp.float32),
            "log_rate_logit": jnp.full((), _RATE_LOGIT, jnp.float32),
        }

    @override
    def init_tensor(self, param):
        def several():
            return tuple(zeros_like(param) for _ in range(_NUM_MOMENTA))

        return HierarchicalState(
            hidden=jnp.repeat(zeros_like(param)[None], self.parameter_width, axis=0),
            momenta=several(),
            mean_squares=several(),
            log_rate=zeros_like(param),
            momentum_logit=zeros_like(param),
            scale_logit=zeros_like(param),
        )

    @override
    def is_used(self, state):
        return state.momenta[-1] != 0  # the slowest average of the gradient

    @override
    def init_shared(self, num_tensors: int) -> HierarchicalShared:
        return HierarchicalShared(
            jnp.zeros((num_tensors, self.tensor_width), jnp.float32),
            jnp.zeros(self.global_width, jnp.float32),
        )

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
        is_first = info.count == 0
        states = [_average(tensor, is_first) for tensor in tensors]
        inputs = [_inputs(state) for state in states]
        places = jnp.asarray([tensor.leaf_index for tensor in tensors])
        rows = shared.tensors[places]
        own = [state.hidden for state in states]
        hidden = _Hidden(own, rows.T, shared.whole[:, None])
        network = {"params": theta["params"]}
        applied: Any = _Network(self._widths).apply(network, inputs, hidden, is_first)
        outputs, (own, new, whole) = applied
        results = [
            _finish(theta, state._replace(hidden=units), *rest)
            for state, units, *rest in zip(states, own, inputs, outputs, strict=True)
        ]
        rows = shared.tensors.at[places].set(new.T)
        return results, HierarchicalShared(rows, whole[:, 0])


def _blend(
    old: Float[Array, "..."], new: Float[Array, "..."], keep: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Interpolate elementwise: ``keep * old + (1 - keep) * new``."""
    return keep * old + (1 - keep) * new


def _average(tensor: LeafInputs, is_first: Bool[Array, ""]) -> HierarchicalState:
    """Update the momenta and mean squares with one gradient."""
    grad, state = clipped(tensor.grad), tensor.state

    def decay(logit, power):
        # A decay of zero at the first step sets the averages to their first value,
        # so no bias correction is needed.
        power_of_sigmoid = jnp.exp(power * jax.nn.log_sigmoid(logit))
        return jnp.where(is_first, 0.0, power_of_sigmoid)

    momenta = tuple(
        _blend(m, grad, decay(state.momentum_logit, 0.5**i))
        for i, m in enumerate(state.momenta)
    )
    scale_decay = decay(state.scale_logit, 1.0)
    mean_squares = tuple(
        _blend(square, m**2, scale_decay)
        for square, m in zip(state.mean_squares, momenta, strict=True)
    )
    return state._replace(momenta=momenta, mean_squares=mean_squares)


def _inputs(state: HierarchicalState) -> Float[Array, "inputs ..."]:
    """Compute the inputs of the parameters' RNNs; the scaled momenta come first."""
    scaled = [
        m * jax.lax.rsqrt(square + _TINY)
        for m, square in zip(state.momenta, state.mean_squares, strict=True)
    ]
    products = [a * b for a, b in itertools.pairwise(scaled)]
    logs = jnp.log(jnp.stack(state.mean_squares) + _TINY)
    relative_logs = logs - logs.mean(0, keepdims=True)
    relative_rate = state.log_rate - state.log_rate.mean()
    return jnp.stack([*scaled, *products, *relative_logs, relative_rate])


def _finish(
    theta: Theta,
    state: HierarchicalState,
    inputs: Float[Array, "inputs ..."],
    outputs: Float[Array, "outputs ..."],
) -> tuple[Array, HierarchicalState]:
    """Compute the update and the state with new learning rates and decays."""
    direction, change, momentum_logit, scale_logit = outputs
    direction += jnp.tensordot(theta["shortcut"], inputs[:_NUM_MOMENTA], 1)
    direction *= jax.lax.rsqrt(mean_square(direction) + _TINY)
    log_rate = jnp.clip(state.log_rate + change, -_FARTHEST, _FARTHEST)
    step = -jnp.exp(theta["initial_log_rate"] + log_rate) * direction
    return step, state._replace(
        # The update uses the new learning rate; the state stores a moving average.
        log_rate=_blend(
            state.log_rate, log_rate, jax.nn.sigmoid(theta["log_rate_logit"])
        ),
        momentum_logit=momentum_logit,
        scale_logit=scale_logit,
    )
