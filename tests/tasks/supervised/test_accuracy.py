"""Accuracy of networks on real images."""

import jax
import numpy as np
import optax
import pytest

from tasks.supervised.convolutional import ResNet
from tasks.supervised.mlp import MLP
from tests.conftest import needs_data


def final_error(task, num_steps, learning_rate=1e-3):
    """Train with Adam and compute the error rate on the test set."""
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps))

    @jax.jit
    def train(data, key):
        params = task.init_params(key)

        def step(carry, key):
            params, opt_state = carry
            grads = jax.grad(task.loss)(params, task.sample_batch(data, key))
            updates, opt_state = optimizer.update(grads, opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        keys = jax.random.split(key, num_steps)
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), keys)
        return params

    params = train(task.load("train"), jax.random.key(0))
    test = task.load("test").whole()
    parts = [slice(i, i + 500) for i in range(0, len(test.labels), 500)]
    error = jax.jit(task.error)
    errors = [error(params, type(test)(test.inputs[p], test.labels[p])) for p in parts]
    return float(np.mean(errors))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "accuracy"),
    [
        pytest.param("mnist", 0.97, marks=needs_data(MLP("mnist"))),
        pytest.param("fashion-mnist", 0.86, marks=needs_data(MLP("fashion-mnist"))),
    ],
)
def test_an_mlp_after_two_epochs(dataset, accuracy):
    task = MLP(dataset, batch_size=128, width=128)
    num_steps = 2 * 54_000 // task.batch_size
    assert 1 - final_error(task, num_steps, learning_rate=2e-3) >= accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    "dataset", [pytest.param("cifar10", marks=needs_data(MLP("cifar10")))]
)
def test_a_resnet_is_well_above_an_mlp_at_equal_steps(dataset):
    num_steps = 3_000  # about ten minutes
    resnet = final_error(ResNet(dataset, width=16), num_steps, learning_rate=3e-3)
    mlp = final_error(MLP(dataset, width=128), num_steps, learning_rate=3e-3)
    assert resnet < mlp - 0.05
