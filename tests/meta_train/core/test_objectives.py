"""Meta-objectives: losses of whole episodes, also across truncation windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import OBJECTIVES, FinalLoss, LogLoss
from meta_train.core.truncation import Truncation
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.systems.character_lstm import CharacterLSTM
from tasks.systems.influence_balancing import InfluenceBalancing

HORIZON = 12
SYSTEMS = [
    InnerTraining(RandomQuadratic(dim=3, noise_std=1.0), ScheduledSGD(0.3)),
    InfluenceBalancing(dim=5, num_positive=2),
    CharacterLSTM(),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("length", [1, 4, HORIZON])
def test_an_episodes_costs_add_up_to_its_last_loss_on_one_input(system, length, key):
    final = FinalLoss(system)
    data, theta = system.load(), system.init_theta(key)
    truncation = Truncation(length, HORIZON, staggered=False)
    whole = jnp.zeros((), jnp.int32)
    episode = truncation.init(final, data, theta, whole, key)
    advance = jax.jit(lambda e, key: truncation.advance(final, data, theta, e, key))
    take_step = jax.jit(lambda state, x: final.step(theta, state, x)[0])
    for number in range(3):  # no state is carried over between episodes
        total, before, window_key = 0.0, episode, key
        for i in range(HORIZON // length):
            before = episode
            window_key = jax.random.fold_in(key, 100 * number + i)
            episode, costs = advance(before, window_key)
            total += costs.sum()
        fixed = episode.state.fixed
        # Replay the last window up to its last step, then compute that loss directly.
        keys = jax.random.split(jax.random.split(window_key, 3)[2], length)
        state = before.state
        if before.is_new:
            state = final.init_state(
                theta, data, HORIZON, jax.random.split(window_key, 3)[1]
            )
        for step_key in keys[:-1]:
            x = final.sample_input(data, state, step_key)
            state = take_step(state, x)
        x = final.sample_input(data, state, keys[-1])
        at = fixed if jax.tree.leaves(x) else x
        _, last = system.step(theta, state.state, at)
        np.testing.assert_allclose(total / HORIZON, last, rtol=2e-4, atol=2e-5)


def test_the_system_still_steps_on_changing_inputs(key):
    system = SYSTEMS[0]
    data, theta = system.load(), system.init_theta(key)
    final = FinalLoss(system)
    state = final.init_state(theta, data, HORIZON, key)
    x = final.sample_input(data, state, jax.random.fold_in(key, 1))
    following, _ = final.step(theta, state, x)
    plain, _ = system.step(theta, state.state, x)
    np.testing.assert_array_equal(following.state.params, plain.params)
    np.testing.assert_array_equal(following.fixed[1], state.fixed[1])


@pytest.mark.parametrize("objective", ["log", "late", "late-log"])
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
def test_losses_are_weighted_and_transformed_across_windows(objective, system, key):
    data, theta = system.load(), system.init_theta(key)
    wrapped, length = OBJECTIVES[objective](system), 4
    truncation = Truncation(length, HORIZON, staggered=False)
    whole = jnp.zeros((), jnp.int32)
    plain = truncation.init(system, data, theta, whole, key)
    episode = truncation.init(wrapped, data, theta, whole, key)
    advance = jax.jit(truncation.advance, static_argnums=0)
    for number in range(2):
        found, losses = [], []
        for i in range(HORIZON // length):
            window_key = jax.random.fold_in(key, 10 * number + i)
            plain, one = advance(system, data, theta, plain, window_key)
            episode, other = advance(wrapped, data, theta, episode, window_key)
            losses.append(one)
            found.append(other)
        expected = np.concatenate(losses)
        if "log" in objective:
            expected = np.log((expected + 1e-3) / 1e-3)
        if "late" in objective:
            weights = 2 * np.arange(1, HORIZON + 1) / (HORIZON + 1)
            np.testing.assert_allclose(weights.mean(), 1.0)
            expected = weights * expected
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4)


def test_the_logarithm_is_odd_and_finite_at_zero():
    class Negative(InfluenceBalancing):
        def step(self, theta, state, x):
            return state, theta

    system = LogLoss(Negative())
    values = [system.step(jnp.float32(x), (), ())[1] for x in (-2.0, 0.0, 2.0)]
    np.testing.assert_allclose(values, [-np.log(2001), 0.0, np.log(2001)], rtol=1e-6)
    with pytest.raises(ValueError, match="`epsilon` must be positive; got 0"):
        LogLoss(Negative(), epsilon=0.0)
