"""`LearnedMuon`: scale invariance, all kinds of tensors, robustness to gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.optimizers.learned_muon import OUTPUTS, Kind, LearnedMuon, _matrix_shape
from lopt.optimizers.tensor_statistics import FEATURES

NUM_STEPS = 50
OPTIMIZER = LearnedMuon()
THETA = OPTIMIZER.init_theta(jax.random.key(0))


@functools.partial(jax.jit, static_argnames=("grads_of", "num_steps"))
def train(params, grads_of, knob=1.0, *, num_steps=NUM_STEPS, theta=THETA):
    """Train on the gradients ``grads_of(params, step, knob)``."""
    tx = OPTIMIZER.as_optax(theta, num_steps)

    def step(carry, i):
        params, state = carry
        updates, state = tx.update(grads_of(params, i, knob), state, params)
        return (optax.apply_updates(params, updates), state), updates

    carry = params, tx.init(params)
    (params, _), updates = jax.lax.scan(step, carry, jnp.arange(num_steps))
    return params, updates


@pytest.fixture
def params(key):
    draw = lambda i, *shape: 0.1 * jax.random.normal(jax.random.fold_in(key, i), shape)
    return {
        "kernel": draw(0, 6, 4),
        "bias": jnp.zeros(4),
        "embedding": draw(1, 5, 3),
        "heads": {"kernel": draw(2, 6, 2, 3), "bias": jnp.zeros((2, 3))},
        "scale": jnp.ones(()),
    }


def quadratic(params, target=0.3):
    square = lambda x: jnp.sum((x - target) ** 2)
    return sum(map(square, jax.tree.leaves(params)))


def scaled(params, i, scale):
    return jax.tree.map(lambda g: scale * g, jax.grad(quadratic)(params))


def with_spike(params, i, spike):
    found = jax.grad(quadratic)(params)
    bad = jax.tree.map(lambda g: g.ravel().at[0].set(spike).reshape(g.shape), found)
    return jax.tree.map(lambda g, b: jnp.where(i == 5, b, g), found, bad)


def test_every_tensor_learns_even_if_it_starts_at_zero(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    for start in (params, zeros):
        after, _ = train(start, scaled, num_steps=200)
        errors = jax.tree.map(lambda x: jnp.max(jnp.abs(x - 0.3)), after)
        before = jax.tree.map(lambda x: jnp.max(jnp.abs(x - 0.3)), start)
        for error, first in zip(*map(jax.tree.leaves, (errors, before)), strict=True):
            assert error < 0.6 * first


def test_tensors_without_a_gradient_do_not_move(params):
    mask = {**jax.tree.map(jnp.zeros_like, params), "kernel": jnp.ones((6, 4))}
    mask["kernel"] = mask["kernel"].at[2].set(0.0)
    mask["embedding"] = mask["embedding"].at[1].set(1.0)

    def grads(params, i, _):
        return jax.tree.map(lambda g, m: g * m, jax.grad(quadratic)(params), mask)

    after, _ = train(params, grads)
    moved = jax.tree.map(lambda a, b: np.asarray(a != b), after, params)
    np.testing.assert_array_equal(moved["kernel"][2], False)
    assert moved["kernel"][0].all()
    np.testing.assert_array_equal(
        moved["embedding"], np.arange(5)[:, None] == [1, 1, 1]
    )
    for name in ("bias", "heads", "scale"):
        assert not any(np.any(x) for x in jax.tree.leaves(moved[name]))


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_steps_do_not_depend_on_the_scale_of_the_loss(params, scale):
    one, _ = train(params, scaled, 1.0)
    other, _ = train(params, scaled, scale)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_relative_steps_do_not_depend_on_the_scale_of_a_matrix(params):
    def grads(params, i, _):
        wave = lambda x: jnp.sin(jnp.arange(x.size) + i).reshape(x.shape)
        return jax.tree.map(wave, params)

    _, small = train({"kernel": params["kernel"]}, grads)
    _, large = train({"kernel": 1000 * params["kernel"]}, grads)
    np.testing.assert_allclose(1000 * small["kernel"], large["kernel"], rtol=1e-3)


@pytest.mark.parametrize("spike", [1e10, 1e20, 3e38])
def test_one_huge_gradient_is_forgotten(params, spike):
    after, _ = train(params, with_spike, spike, num_steps=200)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after))
    assert quadratic(after) < 0.3 * quadratic(params)


def test_infinite_first_gradients_are_forgotten(params):
    def grads(params, i, _):
        found = jax.grad(quadratic)(params)
        return jax.tree.map(lambda g: jnp.where(i == 0, jnp.inf, g), found)

    after, _ = train(params, grads, num_steps=200)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after))
    assert quadratic(after) < 0.3 * quadratic(params)


def test_gradients_may_start_later_for_some_tensors(params):
    params = {name: params[name] for name in ("kernel", "bias")}
    tx = OPTIMIZER.as_optax(THETA, NUM_STEPS)
    update, state = jax.jit(tx.update), tx.init(params)
    grads = jax.grad(quadratic)(params)
    _, state = update({**grads, "bias": None}, state, params)
    updates, _ = update(grads, state, params)
    for update in jax.tree.leaves(updates):
        assert jnp.isfinite(update).all()
        assert (update != 0).all()


def test_the_last_step_of_a_very_long_run_is_finite(params):
    num_steps = 2**25
    tx = OPTIMIZER.as_optax(THETA, num_steps)
    state = tx.init(params)
    state = state._replace(count=jnp.full_like(state.count, num_steps - 1))
    updates, _ = jax.jit(tx.update)(jax.grad(quadratic)(params), state, params)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(updates))


def test_time_features_are_frozen_past_the_horizon(params):
    theta = jax.tree.map(lambda x: x + 0.3, THETA)
    tx = OPTIMIZER.as_optax(theta, NUM_STEPS)
    grads, state = jax.grad(quadratic)(params), tx.init(params)
    late = [state._replace(count=jnp.asarray(n, jnp.int32)) for n in (10**5, 10**6)]
    update = jax.jit(tx.update)
    one, other = (update(grads, s, params)[0] for s in late)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_end_at_zero_and_follow_the_bias_of_a_kind(params):
    _, updates = train(params, scaled)
    rms = lambda x: np.sqrt(np.mean(np.square(x), axis=tuple(range(1, x.ndim))))
    assert rms(updates["kernel"])[-1] < 0.1 * rms(updates["kernel"])[0]
    bias = THETA["bias"].at[Kind.MATRIX, OUTPUTS.index("log_step_size")].set(np.log(2))
    _, other = train(params, scaled, theta={**THETA, "bias": bias})
    first = {
        name: rms(other[name])[0] / rms(updates[name])[0]
        for name in updates
        if name != "heads"
    }
    np.testing.assert_allclose(first["kernel"], 2.0, rtol=1e-5)
    for name in ("bias", "embedding", "scale"):
        np.testing.assert_allclose(first[name], 1.0, rtol=1e-5)


def test_matrices_are_flattened_to_the_most_nearly_square():
    assert _matrix_shape((6, 4)) == (6, 4)
    assert _matrix_shape((512, 8, 64)) == (512, 512)  # attention queries
    assert _matrix_shape((8, 64, 512)) == (512, 512)  # attention output
    assert _matrix_shape((3, 3, 32, 64)) == (288, 64)  # convolution
    assert _matrix_shape((7, 1)) == (7, 1)


def test_theta_is_small_and_named():
    assert THETA["linear"].shape == (len(FEATURES), len(OUTPUTS))
    assert sum(x.size for x in jax.tree.leaves(THETA)) == 72
    with pytest.raises(ValueError, match="step sizes and `vector_floor` must be pos"):
        LearnedMuon(matrix_step=0.0)
