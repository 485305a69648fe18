"""Unbiased online recurrent optimization (Tallec & Ollivier, 2017, 1702.05043)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.forward import (
    CarriesDerivative,
    ForwardEstimator,
    linearize_start,
    linearize_step,
)
from tasks.base import State

_TINY = 1e-7


class UOROState(struct.PyTreeNode):
    """State of a system together with a random rank-one estimate of its Jacobian.

    The expectation of the outer product of the two factors is ``d(state)/d(theta)``.

    Attributes:
        state: State of the wrapped system.
        state_factor: Factor with one entry per floating-point entry of `state`.
        theta_factor: Factor with one entry per outer parameter.
        grad: Flat gradient estimate of the sum of the losses of this window.
    """

    state: State
    state_factor: Float[Array, "..."]
    theta_factor: Float[Array, "..."]
    grad: Float[Array, "..."]


@dataclass(frozen=True)
class _WithFactors(CarriesDerivative):
    """System that propagates a rank-one estimate of its Jacobian."""

    @override
    def init_state(self, theta, data, horizon, key):
        key_state, key_signs = jax.random.split(key)
        start = linearize_start(self.system, theta, data, horizon, key_state)
        signs = _signs(key_signs, start.floats)
        (theta_factor,) = jax.linear_transpose(start.push, start.theta)(signs)
        return UOROState(
            start.state, signs, theta_factor, grad=jnp.zeros_like(start.theta)
        )

    @override
    def sample_input(self, data, state, key):
        key_input, key_signs = jax.random.split(key)
        return self.system.sample_input(data, state.state, key_input), key_signs

    @override
    def step(self, theta, state, x):
        x, key_signs = x
        step = linearize_step(self.system, theta, state.state, x)
        pull = jax.linear_transpose(step.push, step.theta, step.floats)
        signs = _signs(key_signs, step.floats)
        pushed, past = step.push(jnp.zeros_like(step.theta), state.state_factor)
        direct, _ = pull((jnp.zeros_like(pushed), jnp.ones_like(past)))
        pulled, _ = pull((signs, jnp.zeros_like(past)))
        # Any scales leave the estimate unbiased, provided that the second one is an
        # even function of the signs. These give both factors equal norms, which keeps
        # the variance low.
        first = _balance(state.theta_factor, pushed)
        second = _balance(pulled, signs)
        following = UOROState(
            state=step.state,
            state_factor=first * pushed + second * signs,
            theta_factor=state.theta_factor / first + pulled / second,
            grad=state.grad + past * state.theta_factor + direct,
        )
        return following, step.loss


def _signs(key: Array, like: Float[Array, " n"]) -> Float[Array, " n"]:
    return jax.random.rademacher(key, like.shape, like.dtype)


def _balance(a: Float[Array, " n"], b: Float[Array, " m"]) -> Float[Array, ""]:
    """Compute the scale ``c`` for which ``a / c`` and ``c * b`` have equal norms."""

    def norm(x):
        return jnp.sqrt(jnp.sum(x**2)) + _TINY

    return jnp.sqrt(norm(a) / norm(b))


@dataclass(frozen=True)
class UORO(ForwardEstimator):
    """Real-time recurrent learning with a random rank-one estimate of the Jacobian.

    Cheaper than `RTRL`, but with a higher variance.
    """

    @override
    def augment(self, system):
        return _WithFactors(system)
