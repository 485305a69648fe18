"""Learned SGD, momentum and Adam equal optax and their definitions in the papers."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lopt
from lopt.errors import UserError
from lopt.optimizers.classical import LearnedAdam, LearnedMomentum, LearnedSGD
from lopt.optimizers.learning_rate import check_schedule, init_schedule, learning_rate
from lopt.registry import OPTIMIZERS

KINDS = (LearnedSGD, LearnedMomentum, LearnedAdam)
SCHEDULES = ("constant", "linear", "exponential", "power", "cosine")
PARAMS = {"m": jnp.arange(6.0).reshape(2, 3) / 3, "s": jnp.ones(()), "v": -jnp.ones(3)}
DECAYS = {"logit_decay": 0.8, "logit_first_decay": 0.85, "logit_second_decay": 0.995}
LINEAR = optax.linear_schedule(0.03, 0.002, 20)
COSINE = optax.cosine_decay_schedule(0.03, 20, alpha=0.002 / 0.03)


def logit(share):
    return np.log(share / (1 - share))


def gradients(key):
    leaves, treedef = jax.tree.flatten(PARAMS)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return treedef.unflatten(draws)


def run(tx, key, num_steps=20):
    def step(carry, key):
        params, state = carry
        updates, state = tx.update(gradients(key), state, params)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit  # one program compiles faster than separate operations
    def whole(keys):
        return jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), keys)[0][0]

    return whole(jax.random.split(key, num_steps))


def set_theta(optimizer, lr=0.03, last_lr=0.002):
    rates = {"log_lr": np.log(lr), "log_last_lr": np.log(last_lr)}
    values = rates | {name: logit(decay) for name, decay in DECAYS.items()}
    names = optimizer.init_theta(jax.random.key(0))
    return {name: jnp.asarray(values[name], jnp.float32) for name in names}


@pytest.mark.parametrize(
    ("schedule", "theirs"), [("constant", 0.03), ("linear", LINEAR), ("cosine", COSINE)]
)
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (LearnedSGD, optax.sgd),
        (LearnedMomentum, lambda lr: optax.sgd(lr, momentum=0.8)),
        (LearnedAdam, lambda lr: optax.adam(lr, b1=0.85, b2=0.995)),
    ],
)
def test_it_equals_optax_at_the_same_hyperparameters(kind, make, schedule, theirs, key):
    optimizer = kind(schedule=schedule)
    ours = run(optimizer.as_optax(set_theta(optimizer), 20), key)
    chex.assert_trees_all_close(ours, run(make(theirs), key), rtol=0, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_equal_their_definitions(schedule):
    t = np.arange(20) / 20
    first, last, power = 0.1, 0.004, 1.7
    expected = {
        "constant": np.full(20, first),
        "linear": (1 - t) * first + t * last,
        "exponential": first * (last / first) ** t,
        "power": first / (1 + t) ** power,
        "cosine": last + (first - last) * (1 + np.cos(np.pi * t)) / 2,
    }[schedule]
    numbers = {"log_lr": np.log(first), "log_last_lr": np.log(last), "power": power}
    numbers = {name: jnp.asarray(x, jnp.float32) for name, x in numbers.items()}
    at = jax.vmap(lambda progress: learning_rate(schedule, numbers, progress))
    np.testing.assert_allclose(at(jnp.asarray(t, jnp.float32)), expected, rtol=1e-5)


def numpy_direction(kind, theta, grad, state, t):
    sigmoid = lambda name: 1 / (1 + np.exp(-theta[name]))
    if kind is LearnedSGD:
        return grad
    if kind is LearnedMomentum:
        state["trace"] = sigmoid("logit_decay") * state.get("trace", 0) + grad
        return state["trace"]
    b1, b2 = sigmoid("logit_first_decay"), sigmoid("logit_second_decay")
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * grad
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * grad**2
    m, v = state["m"] / (1 - b1 ** (t + 1)), state["v"] / (1 - b2 ** (t + 1))
    return m / (np.sqrt(v) + 1e-8)


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        (LearnedSGD, "power"),
        (LearnedMomentum, "exponential"),
        (LearnedAdam, "power"),
        (LearnedAdam, "exponential"),
    ],
)
def test_blocks_with_l2_equal_their_definition_in_numpy(kind, schedule, key):
    optimizer = kind(schedule=schedule, num_blocks=3, l2=True)
    theta = optimizer.init_theta(key)
    # Values differ widely between blocks, so that mixed-up blocks are detected.
    offsets = {"log_l2": 5.0, "log_last_lr": -1.0, "power": 1.0}
    theta = {
        name: x + offsets.get(name, 0.0) + jnp.asarray([-0.5, 0.2, 0.7])
        for name, x in theta.items()
    }
    tx = optimizer.as_optax(theta, 20)
    params, state = PARAMS, tx.init(PARAMS)
    blocks = [np.asarray(x, np.float64) for x in jax.tree.leaves(PARAMS)]
    states = [{}, {}, {}]
    update = jax.jit(tx.update)
    for t in range(20):
        grads = gradients(jax.random.fold_in(key, t))
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for i, grad in enumerate(jax.tree.leaves(grads)):
            own = {name: np.asarray(x, np.float64)[i] for name, x in theta.items()}
            grad = np.asarray(grad, np.float64) + np.exp(own["log_l2"]) * blocks[i]
            if schedule == "power":
                rate = np.exp(own["log_lr"]) * (1 + t / 20) ** -own["power"]
            else:
                ratio = np.exp(own["log_last_lr"] - own["log_lr"])
                rate = np.exp(own["log_lr"]) * ratio ** (t / 20)
            direction = numpy_direction(kind, own, grad, states[i], t)
            blocks[i] = blocks[i] - rate * direction
    for ours, theirs in zip(jax.tree.leaves(params), blocks, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_untrained_every_schedule_is_constant(schedule):
    numbers = init_schedule(schedule, 0.02)
    numbers = {name: jnp.asarray(x, jnp.float32) for name, x in numbers.items()}
    at = jax.vmap(lambda progress: learning_rate(schedule, numbers, progress))
    np.testing.assert_allclose(at(jnp.linspace(0.0, 1.0, 5)), 0.02, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2", [False, True])
def test_untrained_it_descends_on_a_quadratic(kind, l2, key):
    optimizer = kind(schedule="cosine", l2=l2)
    tx = optimizer.as_optax(optimizer.init_theta(key), 200)
    curvature = jnp.asarray([0.1, 1.0, 10.0])
    loss = lambda x: 0.5 * jnp.sum(curvature * x**2)

    def step(carry, _):
        x, state = carry
        updates, state = tx.update(jax.grad(loss)(x), state, x)
        return (x + updates, state), loss(x)

    start = jnp.ones(3)
    whole = jax.jit(lambda: jax.lax.scan(step, (start, tx.init(start)), length=200)[1])
    losses = whole()
    assert losses[-1] < 0.8 * losses[0]
    assert losses.max() < 1.2 * losses[0]


def test_adam_past_its_horizon_still_corrects_its_bias(key):
    optimizer = LearnedAdam()
    ours = run(optimizer.as_optax(set_theta(optimizer), num_steps=3), key)
    theirs = run(optax.adam(0.03, b1=0.85, b2=0.995), key)
    chex.assert_trees_all_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [LearnedMomentum, LearnedAdam])
@pytest.mark.parametrize("std", [0.01, 1.0])
def test_decays_are_between_zero_and_one_for_any_theta(kind, std, key):
    optimizer = kind()
    theta = optimizer.init_theta(key)

    def second_step(key):
        keys = dict(zip(theta, jax.random.split(key, len(theta)), strict=True))
        moved = {n: x + std * jax.random.normal(keys[n]) for n, x in theta.items()}
        tx = optimizer.as_optax(moved, 10)
        state = tx.update(jnp.ones(1), tx.init(jnp.ones(1)))[1]
        return -tx.update(jnp.ones(1), state)[0][0] / jnp.exp(moved["log_lr"])

    steps = jax.jit(jax.vmap(second_step))(jax.random.split(key, 1000))
    if kind is LearnedMomentum:
        assert ((steps > 1) & (steps < 2)).all()  # 1 + decay
    else:
        np.testing.assert_allclose(steps, 1.0, rtol=1e-5)  # bias-corrected averages


def test_theta_can_be_derived_where_gradients_are_zero(key):
    optimizer = LearnedAdam(schedule="linear", l2=True)
    params = jnp.asarray([0.0, 1.0])

    def end(theta):
        tx = optimizer.as_optax(theta, 5)
        x, state = params, tx.init(params)
        for _ in range(3):
            updates, state = tx.update(jnp.asarray([0.0, 1.0]) * x, state, x)
            x = x + updates
        return jnp.sum(x**2)

    slope = jax.jit(jax.grad(end))(optimizer.init_theta(key))
    chex.assert_tree_all_finite(slope)
    assert slope["log_lr"] < 0


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (LearnedSGD(), 1),
        (LearnedSGD("power"), 2),
        (LearnedAdam("cosine", l2=True), 5),
        (LearnedAdam("linear", num_blocks=3, l2=True), 15),
        # PES paper: six layers of two tensors, a learning rate and a decay for each.
        (LearnedMomentum(num_blocks=12), 24),
    ],
)
def test_number_of_parameters(optimizer, count, key):
    theta = optimizer.init_theta(key)
    assert sum(x.size for x in theta.values()) == count


@pytest.mark.parametrize("num_blocks", [2, 4])
def test_another_number_of_tensors_than_blocks_is_refused(num_blocks, key):
    optimizer = LearnedSGD(num_blocks=num_blocks)
    tx = optimizer.as_optax(optimizer.init_theta(key), 10)
    with pytest.raises(lopt.UserError, match=rf"{num_blocks} and 3 tensors. Try 3"):
        tx.init(PARAMS)


def test_no_block_takes_the_place_of_one_without_a_gradient(key):
    optimizer = LearnedMomentum(num_blocks=3)
    theta = optimizer.init_theta(key)
    theta["log_lr"] += jnp.arange(3.0)
    tx = optimizer.as_optax(theta, 10)
    state, some = tx.init(PARAMS), PARAMS | {"m": None}
    whole, _ = tx.update(PARAMS, state, PARAMS)
    updates, _ = tx.update(some, state, PARAMS)
    chex.assert_trees_all_equal(updates, whole | {"m": None})
    with pytest.raises(lopt.UserError, match="the parameters must tell which"):
        tx.update(some, state)


def test_only_l2_reads_the_parameters(key):
    for l2 in (False, True):
        optimizer = LearnedSGD(l2=l2)
        assert optimizer.reads_params is l2
        tx = optimizer.as_optax(optimizer.init_theta(key), 10)
        if l2:
            with pytest.raises(lopt.UserError, match="LearnedSGD reads the parameters"):
                tx.update(PARAMS, tx.init(PARAMS))
        else:
            updates, _ = tx.update(PARAMS, tx.init(PARAMS))
            expected = jax.tree.map(lambda x: -0.01 * x, PARAMS)
            chex.assert_trees_all_close(updates, expected, rtol=1e-6)


@pytest.mark.parametrize("num_blocks", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_a_file(kind, num_blocks, key, tmp_path, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, kind.__name__, kind)
    optimizer = kind("cosine", num_blocks=num_blocks, l2=True)
    theta = jax.tree.map(lambda x: x + 0.1, optimizer.init_theta(key))
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, theta)
    loaded, loaded_theta = lopt.load_theta(path)
    assert loaded == optimizer
    chex.assert_trees_all_equal(loaded_theta, theta)
    ours = run(optimizer.as_optax(theta, 20), key)
    # A loaded optimizer also checks its horizon, so its program may round differently.
    chex.assert_trees_all_close(run(lopt.load(path, 20), key), ours, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"initial_lr": 0.0}, "`initial_lr` must be positive; got 0.0"),
        ({"num_blocks": -1}, "`num_blocks` must be the number of tensors, or 0"),
    ],
)
def test_bad_hyperparameters_are_refused(fields, message):
    with pytest.raises(lopt.UserError, match=message):
        LearnedAdam(**fields)


def test_an_unknown_schedule_is_refused_with_those_there_are():
    with pytest.raises(lopt.UserError, match=r"one of constant, linear,.*got 'square'"):
        check_schedule("square", 0.01)


@pytest.mark.parametrize("schedule", ["power", "log-power"])
def test_power_schedules_may_have_a_constant_other_than_the_horizon(schedule):
    optimizer = LearnedSGD(schedule, initial_lr=0.5, initial_power=2.0, power_horizon=4)
    tx = optimizer.as_optax(optimizer.init_theta(jax.random.key(0)), 20)
    state, rates = tx.init(jnp.zeros(1)), []
    for _ in range(5):
        update, state = tx.update(jnp.ones(1), state)
        rates.append(-float(update[0]))
    expected = 0.5 / (1 + np.arange(5) / 4) ** 2
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_fixed_entries_are_not_in_theta_but_in_the_update(key):
    whole = LearnedMomentum(l2=True, initial_l2=0.1, initial_lr=0.03)
    some = dataclasses.replace(whole, fixed=("logit_decay", "log_lr"))
    theta = some.init_theta(key)
    assert list(theta) == ["log_l2"]
    ours = run(some.as_optax(theta, 20), key)
    theirs = run(whole.as_optax(whole.init_theta(key), 20), key)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-6)
    with pytest.raises(UserError, match="Did you mean 'logit_decay'"):
        LearnedMomentum(fixed=("logit_decays",))
    with pytest.raises(UserError, match="must leave an entry of theta to learn"):
        LearnedSGD(fixed=("log_lr",))


def test_initial_values_are_drawn_from_their_ranges(key):
    optimizer = LearnedMomentum(
        num_blocks=200, lr_range=(1e-4, 1e-2), decay_range=(0.01, 0.9)
    )
    theta = optimizer.init_theta(key)
    rates, decays = np.exp(theta["log_lr"]), jax.nn.sigmoid(theta["logit_decay"])
    assert 1e-4 <= rates.min() < 3e-4
    assert 3e-3 < rates.max() <= 1e-2
    assert 0.01 <= decays.min() < 0.03
    assert 0.8 < decays.max() <= 0.9
    assert not np.allclose(theta["log_lr"], optimizer.init_theta(key)["logit_decay"])
    for wrong in ((1.0, 0.1), (0.0, 1.0)):
        with pytest.raises(UserError, match="`lr_range` must be two increasing"):
            LearnedSGD(lr_range=wrong)
