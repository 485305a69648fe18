"""Measured bias, variance and order of estimators."""

import jax
import jax.numpy as jnp
import numpy as np

from meta_train.analysis.diagnostics import candidates, diagnose
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from tasks.systems.influence_balancing import InfluenceBalancing

SYSTEM = InfluenceBalancing()
THETA = jnp.asarray(0.5)


def test_bias_variance_and_order(key):
    pes = PES(Truncation(length=5, horizon=20), std=0.1)
    names = ["PES", "TruncatedES", "TruncatedBackprop"]
    chosen, _ = candidates(pes, SYSTEM, (), THETA, names=names)
    results = diagnose(chosen, SYSTEM, (), THETA, key, repeats=40)
    by_name = {type(row.estimator).__name__: row for row in results}
    assert list(by_name) == sorted(
        by_name, key=lambda name: -by_name[name].signal_per_second
    )
    exact = by_name["FullBackprop"]
    assert exact.bias == exact.variance == 0
    assert exact.cosine == 1
    assert by_name["PES"].bias < 4 * by_name["PES"].bias_error
    assert by_name["PES"].num_windows == 4
    for name in ("TruncatedES", "TruncatedBackprop"):
        assert by_name[name].bias > 4 * by_name[name].bias_error


def test_the_variance_is_that_of_single_estimates(key):
    pes = PES(Truncation(length=20, horizon=20), std=0.1)
    chosen, _ = candidates(pes, SYSTEM, (), THETA, names=["PES"], population=4)
    *_, row = diagnose(chosen, SYSTEM, (), THETA, key, repeats=400)
    update = jax.jit(lambda s, k: chosen[1].update(SYSTEM, (), THETA, s, k)[0].grad)
    state = chosen[1].init(SYSTEM, (), THETA, key)
    keys = jax.random.split(key, 400)
    grads = np.asarray([update(state, k) for k in keys])
    exact = jax.grad(lambda theta: jnp.mean(losses(theta)))(THETA)
    np.testing.assert_allclose(row.variance, grads.var() / exact**2, rtol=0.3)


def losses(theta):
    state = SYSTEM.init_state(theta, (), 20, jax.random.key(0))
    step = lambda state, _: SYSTEM.step(theta, state, None)
    return jax.lax.scan(step, state, length=20)[1]
