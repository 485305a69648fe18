"""The property that makes PES worth having, on the system built to expose its lack.

Influence balancing is quadratic in theta, so the smoothed gradient that evolution
strategies estimate is the exact gradient, whatever the noise.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from meta_train.estimators import PES, FullES, TruncatedBackprop, TruncatedES
from meta_train.truncation import Truncation
from meta_train.unroll import unroll
from tasks.influence_balancing import InfluenceBalancing

HORIZON = 40
SYSTEM = InfluenceBalancing()
THETA = jnp.asarray(0.5)
NUM_REPEATS = 100


@functools.cache
def exact_gradient(truncation):
    """Returns the gradient of the mean loss per step by exact differentiation."""

    def total_loss(theta, horizon):
        key = jax.random.key(0)
        state = SYSTEM.init_state(theta, (), horizon, key)
        return unroll(SYSTEM, (), theta, state, horizon, key)[1].sum()

    return (
        sum(
            probability * jax.grad(total_loss)(THETA, horizon)
            for horizon, probability in truncation.horizon_probabilities().items()
        )
        / truncation.mean_horizon()
    )


def gradients(estimator, key):
    """Returns independent estimates at a fixed theta, each over one long episode."""
    num_windows = HORIZON // estimator.truncation.length

    def window(state, key):
        estimate, state = estimator.update(SYSTEM, (), THETA, state, key)
        return state, estimate.grad

    def repeat(key):
        key_init, key_first, key_windows = jax.random.split(key, 3)
        state = estimator.init(SYSTEM, (), THETA, key_init)
        if estimator.truncation.staggered:  # let the first, cut short, run out
            keys = jax.random.split(key_first, num_windows)
            state, _ = jax.lax.scan(window, state, keys)
        keys = jax.random.split(key_windows, num_windows)
        return jax.lax.scan(window, state, keys)[1].mean()

    return jax.jit(lambda keys: jax.lax.map(repeat, keys))(
        jax.random.split(key, NUM_REPEATS)
    )


def standard_errors_off(estimator, key):
    """Returns how many standard errors the mean estimate is from the truth."""
    grads = gradients(estimator, key)
    exact = exact_gradient(estimator.truncation)
    standard_error = grads.std(ddof=1) / jnp.sqrt(NUM_REPEATS)
    assert standard_error < 0.02 * abs(exact)  # or the test could not fail
    return abs(grads.mean() - exact) / standard_error


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("length", [1, 4, HORIZON])
def test_pes_is_unbiased_at_any_truncation_length(length, staggered, key):
    truncation = Truncation(length, HORIZON, staggered=staggered)
    pes = PES(truncation, num_pairs=256, std=0.1)
    assert standard_errors_off(pes, key) < 4


@pytest.mark.parametrize("length", [1, 4])
def test_pes_is_unbiased_with_random_horizons(length, key):
    truncation = Truncation(length, HORIZON, min_horizon=8)
    pes = PES(truncation, num_pairs=256, std=0.1)
    assert standard_errors_off(pes, key) < 4


@pytest.mark.parametrize("min_horizon", [None, 8])
def test_full_es_is_unbiased(min_horizon, key):
    truncation = Truncation(HORIZON // 5, HORIZON, min_horizon=min_horizon)
    full = FullES(truncation, num_pairs=256, std=0.1)
    assert standard_errors_off(full, key) < 4


@pytest.mark.parametrize("length", [1, 4])
def test_truncated_es_is_biased(length, key):
    truncated = TruncatedES(Truncation(length, HORIZON), num_pairs=256, std=0.1)
    assert standard_errors_off(truncated, key) > 100


def test_truncated_es_with_whole_windows_is_not(key):
    whole = TruncatedES(Truncation(HORIZON, HORIZON), num_pairs=256, std=0.1)
    assert standard_errors_off(whole, key) < 4


@pytest.mark.parametrize("length", [1, 4])
def test_truncated_backprop_is_biased_unless_the_window_is_the_episode(length, key):
    def mean(length):
        truncation = Truncation(length, HORIZON)
        return gradients(TruncatedBackprop(truncation, HORIZON), key)[0]

    exact = exact_gradient(Truncation(HORIZON, HORIZON))
    assert abs(mean(length) - exact) > 0.5 * abs(exact)
    assert abs(mean(HORIZON) - exact) < 1e-5 * abs(exact)
