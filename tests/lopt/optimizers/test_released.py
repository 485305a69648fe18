"""Released optimizers equal their definitions and the reference trajectories."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lopt
from lopt.optimizers.celo import Celo
from lopt.optimizers.celo2 import Celo2
from lopt.optimizers.celo_adam import CeloAdam
from lopt.optimizers.velo import VeLO
from tests.lopt.released import (
    FOLDER,
    FORMATS,
    define,
    needs_released,
    random_tensors,
    write,
)

NUM_STEPS = 20  # of the reference trajectories
SHAPES = {"b": (3,), "conv": (2, 3, 2, 4), "tall": (6, 3), "wide": (2, 5)}
every_folder = pytest.mark.parametrize("folder", FORMATS)


class Trajectory:
    """Reference trajectory: trees of gradients and parameters, and losses."""

    def __init__(self, folder):
        self._file = np.load(FOLDER / folder / "trajectory.npz")

    def tree(self, prefix):
        return {
            name.removeprefix(f"{prefix}/"): self._file[name]
            for name in self._file.files
            if name.startswith(f"{prefix}/")
        }

    def steps(self):
        for t in range(12):
            loss = self._file[f"loss/{t:02d}"]
            yield self.tree(f"grads/{t:02d}"), loss, self.tree(f"params/{t:02d}")


@functools.cache
def imported(folder):
    return lopt.import_theta(FORMATS[folder], FOLDER / folder / "theta.state")


def assert_close(found, expected):
    """Compare up to rounding: near zero, relative to the largest entry."""
    for name, ours in found.items():
        theirs = np.asarray(expected[name], np.float64)
        largest = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * largest)


@needs_released
@every_folder
@pytest.mark.parametrize("batch", [None, 2], ids=["jit", "vmap"])
def test_a_released_optimizer_reproduces_its_trajectory(folder, batch):
    optimizer, theta = imported(folder)
    tx = optimizer.as_optax(theta, NUM_STEPS)
    tx = optax.with_extra_args_support(optax.chain(optax.identity(), tx))

    def step(grads, params, state, loss):
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state

    trajectory = Trajectory(folder)
    several = (lambda tree: tree) if batch is None else repeated(batch)
    params = several(trajectory.tree("init"))
    state = tx.init(params) if batch is None else jax.vmap(tx.init)(params)
    step = jax.jit(step if batch is None else jax.vmap(step))
    for grads, loss, expected in trajectory.steps():
        params, state = step(several(grads), params, state, several(loss))
        assert_close(params, several(expected))


def repeated(batch):
    return functools.partial(jax.tree.map, lambda x: np.stack([x] * batch))


@needs_released
@every_folder
def test_the_definition_in_double_precision_is_as_far_from_the_trajectory(folder):
    """The tolerance of `assert_close` is rounding of the released optimizer itself."""
    from lopt.files.msgpack_arrays import read_arrays

    trajectory = Trajectory(folder)
    params = {k: np.float64(x) for k, x in trajectory.tree("init").items()}
    tensors = read_arrays(FOLDER / folder / "theta.state")
    shapes = [x.shape for x in params.values()]
    step = define(FORMATS[folder], tensors, shapes, NUM_STEPS)
    for t, (grads, loss, expected) in enumerate(trajectory.steps()):
        grads = [np.float64(grads[k]) for k in params]
        steps = step(t, grads, list(params.values()), float(loss))
        params = {k: p + s for (k, p), s in zip(params.items(), steps, strict=True)}
        for name, theirs in expected.items():
            largest = np.abs(theirs).max()
            np.testing.assert_allclose(
                params[name], theirs, rtol=1e-5, atol=3e-6 * largest
            )


@pytest.mark.parametrize("name", FORMATS.values())
def test_an_imported_optimizer_equals_its_definition(name, tmp_path):
    """Without the reference files: weights are random."""
    tensors = random_tensors(name)
    path = write(tmp_path / "theta.state", tensors)
    optimizer, theta = lopt.import_theta(name, path)
    rng = np.random.default_rng(1)
    draw = lambda: {
        k: rng.standard_normal(x).astype(np.float32) for k, x in SHAPES.items()
    }
    params = draw()
    numpy = [np.float64(x) for x in params.values()]
    step = define(name, tensors, list(SHAPES.values()), NUM_STEPS)
    tx = optimizer.as_optax(theta, NUM_STEPS)
    state, update = tx.init(params), jax.jit(tx.update)
    for t in range(8):
        # Several magnitudes, as features treat small and large gradients differently.
        grads = {k: 10.0 ** (t % 4 - 2) * x for k, x in draw().items()}
        grads = jax.tree.map(np.float32, grads)
        loss = np.float32(2.0 + np.cos(3.0 * t) - 0.05 * t)
        updates, state = update(grads, state, params, value=loss)
        params = optax.apply_updates(params, updates)
        steps = step(t, [np.float64(x) for x in grads.values()], numpy, float(loss))
        numpy = [p + s for p, s in zip(numpy, steps, strict=True)]
        for ours, theirs in zip(params.values(), numpy, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (Celo(), 37_089),
        (CeloAdam(), 36_865),
        (VeLO(), 46_337),
        (VeLO(lstm_width=512, num_banks=256, mixture_scale=100.0), 2_320_385),
        (Celo2(), 347),
    ],
    ids=lambda x: type(x).__name__,
)
def test_number_of_parameters(optimizer, count, key):
    theta = jax.eval_shape(optimizer.init_theta, key)
    assert sum(x.size for x in jax.tree.leaves(theta)) == count


SMALL = [Celo(lstm_width=4), CeloAdam(lstm_width=4), VeLO(4, 2)]
every_small = pytest.mark.parametrize(
    "optimizer", SMALL, ids=lambda x: type(x).__name__
)


@every_small
def test_steps_have_derivatives_where_gradients_are_zero(optimizer, key):
    scales = jnp.asarray([[0.0, 1.0], [0.0, 2.0]])

    def total(theta):
        tx = optimizer.as_optax(theta, NUM_STEPS)
        params = jnp.asarray([1.0, 2.0])
        state = tx.init(params)
        for scale in scales:
            grads = scale * params.sum()  # each depends on all parameters
            updates, state = tx.update(grads, state, params, value=1.0)
            params = optax.apply_updates(params, updates)
        return params.sum()

    derivatives = jax.jit(jax.grad(total))(optimizer.init_theta(key))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(derivatives))


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_no_number_does_no_lasting_damage(loss, key):
    optimizer = Celo(lstm_width=4)
    tx = optimizer.as_optax(optimizer.init_theta(key), NUM_STEPS)
    params, update = jnp.asarray([1.0, 2.0]), jax.jit(tx.update)
    state = tx.init(params)
    for value in (1.0, loss, 0.5):
        updates, state = update(params, state, params, value=value)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((updates, state)))


def test_adam_updates_the_tensors_that_are_named(key):
    optimizer = Celo2(adam_names=("*embed*",), adam_multiplier=10.0)
    tx = optimizer.as_optax(optimizer.init_theta(key), NUM_STEPS)
    params = {"embed": {"w": jnp.ones((2, 3))}, "head": {"w": jnp.ones((2, 3))}}
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    # Adam without bias correction: 0.1 / sqrt(0.05), with ten times the learning rate.
    np.testing.assert_allclose(updates["embed"]["w"], -1e-2 * 0.1 / 0.05**0.5, 1e-5)
    assert not np.allclose(updates["head"]["w"], updates["embed"]["w"], rtol=0.1)


def test_weight_decay_is_scaled_like_the_update(key):
    plain, decayed = Celo2(), Celo2(weight_decay=0.1)
    theta = plain.init_theta(key)
    params = {"b": jnp.full(3, 2.0), "w": jnp.full((2, 3), 2.0)}
    updates = [
        tx.update(params, tx.init(params), params)[0]
        for tx in (x.as_optax(theta, NUM_STEPS) for x in (plain, decayed))
    ]
    extra = jax.tree.map(lambda a, b: b - a, *updates)
    np.testing.assert_allclose(extra["w"], -1e-3 * 0.1 * 2.0, rtol=1e-3)
    np.testing.assert_allclose(extra["b"], -20e-3 * 0.1 * 2.0, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Celo2(learning_rate=0.0), "must be positive"),
        (lambda: Celo2(adam_second_decay=1.0), r"must lie in \[0, 1\)"),
        (lambda: VeLO(num_banks=0), "`num_banks` must be at least 1"),
        (lambda: VeLO(mixture_scale=0.0), "`mixture_scale` must be positive"),
        (lambda: CeloAdam(lstm_width=0), "`lstm_width` and"),
    ],
)
def test_bad_hyperparameters_are_refused(make, message):
    with pytest.raises(lopt.UserError, match=message):
        make()
