"""Analytic problems equal their definitions in the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.synthetic.quadratic import RandomQuadratic
from tasks.synthetic.toy_regression import ToyRegression
from tasks.systems.character_lstm import CharacterLSTM
from tasks.systems.influence_balancing import InfluenceBalancing


def test_influence_balancing_is_the_papers_linear_system(key):
    system = InfluenceBalancing()
    matrix = 0.5 * (np.eye(23) + np.eye(23, k=1))
    signs = np.array([1.0] * 10 + [-1.0] * 13)
    theta = system.init_theta(key)
    state, expected = system.init_state(theta, (), 10, key), np.ones(23)
    for _ in range(5):
        state, loss = system.step(theta, state, None)
        expected = matrix @ expected + 0.5 * signs
        np.testing.assert_allclose(state, expected, rtol=1e-6)
        np.testing.assert_allclose(loss, 0.5 * (expected[0] - 1) ** 2, rtol=1e-6)


@pytest.mark.parametrize("point", [(1.0, 1.0), (-0.3, 40.0), (0.0, 100.0)])
def test_toy_regression_is_the_papers_surface(point):
    x, y = point
    expected = (
        np.sqrt(x**2 + 5)
        - np.sqrt(5)
        + np.sin(y) ** 2 * np.exp(-5 * x**2)
        + 0.25 * abs(y - 100)
    )
    loss = ToyRegression().loss(jnp.asarray(point), None)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_quadratic_has_the_spectrum_that_was_asked_for():
    matrix = RandomQuadratic(dim=8, condition=50.0).load()
    eigenvalues = np.linalg.eigvalsh(np.asarray(matrix, np.float64))
    np.testing.assert_allclose(eigenvalues, np.geomspace(1 / 50, 1, 8), rtol=1e-4)


def test_batches_of_a_quadratic_have_their_minimum_near_zero(key):
    task = RandomQuadratic(noise_std=0.5)
    keys = jax.random.split(key, 4_000)
    _, minima = jax.vmap(lambda k: task.sample_batch(task.load(), k))(keys)
    standard_error = 0.5 / np.sqrt(len(keys))
    assert np.abs(minima.mean(axis=0)).max() < 4 * standard_error


def test_sequences_of_the_character_lstm_are_text_random_or_repeated():
    kinds = ("text", "random", "repeated")
    text, random, repeated = (
        np.asarray(CharacterLSTM(sequence=k).load()) for k in kinds
    )
    assert len(text) == len(random) == len(repeated)
    assert len(np.unique(repeated)) == 1
    # Letters of a text are far from uniform; those drawn are not.
    assert np.bincount(random, minlength=27).std() < 0.2 * np.bincount(text).std()
