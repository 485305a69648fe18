"""`PerParameterMLP` and `ScheduledSGD`, and sizes of other learned optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.mu_transfer import MuTransfer
from lopt.optimizers.normalized_mlp import NormalizedMLP
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.optimizers.scheduled_sgd import ScheduledSGD

PARAMS = {
    "w": jnp.arange(6.0).reshape(2, 3),
    "b": {"c": jnp.ones(3)},
    "s": jnp.ones(()),
}


def gradients(key, params=PARAMS):
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        treedef,
        [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)],
    )


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (PerParameterMLP(), 1_762),
        (PerParameterMLP(width=8, second_moment_decays=(0.999,)), 306),
        (AdafactorMLP(), 190 + 7),
        (AdafactorMLP(width=32), 2_402 + 7),
        (NormalizedMLP(), 347),
        (MuTransfer(), 1_762),
        (ScheduledSGD(), 2),
    ],
)
def test_number_of_parameters(optimizer, count, key):
    theta = optimizer.init_theta(key)
    assert sum(x.size for x in jax.tree.leaves(theta)) == count


@pytest.mark.parametrize("second_moment_decays", [(), (0.999,)], ids=str)
def test_the_mlp_equals_its_definition_in_numpy(second_moment_decays, key):
    optimizer = PerParameterMLP(second_moment_decays=second_moment_decays)
    theta = optimizer.init_theta(key)
    weights = {k: np.asarray(v, np.float64) for k, v in theta["params"].items()}
    tx = optimizer.as_optax(theta, num_steps=20)
    params, state = PARAMS, tx.init(PARAMS)
    numpy_params = [np.asarray(x, np.float64) for x in jax.tree.leaves(PARAMS)]
    momenta = [np.zeros((6, *x.shape)) for x in numpy_params]
    second = [np.zeros(x.shape) for x in numpy_params]
    decays = np.array([0.1, 0.5, 0.9, 0.99, 0.999, 0.9999])
    scales = np.array([1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5])
    for t in range(20):
        grads = gradients(jax.random.fold_in(key, t))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for i, g in enumerate(
            np.asarray(x, np.float64) for x in jax.tree.leaves(grads)
        ):
            decay = decays.reshape(-1, *[1] * g.ndim)
            momenta[i] = decay * momenta[i] + (1 - decay) * g[None]
            second[i] = 0.999 * second[i] + 0.001 * g**2
            root = 1 / np.sqrt(second[i] + 1e-6)
            features = [g, numpy_params[i], *momenta[i]]
            if second_moment_decays:
                features += [*(momenta[i] * root), root]
            features = np.stack(features).reshape(len(features), -1)
            rms = np.sqrt(1e-5 + (features**2).mean(1, keepdims=True))
            time = np.tanh(t / scales - 1)[:, None].repeat(g.size, axis=1)
            hidden = np.concatenate([features / rms, time])
            for layer in range(3):
                hidden = weights[f"kernel_{layer}"].T @ hidden
                hidden += weights[f"bias_{layer}"][:, None]
                hidden = np.maximum(hidden, 0) if layer < 2 else hidden
            step = 1e-3 * hidden[0] * np.exp(1e-3 * hidden[1])
            numpy_params[i] = numpy_params[i] - step.reshape(g.shape)
    for ours, theirs in zip(jax.tree.leaves(params), numpy_params, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_schedule_is_linear_and_past_the_horizon_stays_at_its_last_step():
    theta = jnp.log(jnp.asarray([0.1, 0.02]))
    tx = ScheduledSGD().as_optax(theta, num_steps=4)
    state = tx.init(jnp.ones(()))
    rates = []
    for _ in range(6):
        update, state = tx.update(jnp.ones(()), state)
        rates.append(-float(update))
    np.testing.assert_allclose(rates, [0.1, 0.08, 0.06, 0.04, 0.04, 0.04], rtol=1e-5)


def test_missing_params_name_the_remedy(key):
    optimizer = PerParameterMLP()
    tx = optimizer.as_optax(optimizer.init_theta(key), num_steps=10)
    with pytest.raises(ValueError, match=r"update\(grads, state, params\)"):
        tx.update(PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerParameterMLP(width=0), "`width` and `depth` must be at least 1"),
        (lambda: PerParameterMLP(second_moment_decays=(1.0,)), r"Try 0\.999"),
        (lambda: ScheduledSGD(initial_lr=-1.0), "`initial_lr` must be positive"),
    ],
)
def test_bad_hyperparameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
