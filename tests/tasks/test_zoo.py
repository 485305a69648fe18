"""Everything in the zoo keeps the contract of its kind."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from lopt.schedules import ScheduledSGD
from meta_train.inner_training import InnerTraining
from meta_train.unroll import unroll
from tasks.base import Task
from tasks.zoo import ZOO

TASKS = [name for name, entry in ZOO.items() if isinstance(entry.problem, Task)]


@pytest.mark.parametrize("name", TASKS)
def test_adam_lowers_the_loss_and_the_step_compiles_once(name, key):
    task = ZOO[name].problem
    assert isinstance(task, Task)
    data = task.load()
    optimizer = optax.adam(0.01)
    params = task.init_params(key)
    opt_state = optimizer.init(params)
    batches = jax.random.split(key, 50)

    @jax.jit
    @chex.assert_max_traces(1)
    def step(params, opt_state, key):
        batch = task.sample_batch(data, key)
        loss, grads = jax.value_and_grad(task.loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    losses = []
    for batch in batches:
        params, opt_state, loss = step(params, opt_state, batch)
        losses.append(float(loss))
    assert all(jnp.isfinite(jnp.asarray(losses)))
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("name", ZOO)
def test_it_unrolls_under_vmap_and_repeats_by_key(name, key):
    problem = ZOO[name].problem
    system = (
        InnerTraining(problem, ScheduledSGD()) if isinstance(problem, Task) else problem
    )
    data = system.load()
    theta = system.init_theta(key)

    def run(key):
        state = system.init_state(theta, data, 5, key)
        return unroll(system, data, theta, state, 5, key)[1]

    keys = jax.random.split(key, 3)
    losses = jax.vmap(run)(keys)
    assert losses.shape == (3, 5)
    assert losses.dtype == jnp.float32
    chex.assert_tree_all_finite(losses)
    chex.assert_trees_all_equal(losses, jax.vmap(run)(keys))


@pytest.mark.parametrize(("name", "num_classes"), [("digits-mlp", 10), ("wine-mlp", 3)])
def test_a_classifier_starts_near_the_loss_of_guessing(name, num_classes, key):
    task = ZOO[name].problem
    assert isinstance(task, Task)
    data = task.load()
    loss = task.loss(task.init_params(key), task.sample_batch(data, key))
    chex.assert_trees_all_close(loss, jnp.log(1.0 * num_classes), atol=1.0)
