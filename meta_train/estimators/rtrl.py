"""Real-time recurrent learning (Williams & Zipser, 1989)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.base import Derivatives
from meta_train.estimators.forward import (
    CarriesDerivative,
    ForwardEstimator,
    linearize_start,
    linearize_step,
)
from tasks.base import State


class RTRLState(struct.PyTreeNode):
    """State of a system together with its Jacobian.

    Attributes:
        state: State of the wrapped system.
        jacobian: Transposed ``d(state)/d(theta)``, one row per outer parameter.
        grad: Flat gradient of the sum of the losses of this window.
    """

    state: State
    jacobian: Float[Array, "..."]
    grad: Float[Array, "..."]


@dataclass(frozen=True)
class _WithJacobian(CarriesDerivative):
    """System that propagates its full Jacobian."""

    @override
    def init_state(self, theta, data, horizon, key):
        start = linearize_start(self.system, theta, data, horizon, key)
        jacobian = jax.vmap(start.push)(jnp.eye(start.theta.size))
        return RTRLState(start.state, jacobian, grad=jnp.zeros_like(start.theta))

    @override
    def sample_input(self, data, state, key):
        return self.system.sample_input(data, state.state, key)

    @override
    def step(self, theta, state, x):
        step = linearize_step(self.system, theta, state.state, x)
        each = jnp.eye(step.theta.size)
        jacobian, grad = jax.vmap(step.push)(each, state.jacobian)
        return RTRLState(step.state, jacobian, state.grad + grad), step.loss


@dataclass(frozen=True)
class RTRL(ForwardEstimator):
    """Exact online gradient by forward propagation of the full Jacobian.

    Memory per episode is the product of the sizes of the state and of `theta`.
    """

    derivatives: ClassVar[Derivatives] = "forward"

    @override
    def augment(self, system):
        return _WithJacobian(system)
