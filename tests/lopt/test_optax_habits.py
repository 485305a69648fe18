"""Optax conventions: its test problems, tree utilities and checkpoints."""

import functools

import chex
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from sklearn.datasets import load_digits

import lopt
from lopt.registry import OPTIMIZERS

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
NUM_STEPS = 5_000


# As in the test harness of optax: SGD at 0.01 is unstable on Rosenbrock.
FIELDS = {
    "LearnedSGD": {"initial_lr": 1e-3},
    "LearnedMomentum": {"initial_lr": 1e-3},
    "ScheduledSGD": {"initial_lr": 1e-3},
}


def make(name):
    optimizer = OPTIMIZERS[name](**FIELDS.get(name, {}))
    return optimizer.as_optax(optimizer.init_theta(jax.random.key(0)), NUM_STEPS)


def write(name, path):
    optimizer = OPTIMIZERS[name](**FIELDS.get(name, {}))
    lopt.save(path, optimizer, optimizer.init_theta(jax.random.key(0)))
    return path


# Problems of optax/contrib/_common_test.py.


def parabola(params):
    return jnp.sum((params - jnp.asarray([1.0, -1.0, 1.0])) ** 2)


def rosenbrock(params):
    return (1.0 - params[0]) ** 2 + 100.0 * (params[1] - params[0] ** 2) ** 2


def mixed_tensors(params):
    vector, matrix = params
    errors = vector - jnp.asarray([1.0, -1.0, 2.0])
    target = jnp.asarray([[1.0, 0.0], [-1.0, 1.0]])
    return jnp.sum(errors**2) + jnp.sum((matrix - target) ** 2)


@functools.cache
def descend(name):
    """Compute the initial and final loss on each of the problems, in one program.

    Theta is untrained, so steps are small (about 1e-3).
    """
    tx = make(name)
    starts = [
        (parabola, jnp.asarray([-1.0, 10.0, 1.0])),
        (rosenbrock, jnp.zeros(2)),
        (mixed_tensors, (jnp.zeros(3), jnp.zeros((2, 2)))),
    ]
    problems = {loss.__name__: (loss, params) for loss, params in starts}

    def step(carry, _):
        new = {}
        for problem, (params, state) in carry.items():
            value, grads = jax.value_and_grad(problems[problem][0])(params)
            updates, state = tx.update(grads, state, params, value=value)
            new[problem] = optax.apply_updates(params, updates), state
        return new, None

    carry = {k: (params, tx.init(params)) for k, (_, params) in problems.items()}
    # A no-op, to check that `map_params` supports the state.
    carry = {
        k: (params, optax.tree.map_params(tx, lambda x: x, state))
        for k, (params, state) in carry.items()
    }
    last, _ = jax.jit(lambda x: jax.lax.scan(step, x, length=NUM_STEPS))(carry)
    return {
        k: (float(loss(params)), float(loss(last[k][0])))
        for k, (loss, params) in problems.items()
    }


@every_optimizer
@pytest.mark.parametrize("problem", ["parabola", "rosenbrock", "mixed_tensors"])
def test_it_descends_untrained(name, problem):
    first, last = descend(name)[problem]
    assert last < 0.5 * first


# Tree utilities.

PARAMS = {"b": jnp.ones(3), "w": jnp.ones((2, 3))}


def one_step(tx):
    update = jax.jit(functools.partial(tx.update, value=jnp.ones(())))
    return update(PARAMS, tx.init(PARAMS), PARAMS)


@functools.cache
def plain(name):
    return one_step(make(name))


@every_optimizer
def test_the_count_is_found_by_name(name):
    _, state = plain(name)
    chain = optax.chain(optax.identity(), make(name)).init(PARAMS)
    assert optax.tree.get(state, "count") == 1
    assert optax.tree.get(chain, "count") == 0
    assert optax.tree.get(optax.tree.set(state, count=jnp.asarray(7)), "count") == 7


@every_optimizer
def test_parameter_bytes_are_separated(name):
    _, state = plain(name)
    marked = optax.tree.map_params(
        make(name), lambda _: "param", state, transform_non_params=lambda _: "other"
    )
    assert optax.tree.get(marked, "count") == "other"
    leaves = zip(jax.tree.leaves(marked), jax.tree.leaves(state), strict=True)
    shapes = {x.shape for x in PARAMS.values()}
    assert all(mark == "param" for mark, x in leaves if x.shape in shapes)
    assert jnp.isfinite(optax.tree.norm(state))


@every_optimizer
def test_hyperparameters_of_a_loaded_optimizer_are_injected(name, tmp_path):
    path = write(name, tmp_path / "optimizer.safetensors")
    tx = optax.inject_hyperparams(lopt.load)(path, num_steps=NUM_STEPS)
    updates, state = one_step(tx)
    chex.assert_trees_all_close(updates, plain(name)[0], rtol=1e-5)
    assert state.hyperparams["num_steps"] == NUM_STEPS


# Checkpoints.


def save_orbax(path, tree):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def restore_orbax(path, like):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, like)


def save_flax(path, tree):
    path.write_bytes(flax.serialization.to_bytes(tree))


def restore_flax(path, like):
    return flax.serialization.from_bytes(like, path.read_bytes())


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(8)(x)))


@every_optimizer
def test_training_resumes_bitwise_from_a_checkpoint(name, tmp_path):
    path = write(name, tmp_path / "optimizer.safetensors")
    images, labels = load_digits(return_X_y=True)
    batches = jnp.asarray(images[:192] / 16, jnp.float32).reshape(6, 32, 64)
    targets = jnp.asarray(np.reshape(labels[:192], (6, 32)), jnp.int32)
    model = Classifier()

    def start():
        """Build optimizer, parameters and initial state, as in a new process."""
        tx = optax.chain(optax.clip_by_global_norm(1.0), lopt.load(path, num_steps=6))
        params = model.init(jax.random.key(0), batches[0])
        return tx, (params, tx.init(params))

    tx, first = start()

    @jax.jit
    def step(params, state, x, y):
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        loss = lambda params: cross_entropy(model.apply(params, x), y).mean()
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    def train(state, first, last):
        # Orbax restores committed arrays. Commit all others, to compile `step` once.
        state = jax.device_put(state, jax.devices()[0])
        for i in range(first, last):
            state = step(*state, batches[i], targets[i])
        return state

    middle = train(first, 0, 3)
    uninterrupted = train(middle, 3, 6)
    for kind, save, restore in (
        ("orbax", save_orbax, restore_orbax),
        ("flax", save_flax, restore_flax),
    ):
        save(tmp_path / kind, middle)
        _, fresh = start()
        chex.assert_trees_all_equal(
            train(restore(tmp_path / kind, fresh), 3, 6), uninterrupted
        )
