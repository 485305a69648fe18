from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta_train.core.truncation import Truncation
from tasks.systems.influence_balancing import InfluenceBalancing

SYSTEM = InfluenceBalancing()
THETA = jnp.asarray(0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 4, "horizon": 13}, r"Try horizon=12\."),
        ({"length": 4, "horizon": 0}, r"Try horizon=4\."),
        ({"length": 0, "horizon": 8}, "`length` must be at least 1"),
        ({"length": 4, "horizon": 8, "min_horizon": 6}, r"Try min_horizon=8\."),
        ({"length": 4, "horizon": 8, "min_horizon": 12}, r"Try min_horizon=4\."),
    ],
)
def test_horizons_that_windows_do_not_tile_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Truncation(**fields)


def test_random_horizons_are_drawn_as_often_as_promised(key):
    truncation = Truncation(length=5, horizon=40, min_horizon=10)
    keys = jax.random.split(key, 20_000)
    drawn = Counter(np.asarray(jax.vmap(truncation.draw_horizon)(keys)).tolist())
    promised = truncation.horizon_probabilities()
    assert set(drawn) == set(promised) == set(range(10, 41, 5))
    for horizon, probability in promised.items():
        standard_error = np.sqrt(probability * (1 - probability) / len(keys))
        assert abs(drawn[horizon] / len(keys) - probability) < 4 * standard_error
    mean = sum(h * n for h, n in drawn.items()) / len(keys)
    np.testing.assert_allclose(truncation.mean_horizon(), mean, rtol=0.02)


def ages(truncation, num_episodes, num_windows, key):
    """Collect the age of every episode before each window: (windows, episodes)."""

    def init(end, key):
        return truncation.init(SYSTEM, (), THETA, end, key)

    def window(episodes, key):
        advance = lambda e, k: truncation.advance(SYSTEM, (), THETA, e, k)[0]
        keys = jax.random.split(key, num_episodes)
        return jax.vmap(advance)(episodes, keys), episodes.age

    ends = truncation.first_ends(num_episodes)
    episodes = jax.vmap(init)(ends, jax.random.split(key, num_episodes))
    _, history = jax.lax.scan(window, episodes, jax.random.split(key, num_windows))
    return np.asarray(history)


def test_staggered_episodes_show_every_age_at_every_update(key):
    history = ages(Truncation(length=5, horizon=40), 16, 24, key)
    for row in history[8:]:  # after the shortened first episodes
        assert Counter(row.tolist()) == dict.fromkeys(range(0, 40, 5), 2)
    assert (history[0] == 0).all()  # first episodes start at age 0


def test_episodes_that_are_not_staggered_stay_in_step(key):
    truncation = Truncation(length=5, horizon=20, staggered=False)
    history = ages(truncation, 3, 8, key)
    expected = np.array([0, 5, 10, 15] * 2)[:, None].repeat(3, axis=1)
    np.testing.assert_array_equal(history, expected)


def test_staggered_random_horizons_show_ages_as_often_as_they_are_lived(key):
    truncation = Truncation(length=5, horizon=40, min_horizon=10)
    num = 8_000
    row = ages(truncation, num, 9, key)[-1]
    probabilities = truncation.horizon_probabilities()
    for age in range(0, 40, 5):
        reached = sum(p for h, p in probabilities.items() if h > age)
        expected = reached * 5 / truncation.mean_horizon()
        standard_error = np.sqrt(expected * (1 - expected) / num)
        assert abs((row == age).mean() - expected) < 4 * standard_error


def test_a_new_episode_starts_at_the_theta_of_its_first_window(key):
    class Start(InfluenceBalancing):
        def init_state(self, theta, data, horizon, key):
            return jnp.full(self.dim, theta)

    truncation = Truncation(length=1, horizon=2)
    episode = truncation.init(Start(), (), THETA, jnp.asarray(0), key)
    advanced, _ = truncation.advance(Start(), (), THETA + 1, episode, key)
    expected, _ = SYSTEM.step(THETA + 1, jnp.full(23, THETA + 1), None)
    np.testing.assert_array_equal(advanced.state, expected)
