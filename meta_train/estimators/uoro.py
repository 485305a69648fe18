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
    """A system's state and a random rank-one stand-in for its Jacobian."""

    state: State
    state_factor: Float[Array, "..."]  # the mean of its outer product with
    theta_factor: Float[Array, "..."]  # this one is d(state)/d(theta)
    grad: Float[Array, "..."]  # of the losses of this window


@dataclass(frozen=True)
class _WithFactors(CarriesDerivative):
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
        # Any scales would do; these keep both factors of the same length, which is
        # what keeps the variance down. The second must be even in the signs.
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
    norm = lambda x: jnp.sqrt(jnp.sum(x**2)) + _TINY
    return jnp.sqrt(norm(a) / norm(b))


@dataclass(frozen=True)
class UORO(ForwardEstimator):
    """Real-time recurrent learning with a random rank-one Jacobian: cheap, noisy."""

    @override
    def augment(self, system):
        return _WithFactors(system)
