"""Closed-form variances against simulation and against the estimators."""

from dataclasses import dataclass
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta_train.analysis.theory import (
    Structure,
    gradient_matrix,
    pes_variance,
    relative_variance,
    simulate,
)
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, NoiseReuseES
from tasks.base import UnrolledSystem

SIZES = [(1, 3), (2, 1), (4, 5), (10, 2)]


def total_variance(samples):
    """Compute the total variance and its standard error, from 20 batches."""
    batches = np.asarray(samples).reshape(20, -1, samples.shape[-1])
    values = batches.var(axis=1, ddof=1).sum(axis=1)
    return values.mean(), values.std(ddof=1) / np.sqrt(20)


@pytest.mark.parametrize(("num_windows", "size"), SIZES)
def test_general_variance_formula_equals_simulation(num_windows, size, key):
    key_grads, key_noise = jax.random.split(key)
    grads = gradient_matrix("triangular, independent", num_windows, size, key_grads)
    samples = simulate(grads, 60_000, key_noise)
    value, error = total_variance(samples)
    assert error < 0.03 * value
    assert abs(pes_variance(grads) - value) < 4 * error
    spread = np.asarray(samples).std(axis=0) / np.sqrt(len(samples))
    truth = grads.sum(axis=(0, 1))
    assert (abs(samples.mean(axis=0) - truth) < 5 * spread).all()


@pytest.mark.parametrize("structure", get_args(Structure))
@pytest.mark.parametrize(("num_windows", "size"), SIZES)
def test_the_four_structures_follow_from_the_general_form(
    structure, num_windows, size, key
):
    def both(key):
        grads = gradient_matrix(structure, num_windows, size, key)
        return pes_variance(grads), jnp.sum(grads.sum(axis=(0, 1)) ** 2)

    variance, squared = jax.vmap(both)(jax.random.split(key, 5_000))
    expected = relative_variance(structure, num_windows, size)
    ratio = variance.mean() / squared.mean()
    # Standard error of a ratio of means (delta method); 0 if nothing is random.
    error = jnp.std(variance - ratio * squared) / squared.mean() / np.sqrt(5_000)
    assert error < 0.05 * expected
    assert abs(ratio - expected) < 4 * error + 1e-5 * expected


def test_subdividing_halves_the_variance_at_best():
    shares = [relative_variance("diagonal, identical", t, 100) for t in (1, 10, 1000)]
    assert shares[0] == 101
    assert shares[0] > shares[1] > shares[2] > 50
    assert relative_variance("triangular, identical", 10**6, 100) > 0.66 * 101


@dataclass(frozen=True)
class _Linear(UnrolledSystem):
    """System with losses linear in theta, summed over all steps so far."""

    def load(self):
        return ()

    def init_theta(self, key):
        return jnp.zeros(3)

    def init_state(self, theta, data, horizon, key):
        return jnp.zeros(())

    def sample_input(self, data, state, key):
        return None

    def step(self, theta, state, x):
        state = state + theta.sum()
        return state, state


@pytest.mark.parametrize("num_windows", [1, 4])
@pytest.mark.parametrize("kind", [PES, NoiseReuseES])
def test_the_estimators_have_the_variance_of_theory(kind, num_windows, key):
    estimator = kind(Truncation(1, num_windows, staggered=False), 1, std=0.1)
    system, theta = _Linear(), jnp.zeros(3)

    def episode(key):
        key_init, key_windows = jax.random.split(key)
        step = lambda state, key: estimator.update(system, (), theta, state, key)[::-1]
        state = estimator.init(system, (), theta, key_init)
        keys = jax.random.split(key_windows, num_windows)
        return jax.lax.scan(step, state, keys)[1].grad.sum(axis=0)

    samples = jax.jit(jax.vmap(episode))(jax.random.split(key, 40_000))
    value, error = total_variance(samples)
    grads = gradient_matrix("triangular, identical", num_windows, 3, key)
    squared = float(jnp.sum(grads.sum(axis=(0, 1)) ** 2))
    if kind is PES:
        expected = relative_variance("triangular, identical", num_windows, 3) * squared
    else:
        expected = (3 + 1) * squared
    assert error < 0.05 * value
    assert abs(expected - value) < 4 * error
