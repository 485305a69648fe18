"""Errors of the adapter for mistakes in an update rule."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from typing_extensions import override

from lopt.adapter import PerTensorOptimizer
from lopt.errors import UserError

NUM_STEPS = 10


@dataclass(frozen=True)
class Faulty(PerTensorOptimizer):
    """Update rule with one of the mistakes below."""

    fault: str = ""

    @override
    def init_theta(self, key):
        return {}

    @override
    def init_tensor(self, param):
        # Without a dtype: float64 if x64 is enabled.
        dtype = None if self.fault == "x64" else jnp.float32
        if self.fault == "number":
            return {"m": 0.0}  # becomes a float32 array
        return {"m": jnp.zeros(param.shape, dtype)}

    @override
    def update_tensor(self, theta, tensor, info):
        step, momentum = -tensor.grad, 0.5 * tensor.state["m"] + tensor.grad
        if self.fault == "update":
            step = step[:1]
        if self.fault == "shape":
            momentum = momentum[None]
        if self.fault == "structure":
            return step, momentum
        if self.fault == "pair":
            return step
        if self.fault == "number":
            momentum = tensor.state["m"] + 1
        if self.fault == "x64":
            momentum = momentum.astype(jnp.float32)
        return step, {"m": momentum}


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("update", r"Faulty .*shape of the gradient; got \(1,\) for .*\(3,\)"),
        ("shape", r"Faulty .*got {'m': 'float32\[1, 3\]'} instead of .*float32\[3\]"),
        ("pair", r"`update_tensor` of Faulty must return .* got \S*Array"),
        ("structure", r"Faulty .*got float32\[3\] instead of {'m': 'float32\[3\]'}"),
        ("x64", r"Faulty .*got {'m': 'float32.* instead of {'m': 'float64"),
    ],
)
def test_mistakes_of_an_update_rule_name_its_class(fault, complaint):
    with jax.enable_x64(fault == "x64"):
        params = jnp.ones(3, jnp.float32)
        tx = Faulty(fault).as_optax({}, NUM_STEPS)
        with pytest.raises(UserError, match=complaint):
            tx.update(params, tx.init(params), params)


def test_states_of_half_precision_parameters_may_follow_their_dtype():
    @dataclass(frozen=True)
    class Momentum(Faulty):
        @override
        def init_tensor(self, param):
            return {"m": jnp.zeros_like(param)}

    params = jnp.ones(3, jnp.bfloat16)
    tx = Momentum().as_optax({}, NUM_STEPS)
    _, state = tx.update(params, tx.init(params), params)
    assert state.tensors["m"].dtype == jnp.float32


@pytest.mark.parametrize("x64", [False, True])
def test_python_numbers_of_a_state_become_arrays(x64):
    with jax.enable_x64(x64):
        params = jnp.ones(3, jnp.float32)
        tx = Faulty("number").as_optax({}, NUM_STEPS)
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(params, state, params)
        (number,) = jax.tree.leaves(state.tensors)
        assert number == 2.0
        assert number.dtype == jnp.float32
