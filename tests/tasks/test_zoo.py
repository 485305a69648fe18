"""Conformance of every task and system in the zoo."""

import chex
import jax
import numpy as np
import pytest

from evaluation.baselines import Baseline, setting
from meta_train.core.inner_training import InnerTraining
from meta_train.core.unroll import unroll
from tasks.base import Family, ParameterizedFamily, UnrolledSystem
from tasks.supervised.base import Supervised
from tasks.supervised.language import LanguageModel
from tasks.zoo import ZOO
from tests.conftest import needs_data

# Tasks that are redundant here, or that take a minute to compile.
SLOW = {
    "digits-mlp-wide",
    "digits-mlp-deep",
    "digits-mlp-tanh",
    "breast-cancer-mlp",
    "wine-mlp",
    "diabetes-mlp",
    "digits-resnet",
    "letters-gru",
    "mnist-conv",
    "fashion-mlp",
    "fashion-conv",
    "images-autoencoder",
    "cifar10-mlp",
    "cifar10-resnet",
    "cifar10-myrtle",
    # Variants of the tasks above, for mixtures, validation and held-out suites.
    "digits-mlp-batches",
    "digits-mlp-deep-tanh",
    "digits-classes-scaled",
    "digits-autoencoder-batches",
    "wine-mlp-deep",
    "diabetes-mlp-batches",
    "letters-lstm-small",
    "characters-transformer-small",
    "digits-mlp-gelu",
    "digits-conv-tanh",
    "digits-conv-small",
    "letters-gru-small",
    "wine-autoencoder",
    "diabetes-mlp-deep",
    "characters-lstm",
    "characters-transformer",
    "fashion-conv-small",
    "cifar10-resnet-small",
    "cifar10-myrtle-small",
}


def cases(kind):
    return [
        pytest.param(
            name,
            marks=[*needs_data(entry.problem), *([pytest.mark.slow] * (name in SLOW))],
        )
        for name, entry in ZOO.items()
        if isinstance(entry.problem, kind)
    ]


def runner(system, data, num_steps):
    """Build a function that unrolls a batch of episodes and compiles once."""

    @jax.jit
    @chex.assert_max_traces(1)
    def run(data, theta, keys):
        def one(key):
            state = system.init_state(theta, data, num_steps, key)
            return unroll(system, data, theta, state, num_steps, key)[1]

        return jax.vmap(one)(keys)

    return lambda theta, keys: np.asarray(run(data, theta, keys))


@pytest.mark.parametrize("name", cases(Family))
def test_adam_lowers_the_loss_of_every_task(name, key):
    family = ZOO[name].problem
    system = InnerTraining(family, Baseline("adam"))
    run = runner(system, system.load(), 50)
    keys = jax.random.split(key, 2)
    theta = setting(0.01)
    if isinstance(family, ParameterizedFamily):
        theta = system.init_theta(key)._replace(optimizer=theta)
    losses = run(theta, keys)
    assert losses.dtype == np.float32
    assert np.isfinite(losses).all()
    assert (losses[:, -5:].sum(axis=1) < losses[:, :5].sum(axis=1)).all()
    np.testing.assert_array_equal(run(theta, keys), losses)
    task = getattr(family, "task", family)
    if (
        isinstance(task, Supervised)
        and family.problem(family.sample_constants(key)).error
    ):
        np.testing.assert_allclose(losses[:, 0], np.log(task.num_outputs), atol=0.7)
    if isinstance(task, LanguageModel):
        np.testing.assert_allclose(losses[:, 0], np.log(task.vocabulary), atol=0.7)


@pytest.mark.parametrize("name", cases(UnrolledSystem))
def test_systems_unroll_side_by_side_and_repeat_by_key(name, key):
    system = ZOO[name].problem
    run = runner(system, system.load(), 5)
    theta = system.init_theta(key)
    losses = run(theta, jax.random.split(key, 3))
    assert losses.shape == (3, 5)
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(run(theta, jax.random.split(key, 3)), losses)


def test_nothing_is_both_trained_on_and_held_out():
    def pair(problem):
        while hasattr(problem, "task"):
            problem = problem.task
        data = getattr(problem, "dataset", None) or getattr(problem, "text", None)
        more = (getattr(problem, name, None) for name in ("cell", "unit"))
        return type(problem).__name__, *more, data

    uses = {}
    for entry in ZOO.values():
        uses.setdefault(pair(entry.problem), set()).add(entry.use)
    both = {"train", "held out"}
    assert not [what for what, found in uses.items() if both <= found]
