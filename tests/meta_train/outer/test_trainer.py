import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS, PES
from meta_train.outer.outer_optimizer import (
    OUTER_OPTIMIZERS,
    OuterAdam,
    OuterAdamW,
    OuterLamb,
    OuterSGD,
)
from meta_train.outer.trainer import Trainer
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.synthetic.toy_regression import ToyRegression
from tasks.systems.influence_balancing import InfluenceBalancing

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
    """Take outer updates in calls of the given lengths."""
    data = trainer.load()
    state = trainer.init(data, seed)
    metrics = {}
    for length in lengths:
        state, metrics = trainer.run(data, state, length)
    return state, metrics


def test_the_step_compiles_once_whatever_the_number_of_updates():
    trainer = make_trainer(b1=0.8)  # unique to this test, so not in the jit cache
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
        sizes.append(-float(update))  # Adam's step is the rate for a constant gradient
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


def test_weights_of_systems_scale_their_gradients():
    weighted = dataclasses.replace(make_trainer(QUADRATIC, TOY), weights=(3.0, 1.0))
    state = weighted.init(data := weighted.load(), 0)
    estimates = [weighted._estimate(i, data[i], state, None)[0] for i in range(2)]
    mean = weighted._average(estimates)
    expected = 0.75 * estimates[0].grad + 0.25 * estimates[1].grad
    chex.assert_trees_all_close(mean.grad, expected, rtol=1e-6)


def test_a_subset_of_the_systems_is_unrolled_and_the_mean_is_unbiased():
    systems = (QUADRATIC, TOY, InnerTraining(RandomQuadratic(dim=3), ScheduledSGD()))
    whole = make_trainer(*systems)
    some = dataclasses.replace(
        whole, systems_per_update=1, names=("a", "b", "c"), weights=(1.0, 2.0, 3.0)
    )
    state = some.init(data := some.load(), 0)
    assert some.num_inner_steps == whole.num_inner_steps / 3
    means, drawn = [], []
    update = jax.jit(lambda state: some._update(data, state))
    for step in range(30):
        now = state.replace(step=jnp.asarray(step, jnp.int32))
        after, metrics = update(now)
        losses = np.asarray([metrics[f"loss/{name}"] for name in "abc"])
        assert np.isfinite(losses).sum() == 1
        (i,) = np.flatnonzero(np.isfinite(losses))
        drawn.append(i)
        np.testing.assert_allclose(metrics["loss"], losses[i], rtol=1e-6)
        # Populations of the other systems are unchanged.
        for j in {0, 1, 2} - {int(i)}:
            chex.assert_trees_all_equal(after.populations[j], now.populations[j])
        means.append(metrics["grad_norm"])
    assert set(drawn) == {0, 1, 2}
    estimates = [some._estimate(i, data[i], state, None)[0] for i in range(3)]
    missing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan), estimates[0])
    averages = [
        some._average([e if i == j else missing for j, e in enumerate(estimates)]).grad
        for i in range(3)
    ]
    everything = dataclasses.replace(some, systems_per_update=None)._average(estimates)
    chex.assert_trees_all_close(sum(averages) / 3, everything.grad, rtol=1e-5)


def test_theta_is_averaged():
    trainer = dataclasses.replace(make_trainer(), average_decay=0.5)
    data, average = trainer.load(), None
    state = trainer.init(data, 0)
    average = np.asarray(state.theta)
    for _ in range(3):
        state, _ = trainer.run(data, state, 1)
        average = 0.5 * average + 0.5 * np.asarray(state.theta)
    np.testing.assert_allclose(state.result, average, rtol=1e-6)
    assert not np.allclose(state.result, state.theta)


def test_weight_decay_pulls_theta_back_to_where_it_began():
    optimizer = OuterAdam(0.1, weight_decay=0.5).as_optax(10)
    start = jnp.asarray([1.0, -2.0])
    state = optimizer.init(start)
    moved = start + 1.0
    update, _ = optimizer.update(jnp.zeros(2), state, moved)
    np.testing.assert_allclose(update, -0.1 * 0.5 * np.ones(2), rtol=1e-6)
    with pytest.raises(ValueError, match="`weight_decay` must be finite and not neg"):
        OuterAdam(weight_decay=-1.0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (OuterAdam(0.1, clip=None), optax.adam(0.1)),
        (OuterSGD(0.1), optax.sgd(0.1)),
        (OuterSGD(0.1, momentum=0.9, nesterov=True), optax.sgd(0.1, 0.9, True)),
        (
            OuterAdamW(0.1, weight_decay=0.2, clip=None),
            optax.adamw(0.1, weight_decay=0.2),
        ),
        (
            OuterLamb(0.1, weight_decay=0.2, clip=None),
            optax.lamb(0.1, eps_root=0.0, eps=1e-8, weight_decay=0.2),
        ),
        (
            OuterSGD(0.1, clip=0.5, clip_by="norm"),
            optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
        ),
        (OuterSGD(0.1, clip=0.5), optax.chain(optax.clip(0.5), optax.sgd(0.1))),
    ],
)
def test_outer_optimizers_are_those_of_optax(ours, theirs):
    theta = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray([0.3])}
    grads = {"a": jnp.asarray([0.4, 3.0]), "b": jnp.asarray([-0.7])}
    transforms = (ours.as_optax(10), theirs)
    states = [tx.init(theta) for tx in transforms]
    updates = [theta, theta]
    for _ in range(3):
        for i, tx in enumerate(transforms):
            updates[i], states[i] = tx.update(grads, states[i], theta)
        chex.assert_trees_all_close(*updates, rtol=1e-5)


@pytest.mark.parametrize("name", OUTER_OPTIMIZERS)
def test_outer_optimizers_name_an_invalid_field(name):
    with pytest.raises(ValueError, match="`learning_rate` and `clip` must be positive"):
        OUTER_OPTIMIZERS[name](learning_rate=-1.0)


def test_updates_in_double_precision_keep_the_types_of_the_state():
    with jax.enable_x64(True):
        trainer = make_trainer(TOY, QUADRATIC)
        before = trainer.init(trainer.load(), 0)
        dtypes = [x.dtype for x in jax.tree.leaves(before.theta)]
        state, metrics = run(trainer, 3)
        assert [x.dtype for x in jax.tree.leaves(state.theta)] == dtypes
        assert np.isfinite(metrics["loss"])
