"""Inner training: losses, data splits, host transfers and learned task settings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evaluation.baselines import Baseline, setting
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.unroll import unroll
from tasks import datasets
from tasks.families.augmentation import ScaledLoss
from tasks.families.masked_mlp import MaskedMLP
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import RandomQuadratic

TASK = MLP(width=8)


def start(system, key):
    data, theta = system.load(), system.init_theta(key)
    return data, theta, system.init_state(theta, data, 10, key)


@pytest.mark.parametrize("measure", ["train-loss", "validation-loss"])
def test_the_loss_is_taken_on_the_split_that_was_asked_for(measure, key):
    system = InnerTraining(TASK, ScheduledSGD(), measure)
    data, theta, state = start(system, key)
    x = system.sample_input(data, state, key)
    following, loss = system.step(theta, state, x)
    batch = x.train if measure == "train-loss" else x.held_out
    np.testing.assert_allclose(loss, TASK.loss(state.params, batch), rtol=1e-6)
    own = {row.tobytes() for row in np.asarray(TASK.load("validation").whole().inputs)}
    from_validation = [row.tobytes() in own for row in np.asarray(batch.inputs)]
    assert np.mean(from_validation) == (1.0 if measure == "validation-loss" else 0.0)
    grads = jax.grad(TASK.loss)(state.params, x.train)
    tx = ScheduledSGD().as_optax(theta, 10)
    updates, _ = tx.update(grads, state.opt_state, state.params)
    expected = optax.apply_updates(state.params, updates)
    jax.tree.map(np.testing.assert_array_equal, following.params, expected)


def test_error_rate_can_be_the_meta_loss(key):
    system = InnerTraining(TASK, Baseline("adam"), "validation-error")
    data, _, state = start(system, key)
    losses = unroll(system, data, setting(0.01), state, 100, key)[1]
    shares = np.asarray(losses) * TASK.batch_size
    np.testing.assert_allclose(shares, shares.round(), atol=1e-4)
    assert losses[-10:].mean() < 0.3 < losses[0]


def test_tasks_without_classes_have_no_error():
    with pytest.raises(ValueError, match=r"Try .validation-loss."):
        InnerTraining(RandomQuadratic(), ScheduledSGD(), "validation-error")


def test_the_meta_loss_has_no_loss_scale(key):
    system = InnerTraining(ScaledLoss(TASK, low=50.0, high=60.0), ScheduledSGD())
    data, theta, state = start(system, key)
    _, loss = system.step(theta, state, system.sample_input(data, state, key))
    assert loss < 10


@pytest.mark.parametrize("measure", ["train-loss", "validation-loss"])
def test_meta_training_never_sees_the_test_set(measure, monkeypatch):
    seen = []
    load = datasets.load
    monkeypatch.setattr(
        datasets, "load", lambda name, split: (seen.append(split), load(name, split))[1]
    )
    InnerTraining(TASK, ScheduledSGD(), measure).load()
    assert "test" not in seen
    assert ("validation" in seen) == (measure == "validation-loss")


def test_data_is_an_argument_and_nothing_crosses_while_training(key):
    system = InnerTraining(TASK, ScheduledSGD(), "validation-loss")
    data, theta, state = start(system, key)
    run = jax.jit(lambda *args: unroll(system, *args[:3], 20, args[3]))
    size = sum(x.size for x in jax.tree.leaves(data))
    compiled = run.lower(data, theta, state, key)
    assert len(compiled.as_text()) < size
    run(data, theta, state, key)
    with jax.transfer_guard("disallow"):
        state, losses = run(data, theta, state, key)
        run(data, theta, state, key)[1].block_until_ready()
    assert np.isfinite(losses).all()


def test_theta_can_contain_the_number_of_units(key):
    task = MaskedMLP(width=10, depth=2)
    system = InnerTraining(task, ScheduledSGD())
    data, theta, state = start(system, key)
    assert theta.task.shape == (2,)
    x = system.sample_input(data, state, key)
    logit = lambda share: np.log(share / (1 - share))
    losses = {}
    for share in (0.3, 0.9999):
        at = theta._replace(task=jnp.full(2, logit(share)))
        _, losses[share] = system.step(at, state, x)
    params = state.params["params"]
    cut = {
        "Dense_0": jax.tree.map(lambda w: w[..., :3], params["Dense_0"]),
        "Dense_1": jax.tree.map(lambda w: w[..., :3], params["Dense_1"]),
        "Dense_2": dict(params["Dense_2"]),
    }
    cut["Dense_1"]["kernel"] = cut["Dense_1"]["kernel"][:3]
    cut["Dense_2"]["kernel"] = cut["Dense_2"]["kernel"][:3]
    small = MLP(width=3, depth=2).loss({"params": cut}, x.train)
    np.testing.assert_allclose(losses[0.3], small, rtol=1e-4)
    whole = MLP(width=10, depth=2).loss({"params": params}, x.train)
    np.testing.assert_allclose(losses[0.9999], whole, rtol=1e-3)
    slope = jax.grad(lambda theta: system.step(theta, state, x)[1])(theta)
    assert (slope.task != 0).all()


@pytest.mark.parametrize("measure", ["train-loss", "validation-loss"])
def test_the_loss_may_be_that_after_the_update(measure, key):
    before = InnerTraining(TASK, ScheduledSGD(), measure)
    after = InnerTraining(TASK, ScheduledSGD(), measure, loss_at="after")
    data, theta, state = start(before, key)
    x = before.sample_input(data, state, key)
    following, _ = before.step(theta, state, x)
    same, loss = after.step(theta, state, x)
    jax.tree.map(np.testing.assert_array_equal, following.params, same.params)
    batch = x.train if measure == "train-loss" else x.held_out
    expected = TASK.loss(following.params, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_a_task_may_use_few_training_examples():
    few, whole = MLP(num_examples=7, batch_size=4), MLP(batch_size=4)
    np.testing.assert_array_equal(
        few.load().labels, np.asarray(whole.load().labels)[:7]
    )
    assert len(few.load("validation").labels) == len(whole.load("validation").labels)
    with pytest.raises(ValueError, match="`num_examples` must lie between 1"):
        MLP(num_examples=0)
