"""Tasks give the same results on any number of devices."""

import jax
import numpy as np
import pytest

from evaluation.baselines import Baseline
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.outer.trainer import Trainer
from tasks.base import Family
from tasks.zoo import ZOO
from tests.conftest import needs_data, on_devices

FAST = {"quadratic"}
CASES = [
    pytest.param(
        name,
        marks=[*needs_data(entry.problem), *([pytest.mark.slow] * (name not in FAST))],
    )
    for name, entry in ZOO.items()
]


def train(name):
    """Compute the loss and theta after two outer updates with four pairs."""
    problem = ZOO[name].problem
    if isinstance(problem, Family):
        problem = InnerTraining(problem, Baseline("adam"))
    trainer = Trainer(
        systems=(problem,),
        estimator=PES(Truncation(length=2, horizon=4), num_pairs=4),
        outer_optimizer=OuterAdam(),
        num_outer_steps=2,
    )
    data = trainer.load()
    state = trainer.init(data, 0)
    state, metrics = trainer.run(data, state, 2)
    leaves = [np.asarray(x).ravel() for x in jax.tree.leaves(state.theta)]
    return [float(metrics["loss"]), *np.concatenate(leaves).tolist()]


def result(name, num_devices):
    code = (
        "import sys, json; from tests.tasks.test_devices import train; "
        "print(json.dumps(train(sys.argv[1])))"
    )
    return on_devices(num_devices, code, name)


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_devices_gives_the_same(name):
    one, four = result(name, 1), result(name, 4)
    np.testing.assert_allclose(four, one, rtol=1e-4)
