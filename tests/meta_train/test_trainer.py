import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.schedules import ScheduledSGD
from meta_train.estimators import ESTIMATORS, PES
from meta_train.inner_training import InnerTraining
from meta_train.outer_optimizer import OuterAdam
from meta_train.trainer import Trainer
from meta_train.truncation import Truncation
from tasks.influence_balancing import InfluenceBalancing
from tasks.quadratic import RandomQuadratic
from tasks.toy_regression import ToyRegression

QUADRATIC = InnerTraining(RandomQuadratic(dim=4), ScheduledSGD())
TOY = InnerTraining(ToyRegression(), ScheduledSGD())


def make_trainer(*systems, estimator=None, **optimizer):
    return Trainer(
        systems=systems or (QUADRATIC,),
        estimator=estimator or PES(Truncation(5, 20), num_pairs=8, std=0.1),
        outer_optimizer=OuterAdam(**{"learning_rate": 1e-2, **optimizer}),
        num_outer_steps=100,
    )


def run(trainer, *lengths, seed=0):
    """Takes outer updates in calls of the given lengths."""
    data = trainer.load()
    state = trainer.init(data, seed)
    metrics = {}
    for length in lengths:
        state, metrics = trainer.run(data, state, length)
    return state, metrics


def test_the_step_compiles_once_whatever_the_number_of_updates():
    trainer = make_trainer(b1=0.8)  # like no other test's, so nothing is cached
    before = Trainer.compiled_run._cache_size()
    run(trainer, 1, 10, 3, 7)
    assert Trainer.compiled_run._cache_size() == before + 1


@pytest.mark.parametrize("name", ESTIMATORS)
def test_updates_are_bitwise_the_same_however_they_are_grouped(name):
    estimator = ESTIMATORS[name](Truncation(5, 20))
    trainer = make_trainer(estimator=estimator)
    one, _ = run(trainer, 12)
    other, _ = run(trainer, 1, 4, 7)
    chex.assert_trees_all_equal(one, other)
    assert one.step == 12


def test_the_outer_loss_goes_down():
    trainer = make_trainer(learning_rate=0.05)
    data = trainer.load()
    key = jax.random.key(5)
    before = trainer.meta_loss(data, trainer.init(data, 0).theta, 20, 64, key)
    state, _ = run(trainer, 100)
    after = trainer.meta_loss(data, state.theta, 20, 64, key)
    assert after[0] < 0.7 * before[0]


def test_the_state_is_donated():
    trainer = make_trainer()
    data = trainer.load()
    state = trainer.init(data, 0)
    trainer.run(data, state, 1)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.populations))


def test_systems_together_average_their_gradients(key):
    both = make_trainer(QUADRATIC, TOY)
    state = both.init(data := both.load(), 0)
    grads = [
        both.estimator.update(
            system, d, state.theta, population, jax.random.fold_in(state.key, i)
        )[0].grad
        for i, (system, d, population) in enumerate(
            zip(both.systems, data, state.populations, strict=True)
        )
    ]
    mean = (grads[0] + grads[1]) / 2
    updates, _ = both._optimizer.update(mean, state.opt_state, state.theta)
    expected = optax.apply_updates(state.theta, updates)
    after, metrics = run(both, 1)
    chex.assert_trees_all_close(after.theta, expected, rtol=1e-5)
    mean_loss = (metrics["loss/0"] + metrics["loss/1"]) / 2
    np.testing.assert_allclose(metrics["loss"], mean_loss, rtol=1e-6)


class _Diverging(InfluenceBalancing):
    def step(self, theta, state, x):
        state, _ = InfluenceBalancing.step(self, theta, state, x)
        return state, jnp.where(state[0] > 1.5, jnp.inf, state[0])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_that_is_not_finite_reaches_theta(name):
    estimator = ESTIMATORS[name](Truncation(5, 20))
    state, metrics = run(make_trainer(_Diverging(), estimator=estimator), 20)
    assert metrics["num_nonfinite"] > 0
    assert jnp.isfinite(state.theta)
    chex.assert_tree_all_finite(state.opt_state)


def test_nothing_crosses_to_the_device_while_training():
    trainer = make_trainer()
    data = trainer.load()
    state = trainer.init(data, 0)
    state, _ = trainer.run(data, state, 5)
    with jax.transfer_guard("disallow"):
        state, metrics = trainer.run(data, state, 5)
    assert jnp.isfinite(metrics["loss"])


def test_data_is_an_argument_of_the_program_and_not_a_constant_in_it():
    def size(dim):
        trainer = make_trainer(InnerTraining(RandomQuadratic(dim=dim), ScheduledSGD()))
        data = trainer.load()
        state = trainer.shapes(data)
        num = jnp.asarray(1, jnp.int32)
        lowered = Trainer.compiled_run.lower(trainer, data, state, num)
        return len(lowered.as_text())

    assert size(400) < 1.1 * size(4)


def test_seeds_give_different_runs():
    one, _ = run(make_trainer(), 3, seed=0)
    other, _ = run(make_trainer(), 3, seed=1)
    assert not jnp.array_equal(one.theta, other.theta)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_schedules(schedule):
    optimizer = OuterAdam(1.0, schedule, num_warmup_steps=2).as_optax(10)
    theta = jnp.zeros(())
    state = optimizer.init(theta)
    sizes = []
    for _ in range(10):
        update, state = optimizer.update(jnp.ones(()), state, theta)
        sizes.append(-float(update))  # Adam's step on a constant gradient is the rate
    np.testing.assert_allclose(sizes[:3], [0.0, 0.5, 1.0], atol=1e-5)
    falls = np.diff(sizes[2:])
    assert (
        np.allclose(falls, 0, atol=1e-5)
        if schedule == "constant"
        else (falls < 0).all()
    )


def test_gradients_are_clipped_coordinate_by_coordinate():
    optimizer = OuterAdam(clip=3.0).as_optax(10)
    theta = jnp.zeros(2)
    big, _ = optimizer.update(jnp.asarray([1e6, -1.0]), optimizer.init(theta), theta)
    clipped, _ = optimizer.update(
        jnp.asarray([3.0, -1.0]), optimizer.init(theta), theta
    )
    chex.assert_trees_all_equal(big, clipped)
