"""Task augmentations and families; antithetic partners share a draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from tasks.families.augmentation import (
    InitialScale,
    NoisyGradient,
    Reparameterized,
    ScaledLoss,
    SmallerBatches,
)
from tasks.families.random_data import AnyDataset, ClassSubset, PermutedLabels
from tasks.supervised.linear import Linear
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import QuadraticFamily

TASK = MLP(width=4, depth=1)


def problems(family, key):
    """Draw constants and build the plain and augmented problem, params and batch."""
    constants = family.sample_constants(key)
    plain, changed = TASK.problem(()), family.problem(constants)
    data = family.load()
    parts = [
        (problem, problem.init_params(key), problem.sample_batch(d, key))
        for problem, d in ((plain, TASK.load()), (changed, data))
    ]
    return constants, *parts


@pytest.mark.parametrize("per", ["run", "tensor", "parameter"])
def test_a_reparameterised_task_has_the_same_losses_and_other_slopes(per, key):
    family = Reparameterized(TASK, per=per)
    (factors, _), (plain, params, batch), (changed, scaled, _) = problems(family, key)
    shapes = {x.shape for x in jax.tree.leaves(factors)}
    assert (shapes == {()}) == (per != "parameter")
    assert (len({float(x.ravel()[0]) for x in jax.tree.leaves(factors)}) == 1) == (
        per == "run"
    )
    for name in ("loss", "reported", "error"):
        ours, theirs = (
            getattr(problem, name)(p, batch)
            for problem, p in ((changed, scaled), (plain, params))
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    ours = jax.grad(changed.loss)(scaled, batch)
    theirs = jax.grad(plain.loss)(params, batch)
    for a, b, f in zip(*map(jax.tree.leaves, (ours, theirs, factors)), strict=True):
        np.testing.assert_allclose(a, f * b, rtol=1e-3, atol=1e-6)


def test_factors_are_spread_evenly_in_the_logarithm(key):
    family = InitialScale(TASK, low=0.01, high=100.0)
    draws = jax.vmap(lambda k: family.sample_constants(k)[0])(
        jax.random.split(key, 4_000)
    )
    logs = np.log10(draws)
    assert -2 <= logs.min() < -1.9
    assert 1.9 < logs.max() <= 2
    assert abs(logs.mean()) < 4 * logs.std() / np.sqrt(len(logs))


def test_a_scaled_loss_is_measured_without_its_factor(key):
    (factor, _), (plain, params, batch), (changed, *_) = problems(ScaledLoss(TASK), key)
    expected = plain.loss(params, batch)
    np.testing.assert_allclose(changed.loss(params, batch), factor * expected)
    np.testing.assert_allclose(changed.reported(params, batch), expected)


def test_noise_is_added_to_gradients_and_to_nothing_else(key):
    family = NoisyGradient(TASK, std=0.1)
    data = family.load()
    problem = family.problem(family.sample_constants(key))
    params = problem.init_params(key)

    def noise(key):
        noisy = problem.sample_batch(data, key)
        ours = jax.grad(problem.loss)(params, noisy)
        theirs = jax.grad(TASK.loss)(params, noisy[0])
        difference = jax.tree.map(jnp.subtract, ours, theirs)
        values = problem.loss(params, noisy) - TASK.loss(params, noisy[0])
        return jnp.concatenate([x.ravel() for x in jax.tree.leaves(difference)]), values

    noises, values = jax.jit(jax.vmap(noise))(jax.random.split(key, 200))
    np.testing.assert_array_equal(values, 0)
    num = noises.size
    assert abs(noises.mean()) < 4 * 0.1 / np.sqrt(num)
    assert abs(noises.std() - 0.1) < 4 * 0.1 / np.sqrt(2 * num)


def test_smaller_batches_repeat_a_few_examples(key):
    family = SmallerBatches(TASK, num_halvings=4)
    data = family.load()
    for i in range(5):
        batch = family.problem((jnp.asarray(i), ())).sample_batch(data, key)
        rows, counts = np.unique(
            np.asarray(batch.inputs).reshape(64, -1), axis=0, return_counts=True
        )
        assert len(rows) <= 64 >> i
        assert (counts % 2**i == 0).all()
    odd = SmallerBatches(MLP(batch_size=63))
    with pytest.raises(ValueError, match="divisible by 2"):
        odd.problem((jnp.asarray(1), ())).sample_batch(data, key)


def test_labels_are_permuted_and_inputs_are_not(key):
    family = PermutedLabels(TASK)
    (order, _), (_, _, batch), (_, _, changed) = problems(family, key)
    assert sorted(order.tolist()) == list(range(10))
    np.testing.assert_array_equal(changed.labels, order[batch.labels])
    np.testing.assert_array_equal(changed.inputs, batch.inputs)


def test_a_subset_has_its_classes_only_and_all_alike(key):
    family = ClassSubset(MLP(batch_size=1_000), num_classes=3)
    data = family.load()
    chosen, _ = constants = family.sample_constants(key)
    batch = family.problem(constants).sample_batch(data, key)
    whole = TASK.load().whole()
    classes = {
        np.asarray(x).tobytes(): int(label)
        for x, label in zip(whole.inputs, whole.labels, strict=True)
    }
    found = [classes[np.asarray(x).tobytes()] for x in batch.inputs]
    np.testing.assert_array_equal(found, chosen[batch.labels])
    shares = np.bincount(batch.labels, minlength=3) / 1_000
    np.testing.assert_allclose(shares, 1 / 3, atol=4 * np.sqrt(2 / 9 / 1_000))


def test_any_of_several_datasets_with_its_own_normalisation(key, tmp_path, monkeypatch):
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path))
    rng = np.random.default_rng(0)
    for name, shift in (("a.csv", 0.0), ("b.csv", 100.0)):
        rows = shift + rng.normal(size=(40 + int(shift), 3))
        np.savetxt(tmp_path / name, rows, delimiter=",")
    family = AnyDataset(Linear("a.csv", batch_size=16), datasets=("a.csv", "b.csv"))
    data = family.load()
    assert len(data.labels) == 2 * 32
    for i in range(2):
        batch = family.problem((jnp.asarray(i), ())).sample_batch(data, key)
        assert np.abs(batch.inputs).max() < 5
    with pytest.raises(ValueError, match="shape and classes"):
        AnyDataset(MLP(), datasets=("digits", "wine"))


@pytest.mark.parametrize("family", [QuadraticFamily(dim=4), Reparameterized(TASK)])
def test_partners_share_a_draw_and_pairs_do_not(family, key):
    system = InnerTraining(family, ScheduledSGD())
    data, theta = system.load(), system.init_theta(key)
    pes = PES(Truncation(length=2, horizon=4, staggered=False), num_pairs=3)
    state = pes.init(system, data, theta, key)
    update = jax.jit(lambda state, key: pes.update(system, data, theta, state, key)[1])
    first = update(state, jax.random.fold_in(key, 1))
    second = update(first, jax.random.fold_in(key, 2))
    third = update(second, jax.random.fold_in(key, 3))
    draws = [
        np.asarray(jax.tree.leaves(s.episode.state.constants)[0])
        for s in (first, second, third)
    ]
    for draw in draws:
        np.testing.assert_array_equal(draw[:, 0], draw[:, 1])
        assert len({row.tobytes() for row in draw[:, 0]}) == 3
    np.testing.assert_array_equal(draws[0], draws[1])  # same episode
    assert (draws[1] != draws[2]).any()  # next episode
