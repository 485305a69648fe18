"""Conformance of every registered optimizer to what users of Adam expect."""

import functools
import importlib.util

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

from lopt.errors import UserError
from tests.lopt.test_contract import (
    MATRIX,
    NUM_STEPS,
    ONE,
    PARAMS,
    VECTOR,
    bound,
    error_without,
    every_optimizer,
    gradients,
    loss,
    make,
    plain,
)


@every_optimizer
def test_updates_have_the_dtype_of_the_parameters(name):
    tx = make(name)
    half = optax.tree.cast(gradients(PARAMS), jnp.bfloat16)
    # Dtypes are known without compiling.
    update = functools.partial(jax.eval_shape, tx.update)
    updates, _ = update(half, tx.init(PARAMS), PARAMS, value=loss())
    chex.assert_trees_all_equal_dtypes(updates, PARAMS)


@every_optimizer
def test_parameters_without_a_gradient_keep_their_values(name):
    optimizer, theta = bound(name)
    # A trained theta, whose output layers and biases are not zero.
    theta = jax.tree.map(
        lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), theta
    )
    tx = optimizer.as_optax(theta, NUM_STEPS)
    params = {"unused": MATRIX, "embedding": jnp.ones((4, 3)), "b": VECTOR}
    kept = {"embedding": np.asarray([1, 3]), "b": np.asarray([0])}

    def with_gaps(step):
        grads = {**gradients(params, step), "unused": jnp.zeros_like(MATRIX)}
        for leaf, rows in kept.items():
            grads[leaf] = grads[leaf].at[rows].set(0.0)
        return grads

    state, now, update = tx.init(params), params, jax.jit(tx.update)
    for step in range(5):
        updates, state = update(with_gaps(step), state, now, value=loss(step))
        now = optax.apply_updates(now, updates)
    chex.assert_trees_all_equal(now["unused"], params["unused"])
    for leaf, rows in kept.items():
        chex.assert_trees_all_equal(now[leaf][rows], params[leaf][rows])
        others = np.setdiff1d(np.arange(len(params[leaf])), rows)
        assert not jnp.any(now[leaf][others] == params[leaf][others])


@functools.cache
def jitted(name):
    return jax.jit(make(name).update)


@pytest.mark.parametrize("size", [1e-30, 1e20, 1e30, np.inf, -np.inf])
@every_optimizer
def test_one_gradient_of_extreme_size_does_no_lasting_damage(name, size):
    update, state, params = jitted(name), make(name).init(PARAMS), PARAMS
    updates = None
    for step in range(4):
        grads = gradients(params, step)
        if step == 1:
            grads["w"] = grads["w"].at[0, 0].set(size)
            grads["b"] = grads["b"].at[0].set(size)
        updates, state = update(grads, state, params, value=loss(step))
        params = optax.apply_updates(params, updates)
    if np.isinf(size) and not getattr(bound(name)[0], "clips_gradients", True):
        assert not np.isfinite(params["w"][0, 0])
        chex.assert_tree_all_finite(params["w"][1])
        return
    for x in jax.tree.leaves((params, updates, state)):
        assert np.isfinite(x).all(), "clip gradients, or set clips_gradients = False"


@every_optimizer
def test_a_tensor_of_zeros_is_trained_like_others(name):
    if name in ("VeLO", "Celo"):
        pytest.skip("as released, step sizes are relative to the RMS of the tensor")
    optimizer, theta = bound(name)
    start = {"w": jnp.zeros((8, 8)), "b": jnp.zeros(8)}

    def distance(params):
        return jnp.mean((params["w"] + params["b"][None] - 1) ** 2)

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(distance)(params)
        updates, state = tx.update(grads, state, params, value=value)
        return (optax.apply_updates(params, updates), state), value

    tx = optimizer.as_optax(theta, 100)
    (params, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=100)
    assert distance(params) < 0.97


class LossTrainState(TrainState):
    def apply_gradients(self, *, grads, value):
        updates, opt_state = self.tx.update(
            grads, self.opt_state, self.params, value=value
        )
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state)


@every_optimizer
def test_flax_train_state_wraps_it(name):
    plain_state, loss_state = (
        kind.create(apply_fn=None, params=PARAMS, tx=make(name))
        for kind in (TrainState, LossTrainState)
    )
    for i in range(2):
        loss_state = loss_state.apply_gradients(
            grads=gradients(PARAMS, i), value=loss(i)
        )
    chex.assert_trees_all_equal(loss_state.params, plain(name)[1])
    if error_without(name, "value"):
        with pytest.raises(UserError, match="value=loss"):
            plain_state.apply_gradients(grads=gradients(PARAMS))
        return
    for i in range(2):
        plain_state = plain_state.apply_gradients(grads=gradients(PARAMS, i))
    chex.assert_trees_all_equal(plain_state.params, plain(name)[1])


@every_optimizer
def test_export_requires_flatbuffers(name):
    tx = make(name)

    @jax.jit
    def update(grads, params, value):
        return tx.update(grads, tx.init(params), params, value=value)[0]

    exported = jax.export.export(update)(gradients(ONE), ONE, loss())
    if importlib.util.find_spec("flatbuffers") is None:
        with pytest.raises(ImportError, match="flatbuffers"):
            exported.serialize()
        return
    again = jax.export.deserialize(exported.serialize())
    expected = update(gradients(ONE), ONE, loss())
    chex.assert_trees_all_close(again.call(gradients(ONE), ONE, loss()), expected)
