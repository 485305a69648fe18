"""Swimmer equals gymnasium's bit for bit, and population members are independent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta_train.core.unroll import unroll
from tasks.systems.swimmer import Swimmer, SwimmerState

gymnasium = pytest.importorskip("gymnasium")


def test_trajectory_equals_gymnasium_bitwise():
    environment = gymnasium.make("Swimmer-v5").unwrapped
    environment.reset(seed=3)
    system = Swimmer()
    policy = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    read = lambda: np.concatenate([environment.data.qpos, environment.data.qvel])
    state = SwimmerState(jnp.asarray(read().view(np.uint32)))
    step = jax.jit(lambda theta, state: system.step(theta, state, None))
    for _ in range(200):
        _, reward, *_ = environment.step(policy.astype(np.float64) @ read()[2:])
        state, loss = step(policy, state)
        np.testing.assert_array_equal(np.asarray(state.bits).view(np.float64), read())
        assert loss == np.float32(-reward)


def test_members_do_not_disturb_each_other(key):
    system = Swimmer()
    thetas = jax.random.normal(key, (3, 2, 8))

    def run(theta):
        state = system.init_state(theta, (), 20, key)
        return unroll(system, (), theta, state, 20, key)[1]

    together = jax.jit(jax.vmap(run))(thetas)
    alone = [jax.jit(run)(theta) for theta in thetas]
    np.testing.assert_array_equal(together, jnp.stack(alone))
    assert (np.asarray(together[0]) != np.asarray(together[1])).any()
